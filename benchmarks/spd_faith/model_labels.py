"""Label answers with a judge that is a model, or several models, and score them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.answers.claims import Claim, parse_count
from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.yes_no import read_yes_no as by_words
from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.judges import (
    Judge,
    Judgement,
    JudgeRequest,
    ask_by_name,
    ask_who_may_see,
    first_item,
)
from mmprobe.benchmarks.judges.ensemble import leave_unscored, majority_labels, merge, scored_items
from mmprobe.benchmarks.judges.requests import list_reader
from mmprobe.benchmarks.spd_faith.data import Difference, Pair, describe_change, name_place
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, group_by_pair
from mmprobe.benchmarks.spd_faith.match import Agreement, ClaimError, pair_claims
from mmprobe.benchmarks.spd_faith.metrics import compute_metrics, make_record
from mmprobe.benchmarks.spd_faith.prompts import (
    JudgedClaim,
    Match,
    SpdFaithPrompts,
    read_claims,
    read_matches,
    read_number,
    read_yes_no,
)
from mmprobe.benchmarks.spd_faith.rule_labels import unread_share
from mmprobe.benchmarks.synthetic.scene import EDIT_TYPES, SHAPES
from mmprobe.samples import check_image

MAX_COMPARED = 12  # claims of each binary answer, our choice: at most 144 comparisons a pair

_QUESTIONS = {
    "same": "Are the two pictures the same?",
    "different": "Are the two pictures different?",
    "count": "How many differences are there?",
}
_Key = tuple[str, str]  # pair id and question type
_PairedClaims = list[tuple[int, int, Agreement]]


def score_by_judge(
    pairs: Sequence[Pair],
    responses: Iterable[Mapping[str, Any]],
    judge: Judge,
    show_images: bool | None = None,
    prompts: SpdFaithPrompts | None = None,
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Score answers as `score_by_rules` does, with a judge that extracts, matches and compares the claims.

    The judge lists the claims of each answer without seeing the truth. It matches each claim with a true
    difference, or names its error; a caption of the whole pair is shown beside the differences. With `show_images` it
    sees both images then; with None it does where it can, and a judge that cannot see is asked in words alone. It
    compares each claim of one binary answer with each of the other;
    `pair_claims` then pairs them. A second claim of the same true difference is a quantity error (our choice).
    Rules read yes, no and numbers, and the judge reads what they cannot. An answer that it failed at lowers
    the coverage of the metrics that need it, also of `_unparsed_0`.
    """
    answers = group_by_pair(pairs, responses)
    answered_pairs = [pair for pair in pairs if pair.id in answers]
    answer_claims, agreement = asyncio.run(
        label_by_judge(answered_pairs, answers, judge, show_images, prompts)
    )
    stated = asyncio.run(_read_unread(answers, judge, prompts or default_prompts(SpdFaithPrompts)))
    labels, records = [], []
    for pair in answered_pairs:
        pair_answers = answers[pair.id]
        pair_answer_claims = {name: answer_claims[pair.id, name] for name in pair_answers if name != "count"}
        paired, every = agreement.get(pair.id, ([], []))
        own_stated = {kind: stated[pair.id, kind] for kind in pair_answers if (pair.id, kind) in stated}
        pair_labels, record = make_record(pair, pair_answers, pair_answer_claims, paired, every, own_stated)
        labels.append(pair_labels)
        records.append(record)
    return compute_metrics(labels) | {"unread": unread_share(records)}, records


async def label_by_judge(
    pairs: Sequence[Pair],
    answers: Mapping[str, Mapping[str, str]],
    judge: Judge,
    show_images: bool | None = None,
    prompts: SpdFaithPrompts | None = None,
) -> tuple[dict[_Key, AnswerClaims], dict[str, tuple[_PairedClaims, Sequence[Agreement]]]]:
    """Return the claims of each answer, and how the claims of the two binary answers of each pair agree.

    This is two lists for each pair: the claims paired one to one, and the labels of all pairs of claims.
    """
    prompts = prompts or default_prompts(SpdFaithPrompts)
    texts = {
        (pair.id, question_type): text
        for pair in pairs
        for question_type, text in answers[pair.id].items()
        if question_type != "count"
    }
    extracted = await ask_by_name(judge, {key: claims_request(text, prompts) for key, text in texts.items()})
    claims = {key: judgement.items for key, judgement in extracted.items() if judgement.items is not None}
    truth = {pair.id: _describe_differences(pair) for pair in pairs}
    captions = {pair.id: pair.caption for pair in pairs}
    images = {pair.id: pair.images if show_images or show_images is None else () for pair in pairs}
    if show_images is None:
        images = {name: files if all(map(Path.is_file, files)) else () for name, files in images.items()}

    def requests(shown: Mapping[str, tuple[Path, ...]]) -> dict[_Key, JudgeRequest[Match]]:
        return {
            key: match_request(
                [_describe_claim(claim) for claim in items],
                truth[key[0]],
                shown[key[0]],
                captions[key[0]],
                prompts,
            )
            for key, items in claims.items()
        }

    seen = requests(images)
    if show_images is None:
        matched = await ask_who_may_see(judge, seen, requests(dict.fromkeys(images, ())))
    else:
        matched = await ask_by_name(judge, seen)
    answer_claims = {
        key: _label_answer(texts[key], judgement, matched.get(key)) for key, judgement in extracted.items()
    }
    return answer_claims, await _compare_binary_answers([pair.id for pair in pairs], claims, judge, prompts)


async def _read_unread(
    answers: Mapping[str, Mapping[str, str]], judge: Judge, prompts: SpdFaithPrompts
) -> dict[_Key, Any]:
    """Return yes, no or the number in each answer that rules cannot read and that the judge can."""
    requests: dict[_Key, JudgeRequest[Any]] = {}
    for pair_id, texts in answers.items():
        for kind, text in texts.items():
            if kind not in _QUESTIONS or not text.strip():
                continue
            by_rules = parse_count(text) if kind == "count" else by_words(text)
            if by_rules is None:
                data = {"question": _QUESTIONS[kind], "reply": text}
                prompt, read = (
                    (prompts.number, read_number) if kind == "count" else (prompts.yes_no, read_yes_no)
                )
                requests[pair_id, kind] = JudgeRequest(prompt, data, read)
    judgements = await ask_by_name(judge, requests)
    return {key: said for key, each in judgements.items() if (said := first_item(each)) is not None}


def claims_request(answer: str, prompts: SpdFaithPrompts | None = None) -> JudgeRequest[JudgedClaim]:
    """Return the request for the differences that an answer claims. An empty answer claims none."""
    read = partial(read_claims, answer=answer)
    known = None if answer.strip() else ()
    prompt = (prompts or default_prompts(SpdFaithPrompts)).claims
    return JudgeRequest(prompt, {"answer": answer}, read, known=known, vote=majority_claims)


def match_request(
    claims: Sequence[str],
    truths: Sequence[str],
    images: tuple[Path, ...] = (),
    caption: str = "",
    prompts: SpdFaithPrompts | None = None,
) -> JudgeRequest[Match]:
    """Return the request to match claims with true differences, in words, or name their errors.

    The caption of the whole pair is context: a row may give a colour there alone.
    """
    data: dict[str, Any] = {"claims": _number_texts(claims), "truths": _number_texts(truths)}
    data |= {"caption": caption} if caption else {}
    read = partial(read_matches, claims=len(claims), truths=len(truths))
    known = None if claims and truths else tuple(Match(None, "fabrication") for _ in claims)
    prompts = prompts or default_prompts(SpdFaithPrompts)
    return JudgeRequest(prompts.seen_matches if images else prompts.matches, data, read, images, known)


def _number_texts(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"number": number, "text": text} for number, text in enumerate(texts, 1)]


def pair_request(
    pairs: Sequence[tuple[str, str]], prompts: SpdFaithPrompts | None = None
) -> JudgeRequest[Agreement]:
    """Return the request to compare pairs of claims. In an ensemble, one without a majority is ambiguous."""
    data = {"pairs": [{"first": first, "second": second} for first, second in pairs]}
    read = list_reader(Agreement, len(pairs), "pairs")
    prompt = (prompts or default_prompts(SpdFaithPrompts)).pairs
    return JudgeRequest(
        prompt, data, read, known=None if pairs else (), vote=partial(majority_labels, tie="ambiguous")
    )


def majority_claims(judgements: Sequence[Judgement[JudgedClaim]]) -> Judgement[JudgedClaim]:
    """Return the claims that more than half of the scoring judges found, by type and category.

    Words for one category of COCO, such as puppy and dog, are equal. If a judge found a claim twice, the
    second copy is its own claim. Words and order come from the first judge that found them. The sample
    stays unscored unless more than half of the judges scored it.

    Example:
        >>> dog, cat = JudgedClaim("remove", "dog", "no dog"), JudgedClaim("color", "cat", "a black cat")
        >>> majority = majority_claims([Judgement((dog,)), Judgement((dog, cat)), Judgement((dog,))])
        >>> [claim.category for claim in majority.items]
        ['dog']
    """
    scored = scored_items(judgements)
    if scored is None:
        return leave_unscored(judgements)
    votes: Counter[tuple[str, str, int]] = Counter()
    first: dict[tuple[str, str, int], JudgedClaim] = {}
    for claims in scored:
        copies: Counter[tuple[str, str]] = Counter()
        for claim in claims:
            category = find_category(claim.category) or claim.category
            key = (claim.type, category, copies[claim.type, category])
            copies[claim.type, category] += 1
            votes[key] += 1
            first.setdefault(key, claim)
    kept = tuple(claim for key, claim in first.items() if 2 * votes[key] > len(scored))
    return merge(kept, judgements)


def _label_answer(
    text: str, extracted: Judgement[JudgedClaim], matched: Judgement[Match] | None
) -> AnswerClaims:
    """Return the labels of one answer. `matched` is None if the judge could not extract the claims."""
    if extracted.items is None or matched is None:
        return AnswerClaims(None, False, None, extracted.unscored)
    claims = tuple(_to_claim(claim) for claim in extracted.items)
    understood = bool(claims) or parse_count(text) == 0
    if matched.items is None:
        return AnswerClaims(claims, understood, None, matched.unscored)
    return AnswerClaims(claims, understood, _find_errors(matched.items) if understood else None)


def _to_claim(claim: JudgedClaim) -> Claim:
    category = claim.category if claim.category in SHAPES else find_category(claim.category)
    edit_type = next((name for name in EDIT_TYPES if name == claim.type), None)
    return Claim(edit_type, category, text=claim.text)


def _find_errors(matches: Sequence[Match]) -> tuple[ClaimError | None, ...]:
    used: set[int] = set()
    errors: list[ClaimError | None] = []
    for match in matches:
        repeated = match.truth is not None and match.truth in used
        errors.append("quantity_error" if repeated else match.error)
        if match.truth is not None:
            used.add(match.truth)
    return tuple(errors)


async def _compare_binary_answers(
    pair_ids: Sequence[str],
    claims: Mapping[_Key, tuple[JudgedClaim, ...]],
    judge: Judge,
    prompts: SpdFaithPrompts,
) -> dict[str, tuple[_PairedClaims, Sequence[Agreement]]]:
    claims_of_both = {
        name: (claims[name, "same"][:MAX_COMPARED], claims[name, "different"][:MAX_COMPARED])
        for name in pair_ids
        if (name, "same") in claims and (name, "different") in claims
    }
    pair_requests = {
        name: pair_request(
            [(_describe_claim(claim), _describe_claim(other)) for claim in same for other in different],
            prompts,
        )
        for name, (same, different) in claims_of_both.items()
    }
    judgements = await ask_by_name(judge, pair_requests)
    return {
        name: (_pair_one_to_one(len(same), len(different), items), items)
        for name, (same, different) in claims_of_both.items()
        if (items := judgements[name].items) is not None
    }


def _pair_one_to_one(n_first: int, n_second: int, labels: Sequence[Agreement]) -> _PairedClaims:
    return pair_claims(range(n_first), range(n_second), lambda i, j: labels[i * n_second + j])


def _describe_claim(claim: JudgedClaim) -> str:
    """Return a claim in words, with the category and type that its quote may leave out."""
    return f"{claim.category} ({claim.type}): {claim.text}"


def _describe_differences(pair: Pair) -> list[str]:
    """Return each true difference in words, with its type, category and place."""
    size = None
    if pair.images and pair.images[0].is_file():
        height, width = check_image(pair.images[0], f"pair {pair.id}")
        size = width, height
    return [_describe_difference(difference, size) for difference in pair.differences]


def _describe_difference(difference: Difference, size: tuple[int, int] | None) -> str:
    place = f", {name_place(difference.box, size)} in the first picture" if difference.box and size else ""
    text = difference.description or describe_change(difference)
    return f"{difference.category} ({difference.type}{place}): {text}"
