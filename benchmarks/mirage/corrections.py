"""Ask questions again with a corrected reasoning chain, and measure the change (arXiv:2505.24238, table 4).

The paper's chains are corrected by hand. Here the true chain of the question replaces them. As a control, each
question is also asked again with the model's own chain (figure 6).
"""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.prompts import fill
from mmprobe.benchmarks.core.results import Metric, accuracy_metrics, change_metric, mean_metric, with_ids
from mmprobe.benchmarks.mirage.data import MirageQuestion, true_chain
from mmprobe.benchmarks.mirage.labels import CORRECTED, OWN_CHAIN, UNREAD, MirageLabels


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
    first = [label.correct for _, label in pairs]
    was_first = [label.is_scored("correct") for _, label in pairs]
    corrected, own = ([label.again.get(suffix) for _, label in pairs] for suffix in (CORRECTED, OWN_CHAIN))
    was_corrected, was_own = (
        [_is_scored(label, suffix) for _, label in pairs] for suffix in (CORRECTED, OWN_CHAIN)
    )
    with_first, with_own = (
        [one and other for one, other in zip(was_corrected, asked, strict=True)]
        for asked in (was_first, was_own)
    )
    both = [
        (before is True, after is True) if were else (None, None)
        for before, after, were in zip(first, corrected, with_first, strict=True)
    ]
    metrics = {
        **accuracy_metrics("accuracy_corrected", corrected, was_corrected),
        **accuracy_metrics("accuracy_own_chain", own, was_own),
        "correction_gain": change_metric(corrected, first, "higher", with_first),
        "correction_gain_own_chain": change_metric(corrected, own, "higher", with_own),
        "correction_repairs": mean_metric(
            [after if before is False else None for before, after in both], "higher"
        ),
        "correction_harms": mean_metric(
            [not after if before and after is not None else None for before, after in both], "lower"
        ),
    }
    return with_ids(metrics, [name for name, _ in pairs])


def _is_scored(label: MirageLabels, suffix: str) -> bool:
    return suffix in label.again and label.unscored.get(suffix.removeprefix("--"), UNREAD) == UNREAD
