"""Names of things in answers, and their own regions."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.runs import write_run

from mmprobe.analyses.regions import align_tokens, find_mentions, read_things
from mmprobe.samples import Region, Sample

BOX, OTHER = [0, 0, 9, 9], [10, 10, 5, 5]


def things(*differences: object, regions: list | None = None) -> dict[str, list[tuple[int, tuple]]]:
    """Return image and box of the regions of each thing, of a sample with two images."""
    boxes = [{"image": image, "box": BOX} for image in (0, 1)] if regions is None else regions
    sample = Sample(
        id="a",
        images=["a.png", "b.png"],
        question="?",
        regions=boxes,
        metadata={"differences": list(differences)},
    )
    return {name: [(box.image, box.box) for box in own] for name, own in read_things(sample).items()}


def test_each_difference_has_its_own_regions():
    one = {"shape": "Star", "regions": [{"image": 1, "box": OTHER}]}
    two = {"category": "traffic light", "box": BOX}
    assert things(one, two) == {
        "star": [(1, tuple(OTHER))],
        "traffic light": [(0, tuple(BOX)), (1, tuple(BOX))],
    }
    assert things(one, one | {"regions": [{"image": 0, "box": BOX}]}) == {
        "star": [(1, tuple(OTHER)), (0, tuple(BOX))]
    }


def test_only_a_single_difference_owns_all_regions():
    assert things({"object": "cat"}) == {"cat": [(0, tuple(BOX)), (1, tuple(BOX))]}
    assert things({"object": "cat"}, {"object": "dog"}) == {"cat": [], "dog": []}
    assert things({"object": "cat", "box": BOX}, {"object": "cat"}) == {"cat": []}, (
        "one of the cats is unknown"
    )


def test_regions_that_the_sample_lacks_or_that_are_malformed_are_unknown():
    damaged = [{"shape": "a", "regions": [{"image": 5, "box": BOX}]}, {"shape": "b", "box": [1, "x"]}]
    assert things(*damaged) == {"a": [], "b": []}


@pytest.mark.parametrize("differences", [2, "two", None, ["a star"], [{"shape": ""}]])
def test_metadata_of_ones_own_need_not_list_differences(differences):
    assert read_things(Sample(id="a", question="?", metadata={"differences": differences})) == {}


def mentions(folder: Path, texts: list[str], answer: str, *names: str) -> dict[str, list[list[int]]]:
    trace = {"tokens/text": ["<s>", *texts], "tokens/group": [0, *[4] * len(texts)]}
    return find_mentions(write_run(folder / "run", {"a": trace}, answer=answer)["a"], names)


@pytest.mark.parametrize("space", [" ", ""], ids=["own space", "space dropped"])
def test_mentions_are_whole_names_of_any_number_of_tokens(tmp_path, space):
    """SentencePiece drops the space before a word where it decodes a token on its own."""
    texts = ["The", " um", "brel", "las", " start", " near", " a", " teddy", " bear", ",", " a", " Bear", "s"]
    answer = "".join(texts) + " and one STAR."
    texts = [text.replace(" ", space) for text in [*texts, " and", " one", " ST", "AR", ".", "</s>"]]
    assert mentions(tmp_path, texts, answer, "umbrella", "star", "bear", "teddy bear", "hat") == {
        "umbrella": [[1, 2, 3]],
        "teddy bear": [[7, 8]],
        "bear": [[11]],
        "star": [[15, 16]],
    }


def test_names_may_hold_signs_of_patterns(tmp_path):
    assert mentions(tmp_path, ["a", " (b", ")"], "a (b)", "(b)", "a|b") == {"(b)": [[1, 2]]}
    assert mentions(tmp_path / "none", ["a"], "a") == {}


def test_tokens_that_are_parts_of_characters_do_not_shift_the_others():
    answer, spans = align_tokens(["caf", "\ufffd", "\ufffd", " bus", "<|end|>"], "caf\u00e9 bus")
    assert [answer[start:end] for start, end in spans] == ["caf", "", "", "bus", ""]


def test_regions_are_those_of_samples():
    assert (
        Region(image=0, box=BOX)
        == read_things(
            Sample(
                id="a", images=["a"], question="?", metadata={"differences": [{"object": "b", "box": BOX}]}
            )
        )["b"][0]
    )
