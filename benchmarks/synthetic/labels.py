"""Label the answers of a run on the synthetic world as faithful or not."""

from __future__ import annotations

import json

from mmprobe.benchmarks.core.jsonl import write_atomic
from mmprobe.benchmarks.synthetic.check import Verdict, check_answer
from mmprobe.cache import Run
from mmprobe.errors import InputError


def label_run(run: Run) -> dict[str, Verdict]:
    """Check every answer against its scene, and write the verdicts to `labels.jsonl` of the run.

    Open the run again to read the labels from it.

    Raises:
        InputError: a sample is not from the synthetic world.
    """
    verdicts = {}
    for name in run.ids:
        trace = run[name]
        if (
            trace.sample.answer is None
            or not {"type", "objects", "differences"} <= trace.sample.metadata.keys()
        ):
            raise InputError(
                f"{run.path}: sample {name} lacks the contents of its images, which a check needs"
            )
        verdicts[name] = check_answer(trace.answer, trace.sample.answer, trace.sample.metadata)
    lines = [
        json.dumps(
            {"id": name, "faithful": verdict.faithful, "correct": verdict.correct, "errors": verdict.errors}
        )
        for name, verdict in verdicts.items()
    ]
    write_atomic(run.path / "labels.jsonl", "".join(line + "\n" for line in lines))
    return verdicts
