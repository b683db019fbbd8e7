"""The command `rewrite`: let a model write what MIRAGE's questions lack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    OutFolder,
    Overwrite,
    Resume,
    RetryUnscored,
    check_out,
    print_result,
    split_names,
    warn,
)
from mmprobe.errors import InputError
from mmprobe.ledger import check_earlier, lock_folder

if TYPE_CHECKING:
    from mmprobe.benchmarks.mirage.data import MirageQuestion

_QUESTIONS = "questions.jsonl"
_REPLIES = "replies.sqlite"


def rewrite(
    data: Annotated[Path, typer.Option(help="Questions of MIRAGE.")],
    model: Annotated[str, typer.Option(help="The writer: PROVIDER/MODEL, such as openai/gpt-4o.")],
    out: OutFolder,
    parts: Annotated[
        str, typer.Option(help="What to write, with commas between.")
    ] = "references,hints,topics",
    references: Annotated[int, typer.Option(help="Reasoning chains, the true one included.", min=1)] = 3,
    limit: Annotated[
        int | None, typer.Option(help="Only so many questions, from the first on.", min=1)
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A YAML file of your own `rewrite`, `hint` or `classify`.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    retry_unscored: RetryUnscored = True,
    as_json: AsJson = False,
) -> None:
    """Let a model write references, hints and topics of MIRAGE's questions.

    references: the true chain in other words, for the LHS. hints: the question hint. topics: the topic, by
    another model than the one that bench asks. Who writes hints and topics sees the images. Fields that a question has are kept. OUT gets questions.jsonl, which is
    data of bench mirage, and replies.sqlite, from which --resume continues: no reply is requested twice.

    \b
    Example:
      mmprobe data rewrite --data questions.jsonl --model openai/gpt-4o --out rewritten
      mmprobe data rewrite --data questions.jsonl --model openai/gpt-4o --parts topics --limit 20 --out classified
    """
    from mmprobe.benchmarks.core.prompts import read_prompts
    from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
    from mmprobe.benchmarks.mirage.data import load_questions
    from mmprobe.benchmarks.mirage.prompts import MiragePrompts
    from mmprobe.benchmarks.mirage.rewrites import PARTS, rewrite_questions
    from mmprobe.files import write_atomic

    names = split_names(parts)
    if unknown := [name for name in names if name not in PARTS]:
        raise InputError(f"--parts: {unknown[0]!r} is none of {', '.join(PARTS)}")
    check_out(out, [data.parent])
    file = out / _QUESTIONS
    check_earlier(file, "questions", resume, overwrite, TO_CONTINUE)
    questions = load_questions(data)[:limit]
    texts = read_prompts(MiragePrompts, file=prompts)
    with lock_folder(out, "rewriting into it"):
        if overwrite:
            for earlier in (file, out / _REPLIES):
                earlier.unlink(missing_ok=True)
        writer = ModelJudge(model, out / _REPLIES, JudgeSettings(retry_unscored=retry_unscored))
        rewritten = rewrite_questions(questions, writer, names, references, texts)
        write_atomic(file, "".join(_to_line(question, out) for question in rewritten.questions))
    if rewritten.failures:
        reasons = ", ".join(f"{reason} {count}" for reason, count in rewritten.failures.items())
        warn(f"not everything was written ({reasons}); --resume retries")
    written = {part: rewritten.written[part] for part in names}
    counts = ", ".join(f"{part} of {count}" for part, count in written.items())
    result = {"questions": str(file), "written": written, "failures": dict(rewritten.failures)}
    print_result(result, f"Written for {len(questions)} questions: {counts}\n{file}", as_json)


def _to_line(question: MirageQuestion, folder: Path) -> str:
    """Return the line of a question. Its image paths are relative to the folder."""
    fields: dict[str, Any] = question.model_dump(mode="json", exclude_defaults=True)
    if question.images:
        fields["images"] = [os.path.relpath(image, folder) for image in question.images]
    return json.dumps(fields, ensure_ascii=False) + "\n"
