"""Label MIRAGE's answers by judges: answers, steps, claims, hallucinations, and LHS scores."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, create_model

from mmprobe.benchmarks.answers.forms import last_part
from mmprobe.benchmarks.answers.numbers import THRESHOLD
from mmprobe.benchmarks.core.prompts import NOTICE, default_prompts, find_placeholders
from mmprobe.benchmarks.judges import (
    Judge,
    Judgement,
    JudgeRequest,
    ask_by_name,
    ask_who_may_see,
    first_item,
)
from mmprobe.benchmarks.judges.requests import (
    StrictReply,
    UnusableReply,
    any_reader,
    correct_request,
    read_reply,
    reader,
)
from mmprobe.benchmarks.mirage.data import MAX_ITEMS, MirageQuestion, true_chain, true_references
from mmprobe.benchmarks.mirage.labels import (
    DIMENSIONS,
    HINTED,
    KINDS,
    Extraction,
    Kind,
    LhsScores,
    Matches,
    MatchLabel,
    MirageLabels,
)
from mmprobe.benchmarks.mirage.prompts import MiragePrompts

_IMAGE = "<image>"  # in a prompt: the judge is shown the image, as figure 10 says
REQUESTS = ("correct", "hinted", "extraction", "steps", "claims", "kinds", "lhs")
"""The kinds of request, as the keys of `MirageLabels.unscored` name them."""


# Each reader raises `UnusableReply` where the form is wrong.
_read_marked = reader(marked=str)
_read_matches = reader(predicted=list[MatchLabel], true=list[MatchLabel])
_SCORE = Annotated[int, Field(ge=1, le=5)]


class _PaperVerdict(StrictReply):
    result: Literal["CONFIRM", "HALLUCINATION"]


class _PaperScore(StrictReply):
    score: _SCORE


_PAPER_KINDS = create_model(
    "PaperKinds", __base__=StrictReply, **{kind.capitalize(): (_PaperVerdict, ...) for kind in KINDS}
)  # type: ignore[call-overload]
_PAPER_DIMENSIONS = tuple(
    name.replace("_", " ").title().replace("Conceptual", "Conceptual Reasoning") for name in DIMENSIONS
)
_PAPER_SCORES = create_model(
    "PaperScores",
    __base__=StrictReply,
    **{
        name: (_PaperScore, Field(alias=title))
        for name, title in zip(DIMENSIONS, _PAPER_DIMENSIONS, strict=True)
    },
)  # type: ignore[call-overload]


def _read_paper_kinds(reply: str) -> tuple[bool, ...]:
    verdicts = read_reply(reply, _PAPER_KINDS)
    return tuple(getattr(verdicts, kind.capitalize()).result == "HALLUCINATION" for kind in KINDS)


def _read_paper_scores(reply: str) -> tuple[int, ...]:
    scores = read_reply(reply, _PAPER_SCORES)
    return tuple(getattr(scores, name).score for name in DIMENSIONS)


read_hallucinations = any_reader(reader(**dict.fromkeys(KINDS, bool)), _read_paper_kinds)
"""Reads one verdict a kind, in our form or in that of figure 10."""
read_scores = any_reader(reader(**dict.fromkeys(DIMENSIONS, _SCORE)), _read_paper_scores)
"""Reads a score from 1 to 5 a dimension, in our form or in that of figure 11."""

_Judged = dict[tuple[str, str], Judgement[Any]]
"""Judgements by question id and kind of request."""


def label_by_judge(
    questions: Sequence[MirageQuestion],
    responses: Mapping[str, str],
    rule_labels: Sequence[MirageLabels],
    judge: Judge,
    threshold: float = THRESHOLD,
    decides: Literal["unread", "all"] = "unread",
    judges_silence: bool = False,
    prompts: MiragePrompts | None = None,
) -> list[MirageLabels]:
    """Replace the labels by rules with those of a judge.

    - The judge compares free-form answers with the true answer. With `unread` it does so for multiple-choice
      and approximate answers that the rules could not read; with `all` for all of them, as in the paper.
    - The judge extracts steps and claims without seeing the truth. Then it matches them with the true ones,
      in one request for the steps and one for the claims.
    - For kinds of hallucination and for scores it sees the whole response and the true chain.
    - An empty response needs no request. With `judges_silence`, as in the released code, its kinds and scores are judged
      as those of a response that gives no answer.

    In an ensemble, the first judge extracts, because two judges would not list the same items. The majority
    gives the labels. Each judge scores alone: these are the M judges of the LHS.

    `responses` are all responses by id, and `threshold` is the largest relative error of an approximate answer.
    """
    prompts = prompts or default_prompts(MiragePrompts)
    texts = {name: text for name, text in responses.items() if text.strip()}
    silent = {name for name, text in responses.items() if judges_silence and not text.strip()}
    answers = {
        (question.id, suffix.removeprefix("--") or "correct"): correct_request(
            question.question,
            texts[name],
            question.answer,
            question.choices,
            threshold if question.type == "approximate" else None,
            prompt=prompts.correct,
        )
        for question, labels in zip(questions, rule_labels, strict=True)
        for suffix, by_rules in (("", labels.correct), (HINTED, labels.correct_hinted), *labels.again.items())
        if (name := question.id + suffix) in texts
        and (question.type == "free_form" or decides == "all" or by_rules is None)
    }
    judged, scores = asyncio.run(_ask_judge(questions, texts, answers, judge, prompts, silent))
    by_question: dict[str, dict[str, Judgement[Any]]] = {question.id: {} for question in questions}
    for (name, request), judgement in judged.items():
        by_question[name][request] = judgement
    return [
        _make_labels(question, labels, by_question[question.id], scores.get(question.id))
        for question, labels in zip(questions, rule_labels, strict=True)
    ]


async def _ask_judge(
    questions: Sequence[MirageQuestion],
    texts: Mapping[str, str],
    answer_requests: Mapping[tuple[str, str], JudgeRequest[bool | None]],
    judge: Judge,
    prompts: MiragePrompts,
    silent: Set[str] = frozenset(),
) -> tuple[_Judged, dict[str, list[list[Judgement[int]]]]]:
    """Return the judgements, and those of the scores as [judge][reference] by question id."""
    judged: _Judged = dict(await ask_by_name(judge, answer_requests))
    answered = [question for question in questions if question.id in texts]
    annotated = [question for question in answered if question.steps or question.claims]
    tagged = NOTICE not in find_placeholders(prompts.extract)
    extractions = {
        (question.id, "extraction"): JudgeRequest(
            prompts.extract,
            _request_data(question, texts[question.id]),
            lambda reply: (read_extraction(reply, tagged),),
        )
        for question in annotated
    }
    judged |= await ask_by_name(_judge_members(judge)[0], extractions)
    matches: dict[tuple[str, str], JudgeRequest[Any]] = {}
    for question in annotated:
        extraction = first_item(judged[question.id, "extraction"])
        for kind in ("steps", "claims"):
            if extraction and (true := getattr(question, kind)):
                matches[question.id, kind] = _match_request(
                    question, getattr(extraction, kind), true, prompts.match
                )
    judged |= await ask_by_name(judge, matches)
    chains = {**texts, **dict.fromkeys(silent, "")}
    with_chain = [question for question in questions if question.id in chains and true_chain(question)]
    seen, told = (
        {
            (question.id, "kinds"): _kinds_request(
                question, chains[question.id], prompts.hallucinations, shown
            )
            for question in with_chain
        }
        for shown in (_IMAGE in prompts.hallucinations, False)
    )
    judged |= await ask_who_may_see(judge, seen, told)
    return judged, await _ask_scores(_judge_members(judge), with_chain, chains, prompts.scores)


def _judge_members(judge: Judge) -> list[Judge]:
    """Return the judges of an ensemble, or the judge itself."""
    return list(getattr(judge, "members", ())) or [judge]


async def _ask_scores(
    judges: Sequence[Judge], questions: Sequence[MirageQuestion], texts: Mapping[str, str], prompt: str
) -> dict[str, list[list[Judgement[int]]]]:
    """Ask every judge to score every chain. Return [judge][reference] by question id."""
    requests = [
        (
            question.id,
            JudgeRequest(prompt, _request_data(question, texts[question.id], reference), read_scores),
        )
        for question in questions
        for reference in true_references(question)
    ]
    scores: dict[str, list[list[Judgement[int]]]] = {
        question.id: [[] for _ in judges] for question in questions
    }
    for number, judge in enumerate(judges):
        judgements = await judge.ask([request for _, request in requests])
        for (question_id, _), judgement in zip(requests, judgements, strict=True):
            scores[question_id][number].append(judgement)
    return scores


def _make_labels(
    question: MirageQuestion,
    rule_labels: MirageLabels,
    judged: Mapping[str, Judgement[Any]],
    score_judgements: Sequence[Sequence[Judgement[int]]] | None,
) -> MirageLabels:
    unscored: dict[str, str] = {
        request: judgement.unscored for request, judgement in judged.items() if judgement.unscored
    }
    scores: LhsScores | None = None
    if score_judgements is not None:
        scores = [[judgement.items for judgement in row] for row in score_judgements]
        if not any(row for rows in scores for row in rows):
            unscored["lhs"] = next(
                judgement.unscored for row in score_judgements for judgement in row if judgement.unscored
            )
    labels = replace(
        rule_labels,
        correct=_correct_label(judged.get("correct"), rule_labels.correct),
        correct_hinted=_correct_label(judged.get("hinted"), rule_labels.correct_hinted),
        again={
            suffix: _correct_label(judged.get(suffix.removeprefix("--")), by_rules)
            for suffix, by_rules in rule_labels.again.items()
        },
        kinds=_kind_verdicts(judged.get("kinds")),
        scores=scores,
        unscored=unscored,
    )
    if rule_labels.answered and "extraction" not in judged and (question.steps or question.claims):
        return replace(labels, extraction=Extraction((), ()))  # an empty response
    return replace(
        labels,
        extraction=first_item(judged.get("extraction")),
        steps=_split_matches(judged.get("steps"), len(question.steps)),
        claims=_split_matches(judged.get("claims"), len(question.claims)),
    )


def _correct_label(judgement: Judgement[Any] | None, rule_label: bool | None) -> bool | None:
    return rule_label if judgement is None else first_item(judgement)


def _split_matches(judgement: Judgement[Any] | None, true: int) -> Matches | None:
    """Split the labels of a match request. The last `true` labels are those of the true items."""
    if judgement is None or judgement.items is None:
        return None
    return Matches(judgement.items[: len(judgement.items) - true], judgement.items[-true:])


def _kind_verdicts(judgement: Judgement[bool] | None) -> dict[Kind, bool] | None:
    if judgement is None or judgement.items is None:
        return None
    return dict(zip(KINDS, judgement.items, strict=True))


def _request_data(question: MirageQuestion, response: str, reference: str | None = None) -> dict[str, Any]:
    data: dict[str, Any] = {"question": question.question}
    data |= ({"options": question.choices} if question.choices else {}) | {"response": response}
    return data | ({} if reference is None else {"reference": reference})


def _match_request(
    question: MirageQuestion, predicted: Sequence[str], true: Sequence[str], prompt: str
) -> JudgeRequest[Any]:
    data = {"question": question.question, "predicted": list(predicted), "true": list(true)}
    return JudgeRequest(prompt, data, partial(_read_joined_matches, predicted=len(predicted), true=len(true)))


def _read_joined_matches(reply: str, predicted: int, true: int) -> tuple[Any, ...]:
    matches = read_matches(reply, predicted, true)
    return matches.predicted + matches.true


def _kinds_request(question: MirageQuestion, response: str, prompt: str, shown: bool) -> JudgeRequest[bool]:
    data = _request_data(question, response) | {"true": question.answer, "reference": true_chain(question)}
    images = tuple(question.images) if shown else ()
    return JudgeRequest(prompt, data, read_hallucinations, images)


def read_extraction(reply: str, tagged: bool = False) -> Extraction:
    """Return the steps and claims between the tags of a reply, 1 to 10 of each (section 3.2 and figure 8).

    `tagged`: the reply is the text itself, as in the paper, and not JSON.

    Example:
        >>> read_extraction('{"marked": "<step>Halve 6.</step> <claim>It is 3.</claim>"}').claims
        ('It is 3.',)
    """
    (marked,) = (last_part(reply),) if tagged else _read_marked(reply)
    return Extraction(_find_tagged(marked, "step"), _find_tagged(marked, "claim"))


# `<step>...</step>` and `<step>Your step here</step>` only repeat the form.
_REPEATS_FORM = re.compile(
    r"(?:\W|\b(?:your|the|an?|of|text|insert|write|first|second|next|step|claim|goes|here)\b)*",
    re.IGNORECASE,
)


def _find_tagged(text: str, tag: Literal["step", "claim"]) -> tuple[str, ...]:
    items = []
    open_tag: tuple[str, int] | None = None  # name, and the place where its text begins
    for match in re.finditer(r"<(/?)(step|claim)>", text, re.IGNORECASE):
        is_closing = match.group(1) == "/"
        name = match.group(2).lower()
        if is_closing != (open_tag is not None) or (open_tag is not None and open_tag[0] != name):
            raise UnusableReply(f"a tag at character {match.start()} does not pair with the tag before it")
        if open_tag is None:
            open_tag = (name, match.end())
            continue
        item = " ".join(text[open_tag[1] : match.start()].split())
        if not item:
            raise UnusableReply(f"an empty <{name}> stands at character {open_tag[1]}")
        if name == tag and not _REPEATS_FORM.fullmatch(item):
            items.append(item)
        open_tag = None
    if open_tag is not None:
        raise UnusableReply(f"a <{open_tag[0]}> is not closed")
    if not 1 <= len(items) <= MAX_ITEMS:
        raise UnusableReply(f"it holds {len(items)} <{tag}> tags, 1 to {MAX_ITEMS} are asked for")
    return tuple(items)


def _read_paper_matches(reply: str) -> tuple[list[MatchLabel], list[MatchLabel]]:
    """Return the labels of a reply in the form of figure 9."""
    found = []
    for tag in ("pred_match", "gt_match"):
        lists = re.findall(rf"<{tag}>([^<]*)</{tag}>", last_part(reply), re.IGNORECASE)
        labels = (
            re.findall(r"\w+", lists[-1].upper()) if lists else []
        )  # also in brackets, and with a comma too many
        if not labels or not set(labels) <= set(get_args(MatchLabel)):
            raise UnusableReply(f"it has no <{tag}> with labels")
        found.append(labels)
    return found[0], found[1]


def read_matches(reply: str, predicted: int, true: int) -> Matches:
    """Return the labels of so many predicted and true items (figure 9)."""
    of_predicted, of_true = any_reader(_read_matches, _read_paper_matches)(reply)
    for labels, count, name in ((of_predicted, predicted, "predicted"), (of_true, true, "true")):
        if len(labels) != count:
            raise UnusableReply(f"{name!r} holds {len(labels)} labels for {count} items")
    return Matches(tuple(of_predicted), tuple(of_true))
