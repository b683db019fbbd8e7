"""Ask questions again with a corrected reasoning chain, and measure the change (arXiv:2505.24238, table 4).

The paper's chains are corrected by hand. Here the true chain of the question stands in. As a control, each
question is also asked again with the model's own chain (figure 6).
"""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.benchmarks.mirage.data import MirageQuestion, true_chain
from mmprobe.benchmarks.mirage.labels import CORRECTED, OWN_CHAIN, MirageLabels

# Ours; the paper does not print how it asks the models to reconsider.
_AGAIN = (
    "{question}\n\nThis reasoning was given:\n{chain}\n\nReconsider your answer with it, and answer again."
)


def corrected_prompts(question: MirageQuestion, prompt: str, response: str | None) -> dict[str, str]:
    """Return the prompts that ask a question again, by the suffix of their id.

    Args:
        question: the question; one without a true chain is not asked again.
        prompt: the prompt of its first asking.
        response: the model's first answer; without one, the question is not asked again.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> question = MirageQuestion(id="1", references=["2 and 2 is 4."], **fields)
        >>> list(corrected_prompts(question, "2 + 2?", "2 and 2 is 5."))
        ['--corrected', '--own-chain']
    """
    chain = true_chain(question)
    if chain is None or response is None or not response.strip():
        return {}
    chains = {CORRECTED: chain, OWN_CHAIN: response.strip()}
    return {suffix: _AGAIN.format(question=prompt, chain=text) for suffix, text in chains.items()}


def correction_metrics(
    questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]
) -> dict[str, Metric]:
    """Return what a corrected chain changes, over the questions that were asked again; empty without any.

    Returns:
        - accuracy_corrected, accuracy_own_chain: share of right answers after each chain
        - correction_gain: correctness after the corrected chain minus that of the first answer, question by
          question; correction_gain_own_chain: minus that after the model's own chain
        - correction_repairs: share of the wrong first answers that are right after the corrected chain
        - correction_harms: share of the right first answers that are wrong after it
    """
    pairs = [(question.id, label) for question, label in zip(questions, labels, strict=True) if label.again]
    if not pairs:
        return {}
    first = [_value(label.correct, label.is_scored("correct")) for _, label in pairs]
    corrected, own = (
        [_value(label.again.get(suffix), _is_scored(label, suffix)) for _, label in pairs]
        for suffix in (CORRECTED, OWN_CHAIN)
    )
    metrics = {
        "accuracy_corrected": mean_metric(corrected, "higher"),
        "accuracy_own_chain": mean_metric(own, "higher"),
        "correction_gain": mean_metric(_subtract(corrected, first), "higher", (-1.0, 1.0)),
        "correction_gain_own_chain": mean_metric(_subtract(corrected, own), "higher", (-1.0, 1.0)),
        "correction_repairs": mean_metric(
            [after if before == 0 else None for before, after in zip(first, corrected, strict=True)], "higher"
        ),
        "correction_harms": mean_metric(
            [
                None if before != 1 or after is None else 1 - after
                for before, after in zip(first, corrected, strict=True)
            ],
            "lower",
        ),
    }
    return with_ids(metrics, [name for name, _ in pairs])


def _is_scored(label: MirageLabels, suffix: str) -> bool:
    return suffix in label.again and suffix.removeprefix("--") not in label.unscored


def _value(correct: bool | None, scored: bool) -> float | None:
    return float(correct is True) if scored else None


def _subtract(values: Sequence[float | None], baseline: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a - b for a, b in zip(values, baseline, strict=True)]
