"""Contents: what images hold, and what answers claim of it.

What images hold is read from `metadata.objects`: for each image a list of texts such as `red star B2`, of names such as `dog`, or of
annotations with a `name`, `category` or `label`. Annotations may have a `colour`, a `bbox` (x, y, width, height) and a `segmentation`
(polygons or run lengths, as in COCO). What is not listed counts as absent.

Where all names are objects of COCO, what a description names by other words (a puppy, a couch) is read, too. Of annotated things, the
claims that are read are those about their colours and, where their `place` is known (`top left`), about their places, by their names or
COCO's synonyms. The readers are those of the benchmarks (`benchmarks/answers`). Claims are not read where two things in an image have the name,
or nothing says which image is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mmprobe.benchmarks.answers.claims import parse_claims
from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.colours import compare_colours, find_things, name_hue, read_colours
from mmprobe.benchmarks.answers.options import split_options
from mmprobe.benchmarks.answers.places import find_places, name_place, parse_place, read_places
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.contents import DeclaredObject, read_objects
from mmprobe.diagnosis.effects import MeasuredPart
from mmprobe.samples import Sample

ATTRIBUTES = ("colour", "shape", "place")
OBJECT = re.compile(r"(\w+) (\w+) (\w+)")
LINE = re.compile(r"picture (one|two): ([^\n]*)", re.IGNORECASE)
CAPTION = re.compile(r"\ban? (\w+) (\w+) at (\w+)", re.IGNORECASE)
COLOURED = re.compile(r"the (\w+) is (\w+)(?:\.|$)", re.IGNORECASE)
LOCATED = re.compile(r"the (\w+) is at (\w+)", re.IGNORECASE)
_ASKED = {
    "colour": re.compile(r"\bwh(?:at|ich) colou?r\b", re.IGNORECASE),
    "place": re.compile(r"\bwhere\b|\bin which (?:part|corner|cell)\b", re.IGNORECASE),
}  # what a question asks for
_CHANGED = re.compile(r"the (\w+) (changed|moved) from (\w+) to (\w+)", re.IGNORECASE)
_CHANGE = re.compile(r"(?:the \w+ (?:changed|moved|was) \w+[^.]*|nothing changed)\.", re.IGNORECASE)


class Thing(NamedTuple):
    """A thing in an image; what an answer does not say is None."""

    colour: str | None
    shape: str
    place: str | None

    @property
    def is_drawn(self) -> bool:
        """Whether its place is a cell of the drawn world."""
        return self.place is not None and self.place[-1:].isdigit()


def read_contents(sample: Sample) -> list[list[Thing]]:
    """Return the things in each image that `metadata.objects` lists (`mmprobe.contents`); [] without a list.

    Places are cells of the drawn world, or sides in one spelling (`bottom left`). What is not listed counts as absent.

    Example:
        >>> objects = ["dog", {"category": "sports car", "bbox": [0, 0, 9, 9]}]
        >>> [thing.shape for thing in read_contents(Sample(id="a", question="?", metadata={"objects": objects}))[0]]
        ['dog', 'sports car']
    """
    return [
        [
            Thing(each.colour, each.name, each.place)
            if each.is_drawn
            else Thing(each.colour and (name_hue(each.colour) or each.colour), each.name, _read_place(each))
            for each in image
        ]
        for image in read_objects(sample)
    ]


def _read_place(thing: DeclaredObject) -> str | None:
    sides = parse_place(thing.place) if thing.place else None
    return name_place(sides) if sides else None


def read_claims(text: str) -> Iterator[tuple[int, Thing]]:
    """Yield the things that an answer of the drawn world claims, with the index of their image.

    Example:
        >>> list(read_claims("Picture two: red star B2."))
        [(1, Thing(colour='red', shape='star', place='B2'))]
    """
    for line in LINE.finditer(text):
        for item in line[2].rstrip(".").split(","):
            if match := OBJECT.fullmatch(item.strip()):
                yield ("one", "two").index(line[1].lower()), Thing(*match.groups())
    for match in CAPTION.finditer(text):
        yield 0, Thing(*match.groups())
    for match in LOCATED.finditer(text):
        yield 0, Thing(None, match[1], match[2])
    for match in COLOURED.finditer(text):
        yield 0, Thing(match[2], match[1], None)


class AttributeClaim(MeasuredPart):
    """What an answer claims of a thing in an image.

    Attributes:
        attribute: one of `ATTRIBUTES`, or invented.
        source: `things`, `steps` (things that are listed before a conclusion) or `changes` (sentences that say what changed).
        said, true: words.
        wrong: whether they differ.
    """

    attribute: str
    source: str
    said: str
    true: str
    wrong: bool


class ClaimsRecord(MeasuredPart):
    """What an answer claims of the things in its images.

    Attributes:
        unclaimed: the attribute that the question asks for, if nothing of it could be read; "" else.
    """

    attributes: list[AttributeClaim] = []
    unclaimed: str = ""


def find_unclaimed(sample: Sample, claims: Sequence[AttributeClaim]) -> str:
    """Return the attribute that a question asks for where nothing of it could be read in the answer; "" else.

    A letter of an option claims no attribute: it may be chosen for its place (`order`).
    """
    if not any(read_contents(sample)) or split_options(sample.question).choices:
        return ""
    asked = next((name for name, pattern in _ASKED.items() if pattern.search(sample.question)), "")
    return "" if asked in {claim.attribute for claim in claims} else asked


def measure_attributes(sample: Sample, text: str) -> list[AttributeClaim]:
    """Return each attribute that an answer claims of a thing in an image, and whether it errs.

    A claim is about the thing with its shape or place with which it shares most attributes, and about none where two share as
    many. A claim of a shape and a place that no thing has is `invented`. Shapes count only in claims that tell the thing
    apart by its colour and place. What an answer leaves out is not a claim.
    """
    found = []
    for origin, _, claim, true in match_claims(read_contents(sample), text, sample.question):
        if true is None:
            found.append(_entry("invented", origin, claim.shape, ""))
            continue
        for attribute in ATTRIBUTES:
            said = getattr(claim, attribute)
            if getattr(true, attribute) is None:
                continue  # not annotated
            if said is not None and (attribute != "shape" or None not in claim):
                found.append(_entry(attribute, origin, said, str(getattr(true, attribute))))
    return found


def match_claims(
    contents: Sequence[Sequence[Thing]], text: str, question: str = ""
) -> Iterator[tuple[str, int, Thing, Thing | None]]:
    """Yield the claims of an answer: the source, the index of the image, what is claimed, and the thing that it is about.

    It is about nothing (None) where no thing has its shape or its place. Claims that two things share as much with are left out.

    Args:
        contents: the things in each image. Where none is in a cell, they are annotated, and not drawn (`match_coloured`, `match_placed`).
        question: that is answered.

    Example:
        >>> list(match_claims([[Thing("red", "star", "B2")]], "The star is blue."))[0][2:]
        (Thing(colour='blue', shape='star', place=None), Thing(colour='red', shape='star', place='B2'))
    """
    things = [thing for image in contents for thing in image]
    if things and not any(thing.is_drawn for thing in things):
        yield from match_coloured(contents, text, question)
        yield from match_placed(contents, text, question)
        return
    source = "steps" if LINE.search(text) else "things"
    claims = [(source, *claim) for claim in read_claims(text)]
    for origin, image, claim in [*claims, *(("changes", *claim) for claim in read_changes(text))]:
        if image >= len(contents):
            continue
        shared = [_count_shared(claim, thing) for thing in contents[image]]
        most = max(shared, default=0)
        if not most:
            yield origin, image, claim, None
        elif shared.count(most) == 1:
            yield origin, image, claim, contents[image][shared.index(most)]


def match_coloured(
    contents: Sequence[Sequence[Thing]], text: str, question: str = ""
) -> Iterator[tuple[str, int, Thing, Thing | None]]:
    """Yield the claims about colours of annotated things, as `match_claims` does; those of changes are the last.

    It finds things by their names and by the synonyms of COCO's categories, and compares colours by `compare_colours`. If the colour is
    the same, the claim has the thing's own word for it. It leaves out colours that words cannot tell apart, names that two things in the
    image share, things without a colour, and claims about one of several images where neither the sentence nor the question says which.
    If all that is listed are objects of COCO's, the colour of another such object is about nothing (None).

    Example:
        >>> list(match_coloured([[Thing("red", "car", None)]], "It is navy blue.", "What color is the car?"))
        [('things', 0, Thing(colour='blue', shape='car', place=None), Thing(colour='red', shape='car', place=None))]
    """
    keys = [[find_category(thing.shape) or thing.shape for thing in image] for image in contents]
    others = {key for image in keys for key in image if find_category(key) is None}
    said = [
        ("things", 0 if claim.image is None and len(contents) == 1 else claim.image, claim.name, claim.colour)
        for claim in read_colours(text, question, others)
    ]
    for change in parse_claims(text) if len(contents) == 2 else ():
        if change.type == "color" and change.category and not change.negated:
            values = (change.before, change.after)
            said += (
                ("changes", image, change.category, value) for image, value in enumerate(values) if value
            )
    for origin, number, name, colour in said:
        if number is None or number >= len(contents):
            continue
        own = [thing for thing, key in zip(contents[number], keys[number], strict=True) if key == name]
        is_same = compare_colours(colour, own[0].colour) if len(own) == 1 and own[0].colour else None
        hue = own[0].colour if is_same else name_hue(colour)
        claim = Thing(hue, own[0].shape if own else name, None)
        if is_same is not None:
            yield origin, number, claim, own[0]
        elif not own and not others:
            yield origin, number, claim, None


def match_placed(
    contents: Sequence[Sequence[Thing]], text: str, question: str = ""
) -> Iterator[tuple[str, int, Thing, Thing | None]]:
    """Yield the claims about places of annotated things, as `match_claims` does, of one image alone, and of changes between two.

    An answer to where a thing is is read as the benchmarks read it (`judge_text`). If the place is the same, the claim has the thing's own
    words for it. Left out are things whose name another one shares, and things without a place.

    Example:
        >>> list(match_placed([[Thing("red", "car", "top left")]], "It is on the right.", "Where is the car?"))[0][2]
        Thing(colour=None, shape='car', place='right')
    """
    keys = [[find_category(thing.shape) or thing.shape for thing in image] for image in contents]
    others = {key for image in keys for key in image if find_category(key) is None}

    def find(image: int, name: str) -> Thing | None:
        own = [thing for thing, key in zip(contents[image], keys[image], strict=True) if key == name]
        return own[0] if len(own) == 1 and own[0].place else None

    for change in parse_claims(text) if len(contents) == 2 else ():
        if change.type == "position" and change.category and not change.negated:
            for image, value in enumerate((change.before, change.after)):
                thing, sides = find(image, change.category), parse_place(value or "")
                if thing is not None and sides:
                    yield "changes", image, Thing(None, thing.shape, name_place(sides)), thing
    if len(contents) != 1:
        return
    named = find_things(question.lower(), others) if _ASKED["place"].search(question) else []
    asked = {name for name, _ in named}
    if len(asked) == 1:
        thing = find(0, asked.pop())
        verdict = "" if thing is None else judge_text(text, str(thing.place), question=question)
        if thing is not None and verdict == "right":
            yield "things", 0, Thing(None, thing.shape, thing.place), thing
        elif thing is not None and verdict == "wrong" and (places := find_places(text)):
            yield "things", 0, Thing(None, thing.shape, name_place(places[0])), thing
        return
    for name, sides in read_places(text, others):
        if (thing := find(0, name)) is not None:
            yield "things", 0, Thing(None, thing.shape, name_place(sides)), thing


def _count_shared(claim: Thing, thing: Thing) -> int:
    """Return how many attributes a claim and a thing share; 0 if they share neither the shape nor the place."""
    if claim.shape != thing.shape and (claim.place is None or claim.place != thing.place):
        return 0
    return sum(said is not None and said == true for said, true in zip(claim, thing, strict=True))


def read_changes(text: str) -> Iterator[tuple[int, Thing]]:
    """Yield what an answer claims of things that changed, before and after, with the index of the image.

    Example:
        >>> list(read_changes("The star moved from A1 to B2."))[1]
        (1, Thing(colour=None, shape='star', place='B2'))
    """
    for shape, verb, *values in _CHANGED.findall(text):
        for image, value in enumerate(values):
            recoloured = verb.lower() == "changed"
            yield image, Thing(value if recoloured else None, shape, None if recoloured else value)


def follows_from_steps(text: str) -> bool | None:
    """Return whether a conclusion names the changes between the two lists of things before it; None without such lists.

    Example:
        >>> follows_from_steps("Picture one: red star A1.\\nPicture two: blue star A1.\\nTherefore: Nothing changed.")
        False
    """
    lines = list(LINE.finditer(text))
    if {line[1].lower() for line in lines} != {"one", "two"}:
        return None
    listed: tuple[dict[str, Thing], ...] = ({}, {})
    for image, thing in read_claims(text[: lines[-1].end()]):
        listed[image][thing.shape] = thing
    concluded = sorted(claim.lower() for claim in _CHANGE.findall(text[lines[-1].end() :]))
    return concluded == sorted(_list_differences(*listed) or ["nothing changed."])


def _list_differences(before: dict[str, Thing], after: dict[str, Thing]) -> list[str]:
    found = []
    for shape, thing in before.items():
        other = after.get(shape)
        if other is None:
            found.append(f"the {shape} was removed.")
        else:
            if other.colour != thing.colour:
                found.append(f"the {shape} changed from {thing.colour} to {other.colour}.")
            if other.place != thing.place:
                found.append(f"the {shape} moved from {thing.place} to {other.place}.")
    return [sentence.lower() for sentence in found]


def _entry(attribute: str, source: str, said: str, true: str) -> AttributeClaim:
    return AttributeClaim(attribute=attribute, source=source, said=said, true=true, wrong=said != true)
