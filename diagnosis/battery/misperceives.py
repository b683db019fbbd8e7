"""Attributes: which colours, shapes and places answers get wrong, and whether the errors come with the value of a thing.

Wrong claims about an attribute are a suspicion: a model may err about images of a kind, or about everything. Where images can be
drawn again, one thing in them gets a value of the attribute that is often claimed wrongly, and the model answers again. If the
attribute is why, the error comes with the value. In photographs, things with masks or boxes get other colours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.colours import PALETTE
from mmprobe.benchmarks.synthetic.scene import COLOURS, COLUMNS, Scene, SceneObject
from mmprobe.contents import list_objects
from mmprobe.diagnosis.answers import ParsedAnswer, make_answer, say_edited
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore, FollowUp
from mmprobe.diagnosis.claims import (
    ATTRIBUTES,
    CAPTION,
    COLOURED,
    LINE,
    LOCATED,
    OBJECT,
    AttributeClaim,
    ClaimsRecord,
    Thing,
    find_unclaimed,
    match_claims,
    measure_attributes,
    read_contents,
)
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, Effect, MeasuredPart
from mmprobe.diagnosis.photographs import choose_colour, give_colour
from mmprobe.diagnosis.scenes import draw, read_scenes
from mmprobe.diagnosis.schedule import Read, Task, read
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.table import Scores, Table, find_badness
from mmprobe.diagnosis.truth import TruthRecord
from mmprobe.models import Model
from mmprobe.models.prompt import build_chat
from mmprobe.samples import Sample

ALTERED = "altered.jsonl"
MOST_ALTERED = 12  # things that are altered in one attribute
KINDS = {"color": "colour", "position": "place", "remove": "presence"}  # of changes, and their attribute
SPEAK_OF_CHANGES = ("same", "different", "find", "steps")  # types of questions
NEEDS_CLAIMS = "claims about two attributes of objects, such as colours and places, or other answers whose truth is known"


class Altered(MeasuredPart):
    """What the model claims of a thing that was altered in an attribute.

    Attributes:
        was, before: what was true and what was claimed before.
        true: what is true now; said: what is claimed now, None where the answer claims nothing of the thing.
    """

    attribute: str
    was: str
    before: str
    true: str
    said: str | None


class DoubtRecord(MeasuredPart):
    """How likely wrong claims are, and what is claimed of altered things.

    Attributes:
        doubt: by attribute the chance that the model says something else than what is true of it. It is the largest over the places
            where the true answer names the attribute, and graded where answers are barely wrong or barely right. None where the true
            answer is not known.
    """

    doubt: dict[str, float] | None = None
    altered: list[Altered] = []


@dataclass(frozen=True)
class Misperceives(CausalTest):
    """Is an attribute of things perceived wrongly, and another one correctly?

    Claims in answers that do not use their images are left out: a model that is blind to colours does not perceive them wrongly.
    Each attribute is compared with its own truth, and several may be perceived wrongly, if another one is right at least twice as
    often. If answers claim only one attribute, it is compared with the answers that do not name it. A change that an answer leaves out
    is not a claim.

    The model must not be bad at everything. Claims must be wrong surely more often than answers that do not name the attribute. Where
    {wrong_share:.0%} of these are false or more, claims must be wrong {wrong_times} times as often. Neither is asked where
    {usual_share:.0%} of the wrong claims are what the model usually says for the true value: a model that takes stars for rings is also
    wrong about whether there is a star.

    Where {wrong_share:.0%} of the claims about an attribute are wrong and images can be drawn again or edited, up to {most_altered}
    things get another colour, shape or place, one that is often claimed wrongly, and nothing else changes. If most claims about them are
    then right, the attribute is not the cause. In photographs, things get another colour under their masks; where only a box is known,
    OpenCV's GrabCut tells the mask.

    Where the true answer is known, the model reads it. The score of an answer is then the probability that the model says anything but
    the truth about the attribute.
    """

    name = "misperceives"
    about = "an attribute of objects is perceived wrongly, and another one correctly"
    effect = "wrong claims about an attribute"
    counts = "claims"
    needs = "the contents of the images (metadata.objects)"
    evidence = ("wrong",)
    needs_sight = True
    files = MappingProxyType({"altered": ALTERED})
    by_kind = False
    threshold: float = 0.3  # development models without it score 17 % at most, with it 43 % or more

    def ask(self, case: Case) -> Task[DoubtRecord]:
        """Read the true answer, where it differs from the model's own."""
        answer, model = case.answer, case.study.model
        truth = answer.sample.answer
        if truth is None:
            return DoubtRecord(doubt=None)
        if truth == answer.text.strip():
            return DoubtRecord(doubt=measure_doubt(answer, case.readings["own"].logprobs))
        true = make_answer(
            model, answer.sample, model.tokenizer(truth, add_special_tokens=False)["input_ids"]
        )
        (reading,) = yield from read([Read(build_chat(true.sample), true.ids)])
        return DoubtRecord(doubt=measure_doubt(true, reading.logprobs))

    def read(self, sample: Sample, text: str) -> ClaimsRecord:
        claims = measure_attributes(sample, text)
        return ClaimsRecord(attributes=claims, unclaimed=find_unclaimed(sample, claims))

    def follow_up(self, turn: int, study: Study, records: Sequence[AnswerRecord]) -> list[FollowUp]:
        """Alter things in an attribute of which many claims are wrong, and answer again."""
        if turn > 1:
            return []
        claims = [claim for each in study.answers for claim in measure_attributes(each.sample, each.text)]
        suspected = find_suspected(claims, LIMITS.least_answers, LIMITS.wrong_share)
        planned = plan_alterations(study.answers, claims, suspected)
        return [FollowUp(ALTERED, ask_altered(study.model, each)) for each in planned]

    def score(self, table: Table) -> CauseScore:
        """Return the share of wrong claims about the attribute that is wrong most surely.

        Each attribute has its own truth, and several may be wrong; but one of them must be right at least twice as often, else
        the model is bad at all of them. If answers claim only one attribute, it is compared with the answers that do not name it.
        An attribute counts as wrong if every kind of statement errs about it (`_count_wrong`). Claims in steps count only if
        the answer makes no others: steps may be false for other reasons. A model that is bad at the task also errs in its other
        answers (`find_badness`). Where things were altered in the attribute alone, most claims about them must be wrong, too.
        """
        counts = _count_wrong(table)
        if not counts:
            return self.missing(table)
        others = table.share_false(_find_silent(table, list(counts)))
        if len(counts) < 2 and (others is None or others.n < table.limits.least_answers):
            return self.missing(table, NEEDS_CLAIMS)
        effects = {name: Effect(name=self.effect, **vars(table.share(own))) for name, own in counts.items()}
        best = max(
            effects, key=lambda name: (np.nan_to_num(effects[name].low, nan=-1.0), effects[name].value)
        )
        wrong = [name for name in effects if effects[name].value >= self.threshold] or [best]
        answers: Scores = []
        for record in table.records:
            scores = [score for name in wrong if (score := score_errors(record, name)) is not None]
            answers.append(max(scores) if scores else None)
        label, details = "attribute" if len(wrong) == 1 else "attributes", []
        hindrance, rightest = "", min(effects, key=lambda name: effects[name].value)
        if len(effects) > 1 and 2 * effects[rightest].value > effects[best].value:
            hindrance = (
                f"no attribute is much righter: {rightest} is wrong in {100 * effects[rightest].value:.0f} %"
            )
        altered = [_list_altered(record, best) for record in table.of(DoubtRecord)]
        n_altered = sum(map(len, altered))
        if n_altered:
            moved = sum(each.said != each.before for own in altered for each in own)
            right = sum(each.said == each.true for own in altered for each in own)
            words = f"{right} of {n_altered} claims are right where a thing got another {best}"
            details.append(f"{words}, {moved} change")
            if n_altered >= table.limits.least_answers and right > (1 - self.threshold) * n_altered:
                hindrance = hindrance or words
        claims: list[list[tuple[Any, Any]]] = [
            [(each.said, each.true) for each in _list_claims(record, [best])]
            + [(each.said, each.true) for each in own]
            for record, own in zip(table.of(ClaimsRecord), altered, strict=True)
        ]
        hindrance = hindrance or find_badness(
            table, effects[best], _find_silent(table, wrong), claims, "that do not name it", surely=False
        )
        which = f"{label}: {', '.join(wrong)}"
        unclaimed = Counter(record.unclaimed for record in table.of(ClaimsRecord) if record.unclaimed)
        details += [
            f"{count} answers to questions for the {name} could not be read"
            for name, count in unclaimed.items()
            if name not in wrong
        ]
        unread = sum(unclaimed[name] for name in wrong)
        return CauseScore(effects[best], answers, "; ".join(details), hindrance, which=which, unread=unread)

    def describe(self, record: AnswerRecord) -> list[str]:
        wrong = {claim.attribute for claim in record.of(ClaimsRecord).attributes if claim.wrong}
        lines = [f"wrong claims: {', '.join(sorted(wrong))}"] if wrong else []
        for each in record.of(DoubtRecord).altered:
            said = each.said or "nothing of it"
            lines.append(f"with {each.true} for {each.was} it claims {said}, before {each.before}")
        return lines


def score_errors(record: AnswerRecord, attribute: str) -> float | None:
    """Return 1 if an answer is wrong about an attribute, else the probability that it would be.

    This is the probability that the model says anything but the truth about the attribute. Where it is not known,
    return 0.5 for a false answer without claims, and 0 for others. None if neither truth nor claims are known.
    """
    claims, doubt = record.of(ClaimsRecord).attributes, record.of(DoubtRecord).doubt or {}
    right = record.of(TruthRecord).right
    if any(claim.wrong and claim.attribute == attribute for claim in claims):
        return 1.0
    if attribute in doubt:
        return float(doubt[attribute])
    if right is None and not claims:
        return None
    return 0.5 if right is False and not claims else 0.0


def _list_claims(record: ClaimsRecord, attributes: Sequence[str]) -> list[AttributeClaim]:
    return [claim for claim in record.attributes if claim.attribute in attributes]


def _find_silent(table: Table, attributes: Sequence[str]) -> np.ndarray:
    """Return which answers claim nothing about some attributes, bool [answer]."""
    return np.array([not _list_claims(record, attributes) for record in table.of(ClaimsRecord)], bool)


def _list_altered(record: DoubtRecord, attribute: str) -> list[Altered]:
    """Return what is claimed of things that were altered in an attribute."""
    return [each for each in record.altered if each.attribute == attribute and each.said is not None]


def _count_wrong(table: Table) -> dict[str, np.ndarray]:
    """Return by attribute the wrong and all claims of each answer, [answer, 2].

    They are from all kinds of statements if each errs in `wrong_share` of its claims or more, else from the kind that errs
    least. Kinds with fewer than `least_answers` claims about an attribute do not count.
    """
    counts: dict[tuple[str, str], np.ndarray] = {}
    for number, (record, loss) in enumerate(zip(table.of(ClaimsRecord), table.losses, strict=True)):
        for claim in record.attributes if loss.net >= table.limits.unused_effect else ():
            if claim.attribute != "invented":
                key = claim.attribute, claim.source
                counts.setdefault(key, np.zeros((len(table.records), 2)))[number] += (claim.wrong, 1)
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


class Alteration(NamedTuple):
    """An answer, and its images with one thing of the first altered.

    Attributes:
        answer: as the model gave it.
        attribute: one of `ATTRIBUTES`.
        before: what the answer claims of the thing; was: what is true.
        thing: the altered thing.
        contents: the things in each image, this one altered.
        draw_images: returns the images, which are not kept.
    """

    answer: ParsedAnswer
    attribute: str
    before: str
    was: str
    thing: Thing
    contents: list[list[Thing]]
    draw_images: Callable[[], list[Image.Image]]


Planned = Callable[[], Alteration | None]
"""Returns an alteration of an answer; None if it turns out to be impossible, which photographs show only when they are opened."""


def find_suspected(claims: Iterable[AttributeClaim], least: int, share: float) -> list[str]:
    """Return the attributes that are often claimed wrongly. Claims in steps do not count.

    Args:
        claims: as from `measure_attributes`.
        least: claims about an attribute, at least.
        share: of them that are wrong, at least.
    """
    found = {attribute: [0, 0] for attribute in ATTRIBUTES}
    for claim in claims:
        if claim.attribute in found and claim.source != "steps":
            found[claim.attribute][0] += claim.wrong
            found[claim.attribute][1] += 1
    return [name for name, (wrong, total) in found.items() if total >= least and wrong >= share * total]


def rank_values(claims: Sequence[AttributeClaim], attribute: str) -> list[str]:
    """Return the values of an attribute that are claimed wrongly at least half of the times, those with most wrong claims first.

    Example:
        >>> fields = {"attribute": "colour", "source": "things", "said": "red"}
        >>> claims = [AttributeClaim(true=true, wrong=true != "red", **fields) for true in ("red", "blue")]
        >>> rank_values(claims, "colour")
        ['blue']
    """
    wrong: dict[str, list[bool]] = defaultdict(list)
    for claim in claims:
        if claim.attribute == attribute:
            wrong[claim.true].append(claim.wrong)
    often = [value for value, own in wrong.items() if 2 * sum(own) >= len(own)]
    return sorted(often, key=lambda value: -sum(wrong[value]))


def plan_alterations(
    answers: Sequence[ParsedAnswer], claims: Sequence[AttributeClaim], attributes: Sequence[str]
) -> list[Alteration]:
    """Return what is altered: for each attribute up to `MOST_ALTERED` things, spread over the answers that claim it of a thing.

    Drawn images are drawn again. In photographs, a thing with a `segmentation` or a `bbox` gets another colour
    (`boxes.give_colour`). Nothing else is altered.

    Args:
        claims: those of all answers, which tell the values that things get.
        attributes: which ones are altered.
    """
    planned: list[Alteration] = []
    for attribute in attributes:
        values = rank_values(claims, attribute)
        found = [
            each
            for number, answer in enumerate(answers)
            if (each := _plan_first(answer, attribute, _turn(values, number))) is not None
        ]
        planned += _take_spread(found)
    return planned


def _take_spread(found: Sequence[Planned]) -> list[Alteration]:
    """Return up to `MOST_ALTERED` of the alterations that are possible, at equal distances; others only where some are not."""
    apart = max(1.0, len(found) / MOST_ALTERED)
    places = [int(number * apart) for number in range(min(MOST_ALTERED, len(found)))]
    taken: dict[int, Alteration] = {}
    for place in (*places, *(place for place in range(len(found)) if place not in places)):
        if len(taken) < MOST_ALTERED and (each := found[place]()) is not None:
            taken[place] = each
    return [taken[place] for place in sorted(taken)]


def _turn(values: Sequence[str], number: int) -> list[str]:
    start = number % max(len(values), 1)
    return [*values[start:], *values[:start]]


def _plan_first(answer: ParsedAnswer, attribute: str, values: Sequence[str]) -> Planned | None:
    """Return an alteration of the first thing of the first image that an answer claims the attribute of; None without one.

    Args:
        values: what the thing may get, the first that is possible.
    """
    if next(read_scenes(answer.sample), None) is None:
        return _plan_colour(answer, values) if attribute == "colour" else None
    found = _alter_first(answer, attribute, values)
    return None if found is None else lambda: found


def _plan_colour(answer: ParsedAnswer, values: Sequence[str]) -> Planned | None:
    """Return an alteration of a thing of a photograph whose colour an answer claims; None without one that has a mask or a box.

    The thing gets a colour that it does not have and that the answer does not claim of it.
    """
    contents, things = read_contents(answer.sample), list_objects(answer.sample)
    found: list[_Recoloured] = []
    for source, image, claim, true in match_claims(contents, answer.text, answer.sample.question):
        if source == "steps" or image or true is None or claim.colour is None or true.colour is None:
            continue
        place = next(number for number, thing in enumerate(contents[0]) if thing is true)
        colours = [each for each in values if each in PALETTE and each not in (true.colour, claim.colour)]
        if colours and (things[place].segmentation or things[place].box):
            found.append(_Recoloured(place, claim.colour, colours))
    return partial(_recolour, answer, contents, found) if found else None


class _Recoloured(NamedTuple):
    """A thing of the first image by its place in the list, what the answer claims of it, and the colours that it may get."""

    place: int
    before: str
    colours: list[str]


def _recolour(
    answer: ParsedAnswer, contents: list[list[Thing]], found: Sequence[_Recoloured]
) -> Alteration | None:
    """Return the alteration of the first thing that one of its colours visibly changes, by the first such colour."""
    things = list_objects(answer.sample)
    for place, before, colours in found:
        colour = choose_colour(answer.sample, things, place, colours)
        if colour is None:
            continue
        old = contents[0][place]
        thing = old._replace(colour=colour)
        first = [thing if each is old else each for each in contents[0]]
        show = partial(give_colour, answer.sample, things, place, colour)
        return Alteration(answer, "colour", before, str(old.colour), thing, [first, *contents[1:]], show)
    return None


def _alter_first(answer: ParsedAnswer, attribute: str, values: Sequence[str]) -> Alteration | None:
    """Return an alteration of a drawn image, as in `_plan_first`."""
    scenes = [scene for _, scene in read_scenes(answer.sample)]
    contents = read_contents(answer.sample)
    if not scenes or not contents:
        return None
    for source, image, claim, true in match_claims(contents, answer.text):
        own = None if true is None else scenes[0].find(true.shape)
        if source == "steps" or image or true is None or own is None or not _tells(claim, attribute):
            continue
        altered = alter(own, scenes[0], attribute, values)
        if altered is None:
            continue
        objects = [altered if each is own else each for each in scenes[0].objects]
        thing = Thing(altered.colour, altered.shape, altered.cell)
        first = [thing if each is true else each for each in contents[0]]
        shown = [replace(scenes[0], objects=tuple(objects)), *scenes[1:]]
        said, was = getattr(claim, attribute), getattr(true, attribute)
        show = partial(_draw_all, shown)
        return Alteration(answer, attribute, said, was, thing, [first, *contents[1:]], show)
    return None


def _draw_all(scenes: Sequence[Scene]) -> list[Image.Image]:
    return [draw(scene) for scene in scenes]


def _tells(claim: Thing, attribute: str) -> bool:
    """Return whether a claim tells an attribute; a shape only if it tells the thing apart by its colour and place."""
    return getattr(claim, attribute) is not None and (attribute != "shape" or None not in claim)


def alter(thing: SceneObject, scene: Scene, attribute: str, values: Sequence[str]) -> SceneObject | None:
    """Return a thing of a scene with the first value of an attribute that nothing in the scene has; None if all are taken.

    Args:
        values: colours, shapes, or places such as `B2`.

    Example:
        >>> import numpy as np
        >>> from mmprobe.benchmarks.synthetic.scene import draw_scene
        >>> scene = draw_scene(np.random.default_rng(0), "easy")
        >>> [each.colour for each in scene.objects], alter(scene.objects[0], scene, "colour", ["green", "red"]).colour
        (['blue', 'green', 'purple'], 'red')
    """
    name = "cell" if attribute == "place" else attribute
    value = next((each for each in values if all(getattr(own, name) != each for own in scene.objects)), None)
    if value is None:
        return None
    if attribute == "place":
        return replace(thing, column=COLUMNS.index(value[0]), row=int(value[1]) - 1)
    return (
        replace(thing, colour=value, rgb=COLOURS[value]) if name == "colour" else replace(thing, shape=value)
    )


def ask_altered(model: Model, each: Alteration) -> Task[list[dict[str, Any]]]:
    """Return the line that says what the model claims of an altered thing. It answers again."""
    text = yield from say_edited(model, each.answer, each.draw_images())
    claims = match_claims(each.contents, text, each.answer.sample.question)
    said = (
        getattr(claim, each.attribute)
        for _, image, claim, true in claims
        if image == 0 and true is each.thing and _tells(claim, each.attribute)
    )
    true = str(getattr(each.thing, each.attribute))
    found = Altered(
        attribute=each.attribute, was=each.was, before=each.before, true=true, said=next(said, None)
    )
    return [{"id": each.answer.sample.id, **found.model_dump()}]


def locate_attributes(sample: Sample, text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the places of a true answer that name an attribute: the attribute, the first character and the end.

    Of a change it is the sentence, of a thing the word.

    Example:
        >>> list(locate_attributes(Sample(id="a", question="?"), "The star is red."))
        [('colour', 12, 15)]
    """
    for line in LINE.finditer(text):
        for item in OBJECT.finditer(text, line.start(2), line.end(2)):
            yield from ((name, *item.span(group)) for group, name in enumerate(ATTRIBUTES, 1))
    for match in CAPTION.finditer(text):
        yield from ((name, *match.span(group)) for group, name in enumerate(ATTRIBUTES, 1))
    yield from (("place", *match.span(2)) for match in LOCATED.finditer(text))
    yield from (("colour", *match.span(2)) for match in COLOURED.finditer(text))
    for change in _list_changes(sample):
        start = text.find(change["sentence"])
        if start >= 0:
            yield KINDS[change["type"]], start, start + len(change["sentence"])


def _list_changes(sample: Sample) -> list[dict[str, str]]:
    """Return the changes between the images if the question is about them."""
    listed = sample.metadata.get("differences")
    if not isinstance(listed, list) or sample.metadata.get("type") not in SPEAK_OF_CHANGES:
        return []
    changes = (change for change in listed if isinstance(change, dict))
    return [change for change in changes if change.get("type") in KINDS and change.get("sentence")]


def measure_doubt(true: ParsedAnswer, logprobs: np.ndarray) -> dict[str, float]:
    """Return by attribute the chance of other words, the largest over the places that name it.

    Args:
        true: the true answer.
        logprobs: of its tokens, [step].
    """
    ends = np.cumsum([len(token) for token in true.tokens])
    starts = ends - [len(token) for token in true.tokens]
    doubt: dict[str, float] = {}
    for attribute, start, end in locate_attributes(true.sample, true.text):
        inside = (ends > start) & (starts < end)
        chance = 1 - float(np.exp(logprobs[inside].sum()))
        doubt[attribute] = round(max(doubt.get(attribute, 0.0), chance), 4)
    return doubt
