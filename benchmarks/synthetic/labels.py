"""Label the answers of a run on the synthetic world as faithful or not."""

from __future__ import annotations

import json
from contextlib import suppress

from mmprobe.benchmarks.core.jsonl import write_atomic
from mmprobe.benchmarks.synthetic.check import Verdict, check_answer
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def label_run(run: Run) -> dict[str, Verdict]:
    """Check every answer against its scene, and write the verdicts to `labels.jsonl`, read when it is opened."""
    verdicts = {}
    for name in run.ids:
        trace = run[name]
        verdict = check_sample(trace.answer, trace.sample)
        if verdict is None:
            raise InputError(
                f"{run.path}: sample {name} lacks the contents of its images, which a check needs"
            )
        verdicts[name] = verdict
    lines = [
        json.dumps(
            {
                "id": name,
                "faithful": verdict.faithful,
                "correct": verdict.correct,
                "errors": verdict.errors,
                "false_spans": verdict.spans,
            }
        )
        for name, verdict in verdicts.items()
    ]
    write_atomic(run.path / "labels.jsonl", "".join(line + "\n" for line in lines))
    return verdicts


def check_sample(text: str, sample: Sample) -> Verdict | None:
    """Check an answer to a sample of the synthetic world; return None for samples from elsewhere.

    Example:
        >>> check_sample("Yes.", Sample(id="a", question="Is there a star?")) is None
        True
    """
    if sample.answer is None or not {"type", "objects", "differences"} <= sample.metadata.keys():
        return None
    with suppress(ValueError):  # a question of another kind
        return check_answer(text, sample.answer, sample.metadata)
    return None
