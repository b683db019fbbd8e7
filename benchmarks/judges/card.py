"""A judge's card: how rightly it reads answers whose verdict is known, on which side it errs, and what it costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.claims import parse_count
from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.labelled import FILE, WrittenAnswer, load_labelled
from mmprobe.benchmarks.core.questions import KnownQuestion, make_question, read_verdict
from mmprobe.benchmarks.core.results import (
    Metric,
    change_metric,
    mean_metric,
    metrics_by_group,
    with_groups,
    with_ids,
)
from mmprobe.benchmarks.judges.card_file import card_file, identify
from mmprobe.benchmarks.judges.judge import (
    CountingJudge,
    Judge,
    Judgement,
    JudgeRequest,
    ask_by_name,
    open_judge,
    run_outside_event_loop,
)
from mmprobe.benchmarks.judges.requests import correct_request
from mmprobe.benchmarks.magic.steps import find_cited_regions, split_steps
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.benchmarks.spd_faith.model_labels import label_by_judge
from mmprobe.benchmarks.spd_faith.rule_labels import label_by_rules
from mmprobe.files import hash_file, make_folders, read_json, write_atomic
from mmprobe.samples import Sample

BOXES = 4  # that a labelled answer may cite: R1 to R4


class JudgeCard(NamedTuple):
    """What is known of a judge.

    Attributes:
        judge: its name, as `--judge` takes it.
        identity: a hash of its name, of the weights of a model that is loaded here, and of its prompt.
        metrics: as `card_metrics` computes them.
        cost: `calls`, `tokens` of requests and replies (0 where nobody counts them) and `seconds`.
        labelled: the SHA-256 of the labelled answers, and their number.
    """

    judge: str
    identity: str
    metrics: dict[str, Metric]
    cost: dict[str, float]
    labelled: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the content of the card's file."""
        return {**self._asdict(), "metrics": {name: each.to_json() for name, each in self.metrics.items()}}


def measure_judge(name: str, folder: Path, limit: int | None = None) -> JudgeCard:
    """Let a judge label the shipped answers whose verdict is known, and write its card into a folder.

    It is asked as the benchmarks ask it: for the verdict on an answer to a question, and for the claims of an answer about two
    images and their errors. Cited boxes are read by rules alone. A second call asks only what the first left. `lexical` measures
    the rules; the card of any other judge also holds what the rules read of the same answers.

    Args:
        limit: only so many answers, evenly spaced over all.

    Raises:
        InputError: as `open_judge`.

    Example:
        >>> measure_judge("model:local/qwen2.5-7b", Path("judges")).metrics["read_rightly"]      # doctest: +SKIP
    """
    answers = load_labelled()
    answers = answers[:: max(1, -(-len(answers) // limit))] if limit else answers
    make_folders(folder)
    judge = open_judge(name, folder / "judge.sqlite")
    identity, start = identify(name, judge), time.monotonic()
    by_rules = {each.id: read_by_rules(each) for each in answers}
    counting = None if judge is None else CountingJudge(judge)
    judged = answers if counting is None else [each for each in answers if each.reader != "regions"]
    said: Mapping[str, str | None] = by_rules
    if counting is not None:
        said = run_outside_event_loop(lambda: asyncio.run(_ask(counting, judged)))
    cost = {
        "calls": 0 if counting is None else counting.counts()["calls"],
        "tokens": count_tokens(judge),
        "seconds": round(time.monotonic() - start, 3),
    }
    file = card_file(folder, name, identity)
    if judge is not None and not cost["calls"] and file.is_file():
        cost = read_json(file)["cost"]  # all replies were there: the earlier call paid for them
    labelled = {"sha256": hash_file(FILE), "n": len(judged)}
    metrics = card_metrics(judged, said)
    if judge is not None:
        rules = card_metrics(judged, by_rules)
        metrics |= {f"rules_{name}": rules[name] for name in rules if name.startswith("read_rightly")}
    card = JudgeCard(name, identity, metrics, cost, labelled)
    write_atomic(file, json.dumps(card.to_json(), indent=1) + "\n")
    return card


def read_by_rules(answer: WrittenAnswer) -> str:
    """Return right, wrong or unread as the benchmarks' rules read a labelled answer. A refusal holds no answer.

    Example:
        >>> [read_by_rules(each) for each in load_labelled()[:3]]
        ['right', 'right', 'wrong']
    """
    if answer.reader == "count":
        count = parse_count(answer.response)
        return "unread" if count is None else "right" if str(count) == answer.truth else "wrong"
    if answer.reader == "regions":
        cited = find_cited_regions(split_steps(answer.response), BOXES)
        if cited is None:
            return "unread"
        return "right" if sorted(f"R{number}" for number in cited.regions) == answer.truth else "wrong"
    if answer.reader == "claims":
        pair = _make_pair(answer)
        _, record = label_by_rules(pair, {"find": answer.response})
        read = record["answers"]["find"]
        return _judge_claims(pair, read["understood"], read["errors"], read.get("unread", 0))
    verdict = read_verdict(_make_question(answer), answer.response)
    return {"other": "wrong", "refused": "unread"}.get(verdict, verdict)


def _judge_claims(pair: Pair, understood: bool, errors: Sequence[str | None] | None, unread: int = 0) -> str:
    """Return right where all claims are true and nothing is unread beside them; one that is false makes an answer wrong."""
    if not understood or errors is None:
        return "unread"
    if any(errors):
        return "wrong"
    return "unread" if unread else "right" if errors or not pair.differences else "wrong"


async def _ask(judge: Judge, answers: Sequence[WrittenAnswer]) -> dict[str, str | None]:
    """Return what a judge says of each answer; None where it failed."""
    requests = {each.id: _make_request(each) for each in answers if each.reader != "claims"}
    pairs = {each.id: _make_pair(each) for each in answers if each.reader == "claims"}
    texts = {each.id: {"find": each.response} for each in answers if each.reader == "claims"}
    verdicts = {name: _verdict(each) for name, each in (await ask_by_name(judge, requests)).items()}
    claims, _ = await label_by_judge(list(pairs.values()), texts, judge, show_images=False)
    for (name, _), read in claims.items():
        failed = read.unscored is not None and read.errors is None
        verdicts[name] = None if failed else _judge_claims(pairs[name], read.understood, read.errors)
    return verdicts


def _make_question(answer: WrittenAnswer) -> KnownQuestion:
    truth = [answer.truth] if isinstance(answer.truth, str) else [str(each) for each in answer.truth]
    about: dict[str, Any] = {"answers": truth[1:]} | ({"options": answer.options} if answer.options else {})
    question = make_question(Sample(id=answer.id, question=answer.question, answer=truth[0], metadata=about))
    assert question is not None
    return question


def _make_pair(answer: WrittenAnswer) -> Pair:
    differences = [
        Difference(**each | {"category": find_category(each["category"]) or each["category"]})
        for each in answer.truth
        if isinstance(each, dict)
    ]
    return Pair(answer.id, tuple(differences))


def _make_request(answer: WrittenAnswer) -> JudgeRequest[Any]:
    question = _make_question(answer)
    return correct_request(
        answer.question, answer.response, " or ".join(question.accepted), question.options or None
    )


_NAMES = {True: "right", False: "wrong", None: "unread"}


def _verdict(judgement: Judgement[bool | None]) -> str | None:
    return None if judgement.items is None else _NAMES[judgement.items[0]]


def card_metrics(answers: Sequence[WrittenAnswer], said: Mapping[str, str | None]) -> dict[str, Metric]:
    """Compute how rightly verdicts are given; all counts and intervals are over sets of answers to one question with one truth.

    - `read_rightly`: share of the answers with the verdict of a careful person, in all and by kind. An answer that holds none
      is called unread or wrong; one that was left unscored is not read rightly.
    - `bias`: share called right less the share that is right, of the answers that got a verdict.
    - `false_right`, `false_wrong`: share called right of those that are not, and called wrong of those that are right.
    - `unscored`: share without a verdict.

    Args:
        said: the verdict by the answer's id; None where the judge gave none.

    Example:
        >>> some = load_labelled()[:6]
        >>> card_metrics(some, {each.id: each.verdict for each in some})["read_rightly"].value
        1.0
    """

    def compute(members: Sequence[int]) -> dict[str, Metric]:
        chosen = [answers[index] for index in members]
        verdicts = [said.get(each.id) for each in chosen]
        pairs = list(zip(chosen, verdicts, strict=True))
        called_right = [None if verdict is None else float(verdict == "right") for verdict in verdicts]
        metrics = {
            "read_rightly": mean_metric([float(_agrees(each, verdict)) for each, verdict in pairs], "higher"),
            "bias": change_metric(
                called_right, [float(each.verdict == "right") for each in chosen], "neither"
            ),
            "false_right": mean_metric(
                [
                    right if each.verdict != "right" else None
                    for each, right in zip(chosen, called_right, strict=True)
                ],
                "lower",
            ),
            "false_wrong": mean_metric(
                [
                    None if verdict is None or each.verdict != "right" else float(verdict == "wrong")
                    for each, verdict in pairs
                ],
                "lower",
            ),
            "unscored": mean_metric([float(verdict is None) for verdict in verdicts], "lower"),
        }
        return with_ids(metrics, [each.id for each in chosen])

    kinds = [each.kind for each in answers]
    by_kind = metrics_by_group(
        "kind", kinds, lambda members: {"read_rightly": compute(members)["read_rightly"]}
    )
    asked = {(each.question, str(each.truth)): number for number, each in enumerate(answers)}
    groups = {each.id: asked[each.question, str(each.truth)] for each in answers}
    return with_groups(compute(range(len(answers))) | by_kind, groups)


def _agrees(answer: WrittenAnswer, said: str | None) -> bool:
    return said == answer.verdict or (answer.verdict == "unread" and said == "wrong")


def count_tokens(judge: Judge | None) -> int:
    """Return the tokens of all requests and replies of a judge so far; 0 where nobody counts them."""
    members = getattr(judge, "members", None) or [judge]
    return sum(getattr(member, "tokens", 0) for member in members)
