"""From labels to the metrics of MIRAGE."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.results import Metric, mean_metric, of_samples
from mmprobe.benchmarks.mirage.data import MirageQuestion
from mmprobe.benchmarks.mirage.hints import has_hints
from mmprobe.benchmarks.mirage.labels import MirageLabels, Scores
from mmprobe.benchmarks.mirage.metrics import accuracy, factuality, hallucination_rates, lhs


def metrics_of(questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]) -> dict[str, Metric]:
    """Every metric of the benchmark.

    Returns:
        - accuracy, accuracy_answered; of the questions with hints, accuracy_hinted, hint_gain (the hinted answer's
          correctness less the plain one's) and topic_accuracy
        - f_step, f_claim and what `factuality` gives beside them, of the questions with true steps, true claims
        - with a judge, what `hallucination_rates` and `lhs` give, of the questions with a true chain
        - of each of these but the last two, `NAME[topic=…]` and `NAME[type=…]` where there is more than one

    Example:
        >>> metrics_of(questions, [by_rules(one, responses, None, False) for one in questions])  # doctest: +SKIP
    """
    found = _answers(questions, labels) | _chains(questions, labels) | _judged(questions, labels)
    groups = [f"topic={one.topic}" for one in questions], [f"type={one.type}" for one in questions]
    for names in groups:
        for name in dict.fromkeys(names) if len(set(names)) > 1 else ():
            at = [place for place, mine in enumerate(names) if mine == name]
            mine, told = [questions[place] for place in at], [labels[place] for place in at]
            table = _answers(mine, told) | _chains(mine, told)
            table |= {key: value for key, value in _judged(mine, told).items() if key == "lhs"}
            found |= {f"{key}[{name}]": metric for key, metric in table.items()}
    return found


def _answers(questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]) -> dict[str, Metric]:
    found = of_samples(
        accuracy([one.correct for one in labels], [one.scored("correct") for one in labels]),
        [question.id for question in questions],
    )
    pairs = [(question, one) for question, one in zip(questions, labels, strict=True) if has_hints(question)]
    if not any(one.answered_hinted for _, one in pairs):
        return found
    hinted = [float(one.correct_hinted is True) if one.scored("hinted") else None for _, one in pairs]
    gains = [
        None if again is None or not one.scored("correct") else again - float(one.correct is True)
        for again, (_, one) in zip(hinted, pairs, strict=True)
    ]
    more = {
        "accuracy_hinted": mean_metric(hinted, "higher"),
        "hint_gain": mean_metric(gains, "higher", (-1.0, 1.0)),
    }
    if any(one.classified for _, one in pairs):
        right = [float(one.topic == question.topic) if one.classified else None for question, one in pairs]
        more["topic_accuracy"] = mean_metric(right, "higher")
    return found | of_samples(more, [question.id for question, _ in pairs])


def _chains(questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    pairs = list(zip(questions, labels, strict=True))
    stepped = [(question.id, one.steps) for question, one in pairs if question.steps]
    claimed = [(question.id, one.claims) for question, one in pairs if question.claims]
    for name, rows in (("f_step", stepped), ("f_claim", claimed)):
        if rows:
            found |= of_samples(factuality([row for _, row in rows], name), [known for known, _ in rows])
    return found


def _judged(questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]) -> dict[str, Metric]:
    """Kinds of hallucination and LHS; nothing where nobody was asked."""
    chained = [(question, one) for question, one in zip(questions, labels, strict=True) if chain_of(question)]
    if not any(one.scores is not None for _, one in chained):
        return {}
    ids = [question.id for question, _ in chained]
    found = of_samples(hallucination_rates([one.kinds for _, one in chained]), ids)
    judges = max(len(one.scores or ()) for _, one in chained)
    references = max(len(references_of(question)) for question, _ in chained)
    scores = [_filled(one.scores or (), judges, references) for _, one in chained]
    given = [
        None
        if one.scores is None
        else sum(row is not None for rows in one.scores for row in rows)
        / (judges * len(references_of(question)))
        for question, one in chained
    ]
    return found | of_samples(lhs(scores) | {"lhs_judgements": mean_metric(given, "higher")}, ids)


def _filled(scores: Scores, judges: int, references: int) -> Scores:
    """The scores of one question with gaps, so that all questions have as many judges and references."""
    nothing: list[None] = [None] * references
    rows = [[*row, *nothing[len(row) :]] for row in scores]
    return rows + [nothing] * (judges - len(rows))


def chain_of(question: MirageQuestion) -> str | None:
    """The true reasoning: the first reference, else the steps; None without either.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> chain_of(MirageQuestion(id="1", steps=["Add 2 to 2.", "That is 4."], **fields))
        'Add 2 to 2.\\nThat is 4.'
    """
    return question.references[0] if question.references else "\n".join(question.steps) or None


def references_of(question: MirageQuestion) -> list[str]:
    """The true reasoning and its rewrites, against which a chain is scored.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> references_of(MirageQuestion(id="1", references=["2 and 2 is 4.", "Count: 3, 4."], **fields))
        ['2 and 2 is 4.', 'Count: 3, 4.']
    """
    chain = chain_of(question)
    return question.references or ([] if chain is None else [chain])


def unscored(labels: Sequence[MirageLabels], what: Sequence[str]) -> dict[str, Metric]:
    """Share of the answered questions that a judge left without a verdict, by what it was asked for.

    Example:
        >>> unscored([MirageLabels(True, unscored={"steps": "garbage"})], ["steps"])["unscored_steps"].value
        1.0
    """
    return {
        f"unscored_{name}": mean_metric(
            [float(name in one.unscored) if one.answered else None for one in labels], "lower"
        )
        for name in what
    }
