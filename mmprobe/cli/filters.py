"""The commands that remove questions which models answer without images: `filter` and `clean`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import LARGEST_SEED, AsJson, check_out, say
from mmprobe.errors import InputError


def filter_by_votes(
    data: Annotated[Path, typer.Option(help="Questions of MMReason, or samples.jsonl of make-pairs.")],
    voters: Annotated[
        str,
        typer.Option(
            help="Names with commas between: local models, or PROVIDER/MODEL such as openai/gpt-4o."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    rounds: Annotated[int, typer.Option(help="How often each voter is asked.", min=1)] = 2,
    temperature: Annotated[float, typer.Option(help="0 answers greedily, above 0 samples.", min=0)] = 0.7,
    seed: Annotated[
        int,
        typer.Option(help="Seed of the sampling; each round adds its number.", min=0, max=LARGEST_SEED),
    ] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 1024,
    batch_size: Annotated[int, typer.Option(help="Questions a local model answers together.", min=1)] = 1,
    judge: Annotated[
        str,
        typer.Option(
            help="Who says what is right: lexical, model:openai/gpt-4o, ensemble:openai/a,openai/b,openai/c."
        ),
    ] = "lexical",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an earlier filter in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what models answer without seeing the pictures.

    Every voter is asked every question without its pictures, round by round; what anyone answers rightly even once
    is removed. Options are taken out of multiple-choice questions first. The result folder gets kept.jsonl and
    removed.jsonl, which are data of bench mmreason again, results.json, with relevance rates before and after, and
    votes.jsonl, from which --resume goes on.

    \b
    Examples:
      mmprobe filter --data pairs/samples.jsonl --voters tiny-spd --max-new-tokens 64 --out filtered
      mmprobe filter --data questions.jsonl --voters openai/gpt-4o,qwen2.5-vl-7b --rounds 3 --out filtered
      mmprobe filter --data questions.jsonl --voters openai/gpt-4o,qwen2.5-vl-7b --rounds 3 --out filtered --resume
    """
    from mmprobe.benchmarks.judges.registry import open_judge
    from mmprobe.benchmarks.mmreason.benchmark import read
    from mmprobe.benchmarks.mmreason.voting.filtering import VOTES, filter_questions

    if (out / VOTES).exists() and not resume:
        raise InputError(f"{out}: holds votes already; use --resume to go on, or choose another --out")
    check_out(out, [data])
    names = [name.strip() for name in voters.split(",")]
    truth = read(data)

    from mmprobe.benchmarks.mmreason.voting.voters import ask_voters, check_voters

    check_voters(names)
    judging = open_judge(judge, out / "judge.sqlite")
    asked = ask_voters(truth, max_new_tokens, temperature, seed, batch_size, device, dtype)
    settings = {"temperature": temperature, "seed": seed, "max_new_tokens": max_new_tokens}
    about = {"data": str(data), "judge": judge}
    metrics, found = filter_questions(truth, names, asked, out, settings, rounds, about, judging)
    lines = [f"{len(found.kept)} kept, {len(found.removed)} removed of {len(truth.questions)} questions"]
    if found.undecided:
        lines.append(f"{len(found.undecided)} undecided, without any verdict; --resume asks them again")
    if truth.left_out:
        lines.append(f"{len(truth.left_out)} left out, which ask for nothing without their options")
    for voter in names:
        before, after = (
            metrics[f"relevance_rate_{when}[voter={voter}]"].value for when in ("before", "after")
        )
        lines.append(f"{voter}: relevance rate {_shown(before)} before, {_shown(after)} after")
    lines.append(f"All metrics: {out / 'results.json'}")
    values = {name: metric.value for name, metric in metrics.items()}
    result = {"results": str(out / "results.json"), "kept": str(out / "kept.jsonl"), "metrics": values}
    say(result, "\n".join(lines), as_json)


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def clean(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of bench or score mirage-effect, one a model."),
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    text_only: Annotated[
        Path | None,
        typer.Option(help="Results of a model of text alone; what it answers rightly goes as well."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """B-Clean: remove what is answered blindly, and rank anew.

    Each question goes that any of the models answers rightly without its pictures.

    The result folder gets results.json, with the share that chance alone would remove and the rank changes, and
    samples.jsonl, which says of each question whether it is kept and who answers it.

    \b
    Example:
      mmprobe clean results/one results/two --out results/cleaned
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.mirage_effect.b_clean.folders import b_clean_folders

    check_out(out, [*results, *([text_only] if text_only is not None else [])])
    found = b_clean_folders(results, text_only)
    about = {"method": "B-Clean", "models": found.models, "folders": [str(folder) for folder in results]}
    about |= {"text_only": str(text_only)} if text_only else {}
    write_results(out, "mirage-effect", found.metrics, found.records, about)
    lines = [f"{len(found.kept)} of {len(found.records)} questions kept"]
    for name, metric in found.metrics.items():
        ends = "" if metric.low is None else f" [{metric.low:.3f}, {metric.high:.3f}]"
        value = "undefined" if metric.value is None else f"{metric.value:.3f}{ends}"
        lines.append(f"{name:40} {value}")
    lines.append(f"Which ones: {out / 'samples.jsonl'}")
    values = {name: metric.value for name, metric in found.metrics.items()}
    say({"kept": found.kept, "metrics": values}, "\n".join(lines), as_json)
