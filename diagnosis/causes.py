"""The causes that a diagnosis can name, one record each: what it is, how it is scored, and when it is named."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mmprobe.diagnosis.effects import (
    CHOOSING,
    IN_QUESTION,
    NEEDS_STEPS,
    NEEDS_VISUAL_TOKENS,
    OWN_HINT,
    AnswerRecord,
    Effect,
    Loss,
    Scores,
    Table,
    Thresholds,
    list_steps,
)
from mmprobe.registry import Registry, check_made, tolerate_plug_ins
from mmprobe.stats.estimate import Estimate, subtract_shares

LEAST_CUES = 3  # questions about an absent object, in images with a cue and in images without it
NEEDS_CONTENTS = "the contents of the images (metadata.objects)"
NEEDS_CLAIMS = "claims about two attributes of objects, such as colours and places, or other answers whose truth is known"


class CauseScore(NamedTuple):
    """What the tests show about one cause.

    Attributes:
        effect: the score of the model, with its interval.
        answers: the score of each answer, 0 to 1; None where the test does not apply.
        detail: words that say more; "" for none.
        hindrance: why the cause cannot be named whatever its score, in words; "" if it can.
        doubt: why it cannot be decided if its score suffices, in words; "" if it can.
        which: what it concerns, such as an attribute, which the verdict says, too; "" where there is nothing to tell apart.
    """

    effect: Effect
    answers: Scores
    detail: str = ""
    hindrance: str = ""
    doubt: str = ""
    which: str = ""


@dataclass(frozen=True)
class Cause:
    """A reason why answers are not faithful to their images.

    Attributes:
        name: its name.
        about: what it is, in a clause.
        score: what its score is.
        needs: what the data must hold for its test.
        threshold: the least score with which it is named.
        measure: a function from the record and the table of answers to the scores of the model and of each answer.
        evidence: names of the effects (`measure_effects`) that are shown with its score.
        implies: the cause that follows from it and that `why` leaves out; "" for none.
        needs_sight: whether it cannot act in a model that does not use its images.
        is_difference: whether its score is a difference of two shares, and not a share of the answers.
        counts: what its score is a share of.

    Example:
        >>> CAUSES["looks-unused"].implies
        'blind'
    """

    name: str
    about: str
    score: str
    needs: str
    threshold: float
    measure: Callable[[Cause, Table], CauseScore]
    evidence: tuple[str, ...] = ()
    implies: str = ""
    needs_sight: bool = False
    is_difference: bool = False
    counts: str = "answers"

    def missing(self, table: Table) -> CauseScore:
        """Return the score where the data do not allow the test."""
        return CauseScore(Effect(name=self.score, needs=self.needs), [None] * len(table.records))


def measure_causes(table: Table) -> dict[str, CauseScore]:
    """Return the score of each cause by its name. One of another package that cannot be measured is left out."""
    scores: dict[str, CauseScore] = {}
    for name, cause in CAUSES.working():
        with tolerate_plug_ins():
            scores[name] = check_made(cause.measure, cause.measure(cause, table), CauseScore)
    if "blind" in scores and scores["blind"].effect.value > 0.5:
        for name in scores:
            cause = CAUSES[name]
            if cause.needs_sight:
                words = f"{cause.score} (cannot act, since the images are not used)"
                effect = Effect(name=words, value=0.0, low=0.0, high=0.0)
                nothing: Scores = [None] * len(table.records)
                scores[name] = CauseScore(effect, nothing, scores[name].detail, which=scores[name].which)
    return scores


def find_implied(name: str) -> str:
    """Return the cause that a cause implies; "" for one that implies none, and for `control` and `unknown`.

    Example:
        >>> find_implied("looks-unused"), find_implied("control")
        ('blind', '')
    """
    cause = CAUSES.get(name)
    return "" if cause is None else cause.implies


def score_disuse(loss: Loss, limits: Thresholds) -> float:
    """Return 1 for an answer that is as likely with other images, and 0.5 for one that loses the threshold."""
    return limits.unused_effect / (limits.unused_effect + max(loss.net, 0.0))


def _measure_disuse(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that are as likely with other images.

    Other causes leave answers that use no image, too: a number that is always the same, and an answer that compares one image with
    nothing. So answers with false numbers are left to `quantity`, and those about several images to `ignores-an-image` where the answers
    that use one ignore another, if nearly all of the rest use their images.
    """
    disuse = [score_disuse(loss, table.limits) for loss in table.losses]
    unused: Scores = [float(score > 0.5) for score in disuse]
    groups = {"with false numbers": np.array([bool(score_count(record)) for record in table.records], bool)}
    ignored = _measure_ignored(CAUSES["ignores-an-image"], table)
    if not ignored.hindrance and ignored.effect.reaches(CAUSES["ignores-an-image"].threshold, table.limits):
        groups["about several images, since one is ignored"] = table.n_images > 1
    details = []
    for words, group in groups.items():
        rest = [score for score, left in zip(unused, group, strict=True) if not left and score is not None]
        if group.any() and len(rest) >= table.limits.least_answers and 2 * np.mean(rest) < cause.threshold:
            unused = [None if left else score for score, left in zip(unused, group, strict=True)]
            details.append(f"without {group.sum()} answer{'s' * int(group.sum() > 1)} {words}")
    return CauseScore(table.mean(cause.score, unused), list(disuse), detail="; ".join(details))


def _measure_unused_looks(cause: Cause, table: Table) -> CauseScore:
    """Return the score of `blind` for a model whose attention shifts with its images, else 0.

    It is in doubt where the interval of the shift holds the threshold.
    """
    looks = table.effects["looks"]
    score = _measure_disuse(cause, table)
    if looks.low < table.limits.looks_moved <= looks.high:
        doubt = f"attention shifts about as far as it takes ({table.limits.looks_moved}), so this is blind or looks-unused"
        score = score._replace(doubt=doubt)
    elif not looks.value >= table.limits.looks_moved:
        nothing: Scores = [0.0] * len(table.records)
        score = CauseScore(table.mean(cause.score, nothing), nothing)
    return score._replace(effect=cause.missing(table).effect) if looks.needs else score


def score_forgetting(loss: Loss, limits: Thresholds) -> float | None:
    """Return 1 for an answer whose first sentences lose with other images and whose later ones do not.

    The answer is cut after the sentence where the later ones lose least, by the mean over their tokens that speak of
    content. The score is 0.5 where they lose the threshold's share of what the first ones lose, and 0 where they lose
    twice that or more. Where no later token speaks of content, nothing can be forgotten. None for a single sentence.
    """
    sentences = loss.sentences
    if len(sentences) < 2:
        return None
    shares = []
    for cut in range(1, len(sentences)):
        early, late = _mean_effect(sentences[:cut]), _mean_effect(sentences[cut:])
        if sum(count for count, _ in sentences[cut:]) and early >= limits.unused_effect:
            shares.append(max(late, 0.0) / early)
    return float(np.clip(1 - min(shares) / (2 * limits.forgotten_share), 0, 1)) if shares else 0.0


def _mean_effect(sentences: Sequence[tuple[int, float]]) -> float:
    tokens = sum(count for count, _ in sentences)
    return sum(count * effect for count, effect in sentences) / max(tokens, 1)


def _measure_forgetting(cause: Cause, table: Table) -> CauseScore:
    scores: Scores = [score_forgetting(loss, table.limits) for loss in table.losses]
    forgets: Scores = [None if score is None else float(score > 0.5) for score in scores]
    return CauseScore(table.mean(cause.score, forgets, needs=cause.needs), scores)


def find_usual_conclusion(records: Sequence[AnswerRecord]) -> str | None:
    """Return the conclusion that most answers come to; None if no two agree.

    Models fall back on it when their steps are uninformative, so it cannot show that steps are not used.
    """
    counts = Counter(steps["conclusion"] for record in records for steps in list_steps(record))
    conclusion, count = counts.most_common(1)[0] if counts else ("", 0)
    return conclusion if count > 1 else None


def score_decision(steps: dict[str, Any], limits: Thresholds, usual: str | None = None) -> float | None:
    """Return 1 for a conclusion that changes with the images and is almost as likely after other steps, else 0.

    It is almost as likely if no change of its steps costs it the threshold's share of what other images cost it. 0 for one
    that follows from its steps: models that look again where their steps are changed would come to it either way. None
    for the usual conclusion, unless it contradicts its steps.

    Args:
        steps: of an answer, as from `measure_steps`.
    """
    follows = steps.get("follows")
    if follows is not False and steps["conclusion"] == usual:
        return None
    if follows:
        return 0.0
    lost = max(steps["lost"].values())
    return float(steps["moved_by_images"] and lost < limits.decided_share * steps["lost_by_images"])


def _measure_decisions(cause: Cause, table: Table) -> CauseScore:
    usual = find_usual_conclusion(table.records)
    found = [
        [
            score
            for steps in list_steps(record)
            if (score := score_decision(steps, table.limits, usual)) is not None
        ]
        for record in table.records
    ]
    effect, doubt = table.rate(cause.score, found, cause.needs), ""
    scores: Scores = [
        None if record["steps"] is None else score_decision(record["steps"], table.limits, usual)
        for record in table.records
    ]
    read = [steps.get("follows") is not None for record in table.records for steps in list_steps(record)]
    if not all(read) and not effect.low >= cause.threshold:
        doubt = "it is not known what follows from the steps, so the low end of the interval must reach the threshold"
    return CauseScore(effect, scores, doubt=doubt)


def score_following(record: AnswerRecord) -> float | None:
    """Return 1 for an answer that agrees with the hint in its question, whichever answer it suggests, else 0.

    Where the question has no hint, return half the share of added hints that the answer follows, since the answer
    as it was given followed none. None if no hint could be added.
    """
    hints = _list_again(record, "hints") or record["hints"]
    if not hints:
        return None
    share = float(np.mean([hint["followed"] for hint in hints]))
    return share if any(hint["wording"] == OWN_HINT for hint in hints) else share / 2


def _score_hints(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that follow hints. A question's own hint counts as if it were tried again: nothing chose it."""
    answers: Scores = [score_following(record) for record in table.records]
    first = [[each for each in record["hints"] if each["wording"] != OWN_HINT] for record in table.records]
    again = [
        [each for each in record["hints"] if each["wording"] == OWN_HINT] + _list_again(record, "hints")
        for record in table.records
    ]
    return _measure_following(cause, table, first, again)._replace(answers=answers)


def _list_again(record: AnswerRecord, kind: str) -> list[AnswerRecord]:
    """Return the further suggestions of a kind that an answer got, without those that chose the wordings."""
    again = record.get("again", ())
    return [each for each in again if each["kind"] == kind and each.get("round") != CHOOSING]


def _measure_following(
    cause: Cause,
    table: Table,
    first: Sequence[Sequence[AnswerRecord]],
    again: Sequence[Sequence[AnswerRecord]],
) -> CauseScore:
    """Return the share of answers that follow what is suggested, in the wording that is followed most surely.

    The best of many wordings looks better than it is. So those that were followed are tried on further answers, and these alone
    count; where nothing was tried again, hardly an answer followed.

    Args:
        first: what is suggested to each answer, with its `wording` and whether it is `followed`.
        again: what is suggested to further answers.
    """
    by_wording: dict[str, Scores] = defaultdict(lambda: [None] * len(table.records))
    for number, each in ((number, each) for number, own in enumerate(again) for each in own):
        by_wording[each["wording"]][number] = float(each["followed"])
    nothing: Scores = [None] * len(table.records)
    if not by_wording:
        scores: Scores = [
            float(np.mean([each["followed"] for each in own])) if own else None for own in first
        ]
        doubt = "nothing was tried on further answers"
        return CauseScore(table.mean(cause.score, scores, needs=cause.needs), nothing, doubt=doubt)
    effects = {name: table.mean(cause.score, scores) for name, scores in by_wording.items()}
    most = max(effects, key=lambda name: (effects[name].low, effects[name].value))
    return CauseScore(effects[most], nothing, detail=f"wording that is followed most surely: {most!r}")


def _surer(effect: Effect, other: Effect) -> bool:
    """Return whether the low end of an effect's interval is larger: the largest of many values may rest on few answers."""
    return (np.nan_to_num(effect.low, nan=-2.0), effect.value) > (
        np.nan_to_num(other.low, nan=-2.0),
        other.value,
    )


def score_claims(record: AnswerRecord, cue: str, thing: str) -> float | None:
    """Return 1 if an answer claims an absent object in an image with its cue, else 0; None where it could claim nothing."""
    asked = [each["claimed"] for each in record["cues"] if each["thing"] == thing and cue in each["cues"]]
    listed = [thing in each["false"] for each in record["listed"] if cue in each["cues"]]
    claimed = asked + listed
    return float(any(claimed)) if claimed else None


def _list_chances(records: Sequence[AnswerRecord]) -> list[tuple[int, AnswerRecord]]:
    """Return every opportunity to claim an absent object: a question about it, or a list of an image's objects."""
    asked = [(number, each) for number, record in enumerate(records) for each in record["cues"]]
    things = sorted({each["thing"] for _, each in asked})
    listed = [
        (number, {"thing": thing, "cues": each["cues"], "claimed": thing in each["false"]})
        for number, record in enumerate(records)
        for each in record["listed"]
        for thing in things
        if thing not in each["cues"]
    ]
    return asked + listed


def _measure_cues(cause: Cause, table: Table) -> CauseScore:
    """Return the surest effect of a cue on the claims of an absent object, in edited images where there are any.

    Without edited images, an effect that would be named is in doubt: what goes with a cue need not come from it. Nor is there a prior
    if the cue is taken for the object: if the model does not recognise it, or calls it by the object's name.
    """
    found = _find_edited(cause, table) or _find_correlated(cause, table)
    if found is None:
        claimed: Scores = [0.0 if record["cues"] else None for record in table.records]
        return CauseScore(table.mean(cause.score, claimed, needs=cause.needs), claimed)
    effect, cue, thing = found
    answers: Scores = [score_claims(record, cue, thing) for record in table.records]
    score = CauseScore(effect, answers, which=f"{thing} is claimed in images with {cue}")
    edited = [each for record in table.records for each in record.get("edited", ())]
    seen = [
        each["claimed"]
        for each in edited
        if (each["cue"], each["thing"]) == (cue, thing) and each["has_cue"] is None
    ]
    if not edited:
        return score._replace(doubt="no image could be edited, so it is open whether the cue is why")
    if seen and np.mean(seen) < 0.5:
        return score._replace(hindrance=f"{cue} is not recognised itself, so it may be taken for {thing}")
    named = [
        each["said"]
        for record in table.records
        for each in _list_claims(record, ["shape"])
        if each["true"] == cue
    ]
    taken = named.count(thing)
    if taken > 1 and 2 * taken >= len(named):
        return score._replace(hindrance=f"{cue} is taken for {thing} in {taken} of {len(named)} claims")
    return score


def _find_edited(cause: Cause, table: Table) -> tuple[Effect, str, str] | None:
    """Return the surest effect of the cues that were edited out of images and into others, with the pair.

    The pairs were chosen on images as they are, and their effects are measured on edited ones, so that the best of few pairs
    looks hardly better than it is.
    """
    edits = [
        (number, each) for number, record in enumerate(table.records) for each in record.get("edited", ())
    ]
    best: tuple[Effect, str, str] | None = None
    for cue, thing in sorted({(each["cue"], each["thing"]) for _, each in edits}):
        counts = np.zeros((len(table.records), 4))
        for number, each in edits:
            if (each["cue"], each["thing"]) == (cue, thing) and each["has_cue"] is not None:
                side = 0 if each["has_cue"] else 2
                counts[number, side : side + 2] += (each["claimed"], 1)
        if counts[:, 1].sum() and counts[:, 3].sum():
            effect = table.difference(cause.score, counts, cause.needs)
            if best is None or _surer(effect, best[0]):
                best = effect, cue, thing
    return best


def _find_correlated(cause: Cause, table: Table) -> tuple[Effect, str, str] | None:
    """Return the surest difference of the claims in images with a cue and in others, with the pair."""
    asked = _list_chances(table.records)
    cues = sorted({cue for _, each in asked for cue in each["cues"]})
    best: tuple[Effect, str, str] | None = None
    for thing in sorted({each["thing"] for _, each in asked}):
        own = [(number, each) for number, each in asked if each["thing"] == thing]
        for cue in cues if any(each["claimed"] for _, each in own) else ():
            counts = np.zeros((len(table.records), 4))
            for number, each in own:
                side = 0 if cue in each["cues"] else 2
                counts[number, side : side + 2] += (each["claimed"], 1)
            if min(counts[:, 1].sum(), counts[:, 3].sum()) < LEAST_CUES:
                continue
            effect = table.difference(cause.score, counts, cause.needs)
            if best is None or _surer(effect, best[0]):
                best = effect, cue, thing
    return best


def score_errors(record: AnswerRecord, attribute: str) -> float | None:
    """Return 1 if an answer is wrong about an attribute, else the probability that it would be.

    This is the probability that the model says anything but the truth about the attribute. Where it is not known,
    return 0.5 for a false answer without claims, and 0 for others. None if neither truth nor claims are known.
    """
    claims, doubt = record["attributes"], record.get("doubt") or {}
    if any(claim["wrong"] and claim["attribute"] == attribute for claim in claims):
        return 1.0
    if attribute in doubt:
        return float(doubt[attribute])
    if record["right"] is None and not claims:
        return None
    return 0.5 if record["right"] is False and not claims else 0.0


def _measure_attributes(cause: Cause, table: Table) -> CauseScore:
    """Return the share of wrong claims about the attribute that is wrong most surely.

    Each attribute has its own truth, and several may be wrong; but one of them must be right at least twice as often, else
    the model is bad at all of them. If answers claim only one attribute, it is compared with the answers that do not name it.
    An attribute counts as wrong if every kind of statement errs about it (`_count_wrong`). Claims in steps count only where
    there are no other claims, since steps may be false for other reasons. A model that is bad at the task also errs in its other
    answers (`find_badness`). Where things were altered in the attribute alone, most claims about them must be wrong, too.
    """
    counts = _count_wrong(table)
    if not counts:
        return cause.missing(table)
    silent = np.array([not _list_claims(record, list(counts)) for record in table.records], bool)
    others = share_false(table, silent)
    if len(counts) < 2 and (others is None or others.n < table.limits.least_answers):
        return replace(cause, needs=NEEDS_CLAIMS).missing(table)
    effects = {name: Effect(name=cause.score, **vars(table.share(own))) for name, own in counts.items()}
    best = max(effects, key=lambda name: (np.nan_to_num(effects[name].low, nan=-1.0), effects[name].value))
    wrong = [name for name in effects if effects[name].value >= cause.threshold] or [best]
    answers: Scores = []
    for record in table.records:
        scores = [score for name in wrong if (score := score_errors(record, name)) is not None]
        answers.append(max(scores) if scores else None)
    label, details = "attribute" if len(wrong) == 1 else "attributes", []
    hindrance, rightest = find_error_everywhere(table), min(effects, key=lambda name: effects[name].value)
    if not hindrance and len(effects) > 1 and 2 * effects[rightest].value > effects[best].value:
        hindrance = (
            f"no attribute is much righter: {rightest} is wrong in {100 * effects[rightest].value:.0f} %"
        )
    altered = [_list_altered(record, best) for record in table.records]
    n_altered = sum(map(len, altered))
    if n_altered:
        moved = sum(each["said"] != each["before"] for own in altered for each in own)
        right = sum(each["said"] == each["true"] for own in altered for each in own)
        words = f"{right} of {n_altered} claims are right where a thing got another {best}"
        details.append(f"{words}, {moved} change")
        if n_altered >= table.limits.least_answers and right > (1 - cause.threshold) * n_altered:
            hindrance = hindrance or words
    claims = [
        [(each["said"], each["true"]) for each in (*_list_claims(record, [best]), *own)]
        for record, own in zip(table.records, altered, strict=True)
    ]
    silent = np.array([not _list_claims(record, wrong) for record in table.records], bool)
    hindrance = hindrance or find_badness(
        table, effects[best], silent, claims, "that do not name it", surely=False
    )
    which = f"{label}: {', '.join(wrong)}"
    return CauseScore(effects[best], answers, "; ".join(details), hindrance, which=which)


def _list_claims(record: AnswerRecord, attributes: Sequence[str]) -> list[AnswerRecord]:
    return [claim for claim in record["attributes"] if claim["attribute"] in attributes]


def _list_altered(record: AnswerRecord, attribute: str) -> list[AnswerRecord]:
    """Return what is claimed of things that were altered in an attribute."""
    found = (each for each in record.get("altered", ()) if each["attribute"] == attribute)
    return [each for each in found if each["said"] is not None]


def _count_wrong(table: Table) -> dict[str, np.ndarray]:
    """Return by attribute the wrong and all claims of each answer, [answer, 2].

    They are from all kinds of statements if each errs in `wrong_share` of its claims or more, else from the kind that errs
    least. Kinds with fewer than `least_answers` claims about an attribute do not count.
    """
    counts: dict[tuple[str, str], np.ndarray] = {}
    for number, record in enumerate(table.records):
        for claim in record["attributes"]:
            if claim["attribute"] != "invented":
                key = claim["attribute"], claim["source"]
                counts.setdefault(key, np.zeros((len(table.records), 2)))[number] += (claim["wrong"], 1)
    enough = {key: each for key, each in counts.items() if each[:, 1].sum() >= table.limits.least_answers}
    spoken = {key: each for key, each in enough.items() if key[1] != "steps"} or enough
    found = {}
    for attribute in sorted({attribute for attribute, _ in spoken}):
        own = [each for key, each in spoken.items() if key[0] == attribute]
        rightest = min(own, key=_mean_wrong)
        often = _mean_wrong(rightest) >= table.limits.wrong_share
        found[attribute] = np.sum(own, 0) if often else rightest
    return found


def _mean_wrong(counts: np.ndarray) -> float:
    """Return the share of wrong claims, from wrong and all claims [answer, 2]."""
    wrong, total = counts.sum(0)
    return float(wrong / max(total, 1))


def find_error_everywhere(table: Table) -> str:
    """Return in words that claims about every attribute are often wrong, `wrong_share` of them or more; "" if not.

    Then the model is bad at the task, and no single attribute is misperceived. It takes three attributes with claims
    enough.
    """
    shares = {name: _mean_wrong(counts) for name, counts in _count_wrong(table).items()}
    if len(shares) < 3 or min(shares.values()) < table.limits.wrong_share:
        return ""
    parts = ", ".join(f"{name} in {100 * share:.0f} %" for name, share in shares.items())
    return f"errors of every kind ({parts} of the claims)"


def _measure_ignored(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that do not use one of their images, the one that is unused most surely.

    Of the answers that use another image. An image is not used if an answer loses less with another one in its place than
    `ignored_share` of what it loses where its other image is exchanged: models ignore hardly anything wholly. Where each image matters to some questions alone, each is unused by other answers;
    so another image must be unused at most half as often.
    """
    limits = table.limits
    unused: dict[int, Scores] = defaultdict(lambda: [None] * len(table.records))
    graded: dict[int, Scores] = defaultdict(lambda: [None] * len(table.records))
    for place, loss in enumerate(table.losses):
        alone = loss.net_alone
        if len(alone) > 1 and max(alone.values()) >= limits.unused_effect:
            least = max(limits.unused_effect, limits.ignored_share * max(alone.values()))
            for number, net in alone.items():
                score = least / (least + max(net, 0.0))
                unused[number][place], graded[number][place] = float(score > 0.5), score
    if not unused:
        return cause.missing(table)
    effects = {number: table.mean(cause.score, unused[number]) for number in sorted(unused)}
    most = max(effects, key=lambda number: (effects[number].low, effects[number].value))
    rightest = min(effects, key=lambda number: effects[number].value)
    hindrance = ""
    if rightest == most or 2 * effects[rightest].value > effects[most].value:
        hindrance = f"image {rightest} is unused in {100 * effects[rightest].value:.0f} %, so it depends on the question"
    return CauseScore(effects[most], graded[most], hindrance=hindrance, which=f"image {most}")


def _measure_order(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that change with places, of the kind of places with which they change most surely.

    A model that errs in a share e of its other answers changes 2e(1 - e) of its answers for no reason, if it errs anew each
    time. But the images and the question are the same in both orders, so errors often are, too: development models without the
    cause change fewer (docs/diagnosis.md). So the low end of the interval must be above e(1 - e).
    """
    kinds: dict[str, Scores] = {}
    for number, record in enumerate(table.records):
        if (places := record.get("places")) is not None:
            scores = kinds.setdefault(places["kind"], [None] * len(table.records))
            scores[number] = float(places["moved"])
    effects = {kind: table.mean(cause.score, scores) for kind, scores in kinds.items()}
    most = max(effects, key=lambda kind: (effects[kind].low, effects[kind].value), default="")
    added = _score_options(cause, table)
    named = added.effect.reaches(cause.threshold, table.limits) and not added.hindrance
    if added.effect.n and (not most or (named and _surer(added.effect, effects[most]))):
        return added._replace(which="places of added options")
    if not most:
        return cause.missing(table)
    answers: Scores = [
        next((scores[number] for scores in kinds.values() if scores[number] is not None), None)
        for number in range(len(table.records))
    ]
    others, hindrance = share_false(table, np.array([score is None for score in answers], bool)), ""
    if others is not None and effects[most].low <= (by_error := others.value * (1 - others.value)):
        hindrance = f"{100 * others.value:.0f} % of the other answers are false, so {100 * by_error:.0f} % may change by error alone"
    detail = f"added options are followed by their place in {100 * added.effect.value:.0f} %, but {added.hindrance}"
    return CauseScore(
        effects[most],
        answers,
        detail=detail if added.hindrance else "",
        hindrance=hindrance,
        which=f"places of the {most}",
    )


def _score_options(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that are the option in one place, where options were added to their questions.

    Where hints or earlier turns are followed as often or more often, an option is followed because it is suggested.
    """
    score = _score_turns(cause, table, "options")
    if not score.effect.reaches(cause.threshold, table.limits):
        return score
    for name, measure in _SUGGESTIONS.items():
        effect = measure(CAUSES[name], table).effect
        if effect.reaches(CAUSES[name].threshold, table.limits) and effect.value >= score.effect.value:
            return score._replace(
                hindrance=f"{name} explains it: {100 * effect.value:.0f} % of the answers follow these"
            )
    return score


def _measure_suggestions(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that follow hints, claimed earlier answers, or answers of earlier turns and examples.

    Who learned to follow one of these often follows others, too. So the kind that is followed most often is the cause, and what is
    followed less often is said and not named.
    """
    own, also = _SUGGESTIONS[cause.name](cause, table), []
    for other in (CAUSES[name] for name in _SUGGESTIONS if name != cause.name):
        effect = _SUGGESTIONS[other.name](other, table).effect
        if not effect.reaches(other.threshold, table.limits):
            continue
        words = f"{100 * effect.value:.0f} %"
        if effect.value > own.effect.value:
            return own._replace(hindrance=f"{other.name} explains it: {words} of the answers follow these")
        if effect.value < own.effect.value:
            also.append(f"less often {other.name}, {words}")
    return own._replace(which="; ".join(also))


def _score_claims(cause: Cause, table: Table) -> CauseScore:
    """Return the share of answers that follow a claimed earlier one.

    Where hints are followed, what a question says the model answered before counts as a hint, and not as an earlier turn.
    """
    hints = CAUSES["follows-hints"]
    hinted = _score_hints(hints, table).effect.reaches(hints.threshold, table.limits)
    return _score_turns(cause, table, "claimed", besides=IN_QUESTION if hinted else "")


def _score_turns(cause: Cause, table: Table, kind: str, besides: str = "") -> CauseScore:
    """Return the share of answers that follow a kind of earlier turns (`measure_turns`).

    No answer was given after such a turn, so the score of an answer is at most 0.5, unless it is of a conversation.

    Args:
        besides: how wordings begin that do not count; "" for none.
    """

    def select(turns: Sequence[AnswerRecord]) -> list[AnswerRecord]:
        return [turn for turn in turns if not besides or not turn["wording"].startswith(besides)]

    first = [select([] if record.get(kind) is None else [record[kind]]) for record in table.records]
    again = [select(_list_again(record, kind)) for record in table.records]
    answers: Scores = [
        max(
            (float(turn["followed"]) * (1.0 if turn.get("own") else 0.5) for turn in (*one, *other)),
            default=None,
        )
        for one, other in zip(first, again, strict=True)
    ]
    return _measure_following(cause, table, first, again)._replace(answers=answers)


_SUGGESTIONS: dict[str, Callable[[Cause, Table], CauseScore]] = {
    "follows-hints": _score_hints,
    "unsure-agreeable": _score_claims,
    "copies-context": partial(_score_turns, kind="copied"),
}


def list_numbers(record: AnswerRecord) -> list[tuple[int, int]]:
    """Return the numbers that an answer states, each with the true one: of its images, and of those with one thing more or less.

    Example:
        >>> list_numbers({"count": {"said": 2, "true": 2, "by": 1, "followed": 0}})
        [(2, 2), (2, 3)]
    """
    count = record.get("count")
    if count is None:
        return []
    numbers = [(count["said"], count["true"])]
    if count["followed"] is not None:
        numbers.append((count["said"] + count["followed"], count["true"] + count["by"]))
    return numbers


def score_count(record: AnswerRecord) -> float | None:
    """Return the share of false numbers of those that an answer states; None where it counts nothing that is known."""
    numbers = list_numbers(record)
    return float(np.mean([said != true for said, true in numbers])) if numbers else None


def _measure_counts(cause: Cause, table: Table) -> CauseScore:
    """Return the share of false numbers.

    Numbers must be false surely more often than other answers about as many images (`find_badness`): else the model is bad at more
    than numbers.
    """
    numbers = [list_numbers(record) for record in table.records]
    if not any(numbers):
        return cause.missing(table)
    scores: Scores = [score_count(record) for record in table.records]
    false = np.array([[sum(said != true for said, true in own), len(own)] for own in numbers], float)
    effect = Effect(name=cause.score, **vars(table.share(false)))
    moved = [
        count["followed"] == count["by"]
        for record in table.records
        if (count := record.get("count")) is not None and count["followed"] is not None
    ]
    detail = (
        f"{sum(moved)} of {len(moved)} numbers change as they should where there is one thing more or less"
        if moved
        else ""
    )
    counted = false[:, 1] > 0
    alike = ~counted & np.isin(table.n_images, table.n_images[counted])
    return CauseScore(
        effect,
        scores,
        detail=detail,
        hindrance=find_badness(table, effect, alike, numbers, "about as many images"),
    )


def find_badness(
    table: Table,
    effect: Effect,
    others: np.ndarray,
    statements: Sequence[Sequence[tuple[Any, Any]]],
    words: str,
    surely: bool = True,
) -> str:
    """Return why the model is bad at everything, and not just at statements of one kind; "" if it is not.

    Statements must be false surely more often than other answers. Where these are often false, too (`wrong_share`), statements must be
    false far more often (`wrong_times`), or most false ones (`usual_share`) must be what the model usually states for the true one: a
    model that is bad at everything states anything.

    Args:
        effect: the share of false statements.
        others: which answers state nothing of the kind, bool [answer].
        statements: of each answer, what it states and what is true.
        words: which answers the others are.
        surely: whether statements must be false surely more often than the others even if they are the usual ones. Set it to
            False where one error can make the others false: a model that takes stars for rings also errs about whether there is a star.
    """
    false = share_false(table, others)
    if false is None:
        return ""
    n_false = sum(said != true for own in statements for said, true in own)
    usual = _count_usual(statements) >= table.limits.usual_share * n_false
    why = f"other answers {words} are false in {100 * false.value:.0f} %, too"
    if not subtract_shares(effect, false).low > 0 and (surely or not usual):
        return why
    apart = effect.value >= table.limits.wrong_times * false.value
    if false.value >= table.limits.wrong_share and not usual and not apart:
        return f"{why}, and false statements differ where the true one is the same"
    return ""


def _count_usual(statements: Sequence[Sequence[tuple[Any, Any]]]) -> int:
    """Return how many false statements are what is stated most often where the same is true, at least twice."""
    stated = Counter(each for own in statements for each in own)
    usual: dict[Any, tuple[Any, int]] = {}
    for (said, true), count in stated.items():
        if count > max(1, usual.get(true, (0, 0))[1]):
            usual[true] = said, count
    return sum(count for true, (said, count) in usual.items() if said != true)


def share_false(table: Table, chosen: np.ndarray) -> Estimate[float] | None:
    """Return the share of false answers among some, of those whose truth is known; None if there are none.

    Args:
        chosen: which answers, bool [answer].
    """
    known = np.array([record["right"] is not None for record in table.records], bool) & chosen
    false = np.array([[record["right"] is False, 1] for record in table.records], float)
    return table.share(false * known[:, None]) if known.any() else None


NEEDS_CLOSED = (
    "closed questions: yes or no, or several samples with the same question, or one that differs in a word"
)
_ALL = (
    Cause(
        name="blind",
        about="the answers do not use the images",
        score="answers that are as likely with other images",
        needs="images of other samples",
        threshold=0.25,
        measure=_measure_disuse,
        evidence=(
            "free",
            "alike",
            "contrast images",
            "unrelated images",
            "minimal images",
            "blank images",
            "looks",
        ),
    ),
    Cause(
        name="looks-unused",
        about="attention shifts with the images, but the answers do not use them",
        score="answers that are as likely with other images, although attention shifts with the images",
        needs=NEEDS_VISUAL_TOKENS,
        threshold=0.25,
        measure=_measure_unused_looks,
        evidence=("free", "contrast images", "unrelated images", "looks"),
        implies="blind",
    ),
    Cause(
        name="forgets",
        about="the first sentences come from the images, later ones do not",
        score="answers whose first sentences depend on the images and later ones do not",
        needs="answers of several sentences",
        threshold=0.55,
        measure=_measure_forgetting,
        evidence=("free",),
        needs_sight=True,
    ),
    Cause(
        name="decided-first",
        about="the conclusion comes from the images, whatever the steps before it say",
        score="conclusions that change with the images, do not follow from their steps and are almost as likely after others",
        needs=NEEDS_STEPS,
        threshold=0.5,
        measure=_measure_decisions,
        evidence=("moved by steps", "moved by images"),
        needs_sight=True,
    ),
    Cause(
        name="follows-hints",
        about="the answers follow what the question suggests",
        score="answers that agree with the hint, whichever answer it suggests",
        needs=NEEDS_CLOSED,
        threshold=0.6,
        measure=_measure_suggestions,
    ),
    Cause(
        name="prior",
        about="an object is claimed because another one is present",
        score="claims of an absent object: share in images with its cue, minus share in images without it, as edited",
        needs=NEEDS_CONTENTS,
        threshold=0.6,
        measure=_measure_cues,
        needs_sight=True,
        is_difference=True,
    ),
    Cause(
        name="misperceives",
        about="an attribute of objects is perceived wrongly, and another one correctly",
        score="wrong claims about an attribute",
        counts="claims",
        needs=NEEDS_CONTENTS,
        threshold=0.3,
        measure=_measure_attributes,
        evidence=("wrong",),
        needs_sight=True,
    ),
    Cause(
        name="ignores-an-image",
        about="one of several images is not used",
        score="answers that are as likely with another image in the place of one, of those that use their other images",
        needs="questions about several images that do not name one of them",
        threshold=0.7,
        measure=_measure_ignored,
        needs_sight=True,
    ),
    Cause(
        name="order",
        about="the answers change when images or options change places",
        score="answers that change when what should not matter changes places",
        needs=f"questions with options, or {NEEDS_CLOSED}",
        threshold=0.3,
        measure=_measure_order,
    ),
    Cause(
        name="unsure-agreeable",
        about="the answers follow what the model is claimed to have answered before",
        score="answers that agree with a claimed earlier one, whichever it is",
        needs=NEEDS_CLOSED,
        threshold=0.4,
        measure=_measure_suggestions,
    ),
    Cause(
        name="copies-context",
        about="the answers repeat that of an earlier turn or example",
        score="answers that agree with an earlier turn or example, whichever answer it has",
        needs=f"{NEEDS_CLOSED}; and images of other samples",
        threshold=0.4,
        measure=_measure_suggestions,
    ),
    Cause(
        name="quantity",
        about="numbers of things are wrong, and other answers are not",
        score="false numbers, of the images or of those with one thing more or less",
        counts="numbers",
        needs="questions that ask how many, about things whose number is known",
        threshold=0.6,
        measure=_measure_counts,
        needs_sight=True,
    ),
)
CAUSES: Registry[Cause] = Registry(
    "cause", "causes", {cause.name: cause for cause in _ALL}, form="mmprobe.diagnosis.causes:Cause"
)
"""Every cause by its name."""
