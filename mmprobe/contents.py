"""What a sample declares of its images: the things in them with their words and boxes, what differs between them, and the words of answers.

A sample's metadata declares it in up to three places. Nothing is guessed.

- `objects`: for each image a list of what it holds. An entry is an annotation with a `name` (or `category`, `category_name`,
  `label`), and maybe a `colour`, a `place`, a `bbox` (x, y, width and height in pixels), a `segmentation` and `iscrowd`; or a name, such as
  `dog`; or a text of the drawn world, such as `red star B2`. For a single image the list may be that of its entries.
- `differences`: a list of what differs between the images, each with its name (`shape`, `category` or `object`) and its own `regions`,
  or its `box` in every image.
- `words`: for each class (thing, colour, place, verdict) a list of words of answers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from mmprobe.samples import Region, Sample

WORD_CLASSES = ("thing", "colour", "place", "verdict")
_NAME_KEYS = ("name", "category", "category_name", "label")
_DIFFERENCE_KEYS = ("shape", "category", "object")
_DRAWN = re.compile(r"(\w+) (\w+) ([A-Z]\d+)", re.IGNORECASE)  # red star B2
_CELL = re.compile(r"([A-D])([1-4])", re.IGNORECASE)
_DRAWN_GRID = 4  # rows and columns of the drawn world's cells
_WORD = re.compile(r"\w+")
_REGIONS = TypeAdapter(list[Region])


class DeclaredObject(NamedTuple):
    """A thing that an image shows.

    Attributes:
        name: what it is, in lower case.
        image: the index of its image.
        box: x, y, width and height in pixels; None where it is not known.
        segmentation: its mask, as COCO writes it: polygons or run lengths; None where it is not known.
        is_crowd: whether it is one annotation of many things (`iscrowd`).
        colour, place: words for them; None where they are not known.
        is_drawn: whether it is a text of the drawn world, whose place is a cell.
    """

    name: str
    image: int
    box: tuple[float, ...] | None = None
    segmentation: Any = None
    is_crowd: bool = False
    colour: str | None = None
    place: str | None = None
    is_drawn: bool = False

    @property
    def words(self) -> dict[str, str]:
        """The word of each kind (colour, thing) that is known."""
        words = {"colour": self.colour, "thing": self.name}
        return {kind: word for kind, word in words.items() if word is not None}

    def locate(self, size: tuple[int, int]) -> Region | None:
        """Return where it is: its box, or its cell in the drawn world; None where that is not known.

        Args:
            size: pixels (height, width) of its image.

        Example:
            >>> DeclaredObject("star", 0, place="B2", is_drawn=True).locate((112, 112)).box
            (28, 28, 28, 28)
        """
        cell = _CELL.fullmatch(self.place or "") if self.is_drawn else None
        if cell is not None:
            height, width = (side // _DRAWN_GRID for side in size)
            column, row = ord(cell[1].upper()) - ord("A"), int(cell[2]) - 1
            return Region(image=self.image, box=(column * width, row * height, width, height))
        if self.box is None:
            return None
        left, top, right, bottom = *self.box[:2], self.box[0] + self.box[2], self.box[1] + self.box[3]
        if not (right > left and bottom > top):
            return None
        corner, end = (math.floor(left), math.floor(top)), (math.ceil(right), math.ceil(bottom))
        return Region(image=self.image, box=(*corner, end[0] - corner[0], end[1] - corner[1]))


def read_objects(sample: Sample) -> list[list[DeclaredObject]]:
    """Return the things that `metadata.objects` lists for each image; [] without a list. Entries without a name are left out.

    Example:
        >>> objects = ["dog", {"category": "sports car", "bbox": [0, 0, 9, 9]}]
        >>> [(each.name, each.box) for each in read_objects(Sample(id="a", question="?", metadata={"objects": objects}))[0]]
        [('dog', None), ('sports car', (0.0, 0.0, 9.0, 9.0))]
    """
    listed = sample.metadata.get("objects")
    if not isinstance(listed, list):
        return []
    images = listed if all(isinstance(image, list) for image in listed) else [listed]
    return [
        [thing for entry in image if (thing := _read_object(entry, number)) is not None]
        for number, image in enumerate(images)
    ]


def list_objects(sample: Sample) -> list[DeclaredObject]:
    """Return the things that `metadata.objects` lists for the images that a sample has, image by image."""
    return [each for image in read_objects(sample)[: len(sample.images)] for each in image]


def list_unusable(sample: Sample, sizes: Sequence[tuple[int, int]]) -> list[str]:
    """Return what is wrong with the entries of `metadata.objects`, each in words.

    Args:
        sizes: pixels (height, width) of each image.

    Example:
        >>> objects = [[{"name": "dog", "bbox": [90, 0, 20, 9]}, {"name": "cat", "bbox": [0, 0]}]]
        >>> list_unusable(Sample(id="a", images=["a.png"], question="?", metadata={"objects": objects}), [(99, 99)])
        ['bbox [90, 0, 20, 9] of dog is not inside its image of 99 x 99 pixels', 'bbox [0, 0] of cat is not [x, y, width, height]']
    """
    listed = sample.metadata.get("objects")
    if not isinstance(listed, list):
        return []
    nested = [isinstance(image, list) for image in listed]
    if any(nested) and not all(nested):
        return ["some entries are lists and others are not; write one list an image"]
    images = listed if all(nested) else [listed]
    found = []
    if 0 < len(images) < len(sample.images):
        found.append(
            f"{len(images)} lists for {len(sample.images)} images; an image that shows nothing has []"
        )
    for size, image in zip(sizes, images, strict=False):
        for entry in image:
            if not isinstance(entry, dict):
                continue
            thing, given = _read_object(entry, 0), entry.get("bbox")
            if thing is None:
                found.append(f"{json.dumps(entry)[:60]} has no name ({', '.join(_NAME_KEYS)})")
            elif given is None:
                continue
            elif thing.box is None:
                found.append(f"bbox {given} of {thing.name} is not [x, y, width, height]")
            elif not _is_inside(thing.box, size):
                found.append(
                    f"bbox {given} of {thing.name} is not inside its image of {size[1]} x {size[0]} pixels"
                )
    return found


def _is_inside(box: tuple[float, ...], size: tuple[int, int]) -> bool:
    """Whether a box has a size and is inside its image, to a pixel: published boxes are rounded."""
    x, y, across, down = box
    return min(x, y) >= -1 and min(across, down) > 0 and x + across <= size[1] + 1 and y + down <= size[0] + 1


def _read_object(entry: Any, image: int) -> DeclaredObject | None:
    if not isinstance(entry, dict):
        text = str(entry).strip()
        if drawn := _DRAWN.fullmatch(text):
            colour, name, place = drawn.groups()
            return DeclaredObject(name, image, colour=colour, place=place, is_drawn=True)
        return DeclaredObject(text.lower(), image) if text else None
    name = next((entry[key] for key in _NAME_KEYS if _is_word(entry.get(key))), None)
    if name is None:
        return None
    crowd = bool(entry.get("iscrowd"))
    hue: Any = entry.get("colour", entry.get("color"))
    where: Any = entry.get("place")
    return DeclaredObject(
        name.strip().lower(),
        image,
        _read_box(entry.get("bbox")),
        entry.get("segmentation") or None,
        crowd,
        hue.strip().lower() if _is_word(hue) and not crowd else None,
        where.strip().lower() if _is_word(where) else None,
    )


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _read_box(box: Any) -> tuple[float, ...] | None:
    if not isinstance(box, list) or len(box) != 4:
        return None
    if not all(isinstance(side, int | float) and math.isfinite(side) for side in box):
        return None
    return tuple(map(float, box))


def declared_objects(sample: Sample, sizes: Sequence[tuple[int, int]]) -> list[tuple[DeclaredObject, Region]]:
    """Return the things that a sample's images show, with their places: its `objects`, else the things of its `differences`.

    Things without a place are left out, and boxes of many things (`iscrowd`).

    Args:
        sizes: pixels (height, width) of each image.

    Example:
        >>> sample = Sample(id="a", images=["a.png"], question="?", metadata={"objects": [["red star B2"]]})
        >>> [(thing.words, region.box) for thing, region in declared_objects(sample, [(112, 112)])]
        [({'colour': 'red', 'thing': 'star'}, (28, 28, 28, 28))]
    """
    found = []
    for thing in list_objects(sample):
        region = None if thing.is_crowd else thing.locate(sizes[thing.image])
        if region is not None:
            found.append((thing, region))
    if found:
        return found
    return [
        (DeclaredObject(name, region.image), region)
        for name, regions in read_differences(sample).items()
        for region in regions
    ]


def read_differences(sample: Sample) -> dict[str, list[Region]]:
    """Return the names of the things that `metadata.differences` lists, in lower case, each with its own regions.

    A difference's regions are its `regions`, or its `box` in every image. Without both, they are all regions of the
    sample if it has one difference, and unknown (an empty list) if it has several. Two differences of one name share
    their regions.

    Example:
        >>> change = {"type": "color", "shape": "Star", "regions": [{"image": 0, "box": [0, 0, 9, 9]}]}
        >>> sample = Sample(id="a", images=["a.png"], question="?", metadata={"differences": [change]})
        >>> read_differences(sample)
        {'star': [Region(image=0, box=(0, 0, 9, 9))]}
    """
    differences = _list_differences(sample)
    by_name: dict[str, list[list[Region]]] = {}
    for difference in differences:
        regions = _own_regions(difference, sample)
        if not regions and len(differences) == 1:
            regions = list(sample.regions)
        for name in _name_difference(difference):
            by_name.setdefault(name, []).append(regions)
    return {
        name: [region for regions in parts for region in regions] if all(parts) else []
        for name, parts in by_name.items()
    }


def named_things(sample: Sample, sizes: Sequence[tuple[int, int]]) -> dict[str, list[Region]]:
    """Return the names that an answer may mention, each with the regions that it is about.

    They are the things of `metadata.differences`, where a sample has some; else its `objects`. All things of one name share
    their regions.

    Args:
        sizes: pixels (height, width) of each image.

    Example:
        >>> objects = [[{"name": "shoe", "bbox": [0, 0, 9, 9]}]]
        >>> named_things(Sample(id="a", images=["a.png"], question="?", metadata={"objects": objects}), [(99, 99)])
        {'shoe': [Region(image=0, box=(0, 0, 9, 9))]}
    """
    things = read_differences(sample)
    if things:
        return things
    for thing, region in declared_objects(sample, sizes):
        things.setdefault(thing.name, []).append(region)
    return things


def declared_words(sample: Sample) -> dict[str, set[str]]:
    """Return the words of each class that a sample declares, in lower case; no word is guessed.

    They are those of `metadata.words`; the names, colours and places of `metadata.objects`; and the names of
    `metadata.differences`. With a `polarity`, yes and no are verdicts.

    Example:
        >>> sample = Sample(id="a", question="?", metadata={"objects": [["red star B2"]]})
        >>> declared_words(sample)["colour"], declared_words(sample)["place"]
        ({'red'}, {'b2'})
    """
    words: dict[str, set[str]] = {name: set() for name in WORD_CLASSES}
    declared = sample.metadata.get("words")
    for name, entries in declared.items() if isinstance(declared, dict) else ():
        if name in words and isinstance(entries, list):
            words[name] |= {str(word).lower() for word in entries}
    texts = [("thing", name) for each in _list_differences(sample) for name in _name_difference(each)]
    for thing in (each for image in read_objects(sample) for each in image):
        texts += [("thing", thing.name), ("colour", thing.colour or ""), ("place", thing.place or "")]
    for kind, text in texts:
        words[kind] |= set(_WORD.findall(text.lower()))
    if sample.polarity is not None:
        words["verdict"] |= {"yes", "no"}
    return words


def question_types(samples: Sequence[Sample]) -> list[str]:
    """Return the type of each question: `metadata.type`, else the question without names and numbers.

    Names are the words that the samples declare (`declared_words`), and words with a capital that do not begin a sentence.
    Only the first line counts: options follow it.

    Example:
        >>> asked = [Sample(id=each, question=f"What color is {each}?") for each in ("Rex", "Ann")]
        >>> question_types(asked)
        ['what color is _?', 'what color is _?']
    """
    names = (
        set().union(*(words for each in samples for words in declared_words(each).values()))
        if samples
        else set()
    )
    return [
        str(each.metadata["type"]) if each.metadata.get("type") else _blank_names(each.question, names)
        for each in samples
    ]


def _blank_names(question: str, names: set[str]) -> str:
    line = question.strip().partition("\n")[0]

    def blank(match: re.Match[str]) -> str:
        word, before = match[0], line[: match.start()].rstrip()
        is_name = word[0].isupper() and bool(before) and before[-1] not in ".!?:"
        return "_" if is_name or word.lower() in names or any(map(str.isdigit, word)) else word.lower()

    return re.sub(r"(_ )+(?=_)", "", _WORD.sub(blank, line))


def _list_differences(sample: Sample) -> list[dict[str, Any]]:
    listed = sample.metadata.get("differences")  # some data sets give their number
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _name_difference(difference: dict[str, Any]) -> set[str]:
    return {str(difference[key]).strip().lower() for key in _DIFFERENCE_KEYS if difference.get(key)}


def _own_regions(difference: dict[str, Any], sample: Sample) -> list[Region]:
    """Return a difference's regions on the sample's images; none if it has none or they are malformed."""
    images, box = len(sample.images), difference.get("box")
    listed = difference.get("regions")
    if listed is None and isinstance(box, list | tuple):
        listed = [{"image": image, "box": box} for image in range(images)]
    try:
        regions = _REGIONS.validate_python(listed or [])
    except ValidationError:
        return []
    return [region for region in regions if region.image < images]
