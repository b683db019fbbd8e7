"""Label a run on the synthetic world: which answers are faithful to their pictures."""

from __future__ import annotations

import json

from mmprobe.benchmarks.core.jsonl import write_whole
from mmprobe.benchmarks.synthetic.check import Verdict, check_answer
from mmprobe.cache import Run
from mmprobe.errors import InputError


def label_run(run: Run) -> dict[str, Verdict]:
    """Check every answer against its scene and write the verdicts to the run's `labels.jsonl`.

    Open the run again to see the labels in it.

    Raises:
        InputError: a sample is not of the synthetic world.

    Example:
        >>> label_run(open_run("runs/demo"))["0000-0-same"].faithful        # doctest: +SKIP
        True
    """
    verdicts = {}
    for name in run.ids:
        trace = run[name]
        if (
            trace.sample.answer is None
            or not {"type", "objects", "differences"} <= trace.sample.metadata.keys()
        ):
            raise InputError(
                f"{run.path}: sample {name} does not say what its pictures show, so it cannot be checked"
            )
        verdicts[name] = check_answer(trace.answer, trace.sample.answer, trace.sample.metadata)
    lines = [
        json.dumps({"id": name, "faithful": found.faithful, "correct": found.correct, "errors": found.errors})
        for name, found in verdicts.items()
    ]
    write_whole(run.path / "labels.jsonl", "".join(line + "\n" for line in lines))
    return verdicts
