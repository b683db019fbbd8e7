"""Whether an answer is true."""

from __future__ import annotations

from mmprobe.benchmarks.answers.forms import VALUES
from mmprobe.benchmarks.core.questions import make_question, read_verdict
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.diagnosis.effects import MeasuredPart
from mmprobe.samples import Sample


class TruthRecord(MeasuredPart):
    """Whether an answer is true; None where that is not known."""

    right: bool | None = None


def judge_answer(sample: Sample, text: str) -> bool | None:
    """Return whether an answer is true: in the drawn world, that nothing in it is false; else by the rules of `vqa`.

    None where the true answer is not known or no rule can tell.

    Example:
        >>> judge_answer(Sample(id="a", question="Is it a cat?", answer="no"), "No, it is a dog. I hope it helps.")
        True
    """
    verdict = check_sample(text, sample)
    if verdict is not None:
        return verdict.faithful
    question = make_question(sample)
    read = "unread" if question is None else read_verdict(question, text)
    return None if read == "other" else VALUES[read]  # other words may say the same
