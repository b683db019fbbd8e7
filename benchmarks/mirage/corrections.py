"""Ask questions again with a corrected reasoning chain, and measure the change (arXiv:2505.24238, table 4).

The paper's chains are corrected by hand. Here the true chain of the question replaces them. As a control, each
question is also asked again with the model's own chain (figure 6).
"""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.prompts import fill
from mmprobe.benchmarks.core.results import Metric, change_metric, mean_metric, with_ids
from mmprobe.benchmarks.mirage.data import MirageQuestion, true_chain
from mmprobe.benchmarks.mirage.labels import CORRECTED, OWN_CHAIN, MirageLabels


def corrected_prompts(
    question: MirageQuestion, prompt: str, response: str | None, again: str
) -> dict[str, str]:
    """Return the prompts that ask a question again, by the suffix of their id.

    `again` has places for both. A question without a true chain or without a first answer (`response`) is not asked again.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> question = MirageQuestion(id="1", references=["2 and 2 is 4."], **fields)
        >>> list(corrected_prompts(question, "2 + 2?", "2 and 2 is 5.", "{question} Use: {chain}"))
        ['--corrected', '--own-chain']
    """
    chain = true_chain(question)
    if chain is None or response is None or not response.strip():
        return {}
    chains = {CORRECTED: chain, OWN_CHAIN: response.strip()}
    return {suffix: fill(again, {"question": prompt, "chain": text}) for suffix, text in chains.items()}


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
    first = [label.correct is True if label.is_scored("correct") else None for _, label in pairs]
    corrected, own = (
        [label.again.get(suffix) is True if _is_scored(label, suffix) else None for _, label in pairs]
        for suffix in (CORRECTED, OWN_CHAIN)
    )
    both = list(zip(first, corrected, strict=True))
    metrics = {
        "accuracy_corrected": mean_metric(corrected, "higher"),
        "accuracy_own_chain": mean_metric(own, "higher"),
        "correction_gain": change_metric(corrected, first, "higher"),
        "correction_gain_own_chain": change_metric(corrected, own, "higher"),
        "correction_repairs": mean_metric(
            [after if before is False else None for before, after in both], "higher"
        ),
        "correction_harms": mean_metric(
            [not after if before and after is not None else None for before, after in both], "lower"
        ),
    }
    return with_ids(metrics, [name for name, _ in pairs])


def _is_scored(label: MirageLabels, suffix: str) -> bool:
    return suffix in label.again and suffix.removeprefix("--") not in label.unscored
