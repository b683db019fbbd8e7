"""The command `filter`: remove the questions that models answer without the images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    JudgeName,
    Limit,
    RetryUnscored,
    check_out,
    metric_values,
    print_result,
    split_names,
    warn,
)
from mmprobe.ledger import check_earlier, lock_folder
from mmprobe.settings import AskSettings, DataSettings, FolderSettings, ModelSettings


def filter_by_votes(
    data: Annotated[Path, typer.Option(help="Questions of MMReason, or samples.jsonl of make-pairs.")],
    voters: Annotated[
        str,
        typer.Option(
            help="Names with commas between: local models, or PROVIDER/MODEL such as openai/gpt-4o."
        ),
    ],
    folder: FolderSettings,
    asking: AskSettings = AskSettings(temperature=0.7, max_new_tokens=1024),  # noqa: B008
    loading: ModelSettings = ModelSettings(),  # noqa: B008
    limit: Limit = None,
    rounds: Annotated[int, typer.Option(help="Answers of each voter to a question.", min=1)] = 2,
    judge: JudgeName = "lexical",
    retry_unscored: RetryUnscored = True,
    as_json: AsJson = False,
) -> None:
    """Remove the questions that models answer without the images.

    Every voter answers every question without its images, in rounds. A question is removed if any voter is right
    once. Options of multiple-choice questions are removed first. The result folder gets kept.jsonl and
    removed.jsonl, which are data of bench mmreason again; results.json, with relevance rates before and
    after; and votes.jsonl, from which --resume continues.

    \b
    Examples:
      mmprobe data filter --data pairs/samples.jsonl --voters tiny-spd --max-new-tokens 64 --out filtered
      mmprobe data filter --data questions.jsonl --limit 100 --voters openai/gpt-4o,qwen2.5-vl-7b --rounds 3 \\
        --out filtered
    """
    from mmprobe.benchmarks.core.benchmark import BENCHMARKS
    from mmprobe.benchmarks.core.evaluate import load_truth
    from mmprobe.benchmarks.judges.judge import open_judge
    from mmprobe.benchmarks.mmreason.voting import VOTERS, VOTES, filter_questions

    out = folder.out
    check_earlier(out / VOTES, "votes", folder.resume, folder.overwrite, TO_CONTINUE)
    check_out(out, [data])
    names = split_names(voters)
    with lock_folder(out, "voting into it"):
        if folder.overwrite:
            (out / VOTES).unlink(missing_ok=True)
            (out / VOTERS).unlink(missing_ok=True)
        voted = (out / VOTES).exists()
        truth = load_truth(
            BENCHMARKS["mmreason"](), DataSettings(data=data, limit=limit), out / "data", kept=voted
        )

        from mmprobe.benchmarks.mmreason.voting import ask_voters, check_voters

        check_voters(names, out, loading.dtype)
        opened_judge = open_judge(judge, out / "judge.sqlite", retry_unscored)
        ask = ask_voters(truth, asking, loading, out=out)
        recorded = asking.record()
        settings = {name: recorded[name] for name in ("temperature", "seed", "max_new_tokens")}
        about = {"data": str(data), "judge": judge}
        metrics, filtered = filter_questions(truth, names, ask, out, settings, rounds, about, opened_judge)
    lines = [
        f"{len(filtered.kept)} kept, {len(filtered.removed)} removed of {len(truth.questions)} questions"
    ]
    if filtered.undecided:
        lines.append(
            f"{len(filtered.undecided)} undecided, without any verdict; --resume retries them, and --judge reads "
            "answers that rules cannot"
        )
    if truth.left_out:
        lines.append(f"{len(truth.left_out)} left out: without their options they are not questions")
    for voter in names:
        before, after = (metrics[f"relevance_rate_{when}[voter={voter}]"] for when in ("before", "after"))
        lines.append(f"{voter}: relevance rate {before} before, {after} after")
    lines.append(f"All metrics: {out / 'results.json'}")
    result = {
        "results": str(out / "results.json"),
        "kept": str(out / "kept.jsonl"),
        "metrics": metric_values(metrics),
    }
    print_result(result, "\n".join(lines), as_json)
    if filtered.unanswered:
        warn(f"{filtered.unanswered} votes did not come; --resume asks for them again")
        raise typer.Exit(1)
