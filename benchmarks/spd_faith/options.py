"""Options of SPD-Faith Bench: the paper's own questions, its profiles of metrics, and images for the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mmprobe.benchmarks.core.benchmark import Benchmark, BenchmarkOptions
from mmprobe.benchmarks.spd_faith.metrics import PROFILES, Profile

if TYPE_CHECKING:
    from mmprobe.benchmarks.spd_faith.benchmark import SpdFaithTruth

# Appendix B.2.3, verbatim; the form for one difference is ours.
PAPER_QUESTIONS = {"same": "Are the two pictures the same?", "different": "Are the two pictures different?"}
PAPER_FIND = "There are {} differences in the picture. Can you find them?"
PAPER_FIND_ONE = "There is one difference in the picture. Can you find it?"


class SpdFaithOptions(BenchmarkOptions):
    """The benchmark's own options."""

    wording: Literal["default", "paper"] = Field(
        "default",
        description="`paper`: its two binary questions and its `find` verbatim; the other questions stay.",
    )
    profile: Profile = Field("paper-main", description="which metrics are printed first")
    judge_images: bool = Field(
        False,
        description="show both images to a judge that is a model where it matches claims (equation 14)",
    )

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return the benchmark with these options in force."""
        configured = replace(benchmark, headline=PROFILES[self.profile])
        if self.wording == "paper":
            configured = replace(configured, read_data=_in_paper_wording(benchmark.read_data))
        if self.judge_images:
            score_with_judge: Any = partial(benchmark.score_with_judge, show_images=True)  # type: ignore
            configured = replace(configured, score_with_judge=score_with_judge)
        return configured


def _in_paper_wording(read: Callable[[Path], SpdFaithTruth]) -> Callable[[Path], SpdFaithTruth]:
    """Return a reader of data whose questions are the paper's."""

    def read_and_reword(path: Path) -> SpdFaithTruth:
        truth = read(path)
        samples = [
            sample.model_copy(update={"question": PAPER_QUESTIONS.get(kind, sample.question)})
            for sample in truth.samples
            for kind in [truth.questions[sample.id][1]]
        ]
        return truth._replace(samples=samples, find_texts=(PAPER_FIND, PAPER_FIND_ONE))

    return read_and_reword
