"""Sets of images, against a slow search."""

from __future__ import annotations

import itertools
import random

from mmprobe.samples import Sample, image_sets, set_keys
from mmprobe.stats.sets import Sets


def test_samples_that_share_an_image_are_one_group():
    """b shares one image with a and another with c. d shares a pair with e. f shares nothing."""
    samples = [
        Sample(id="a", question="?", images=["1.png"]),
        Sample(id="b", question="?", images=["1.png", "2.png"]),
        Sample(id="c", question="?", images=["2.png"]),
        Sample(id="d", question="?", pair_id="p"),
        Sample(id="e", question="?", pair_id="p", images=["3.png"]),
        Sample(id="f", question="?"),
    ]
    assert image_sets(samples).tolist() == [0, 0, 0, 1, 1, 2]


def test_samples_without_image_files_are_grouped_by_what_names_the_image():
    """MME's images have other names in each subtask; a question also occurs without its image."""
    names = [("count", "1.png"), ("color", "1.png"), ("count", "1.png")]
    samples = [
        Sample(id=str(number), question="?", metadata={"subtask": subtask, "image": image})
        for number, (subtask, image) in enumerate(names)
    ]
    samples += [
        Sample(id="q", question="?", images=["a.png"]),
        Sample(id="r", question="?", images=["b.png"]),
    ]
    samples += [Sample(id="q--absent", question="?", metadata={"with_picture": "q"})]
    assert image_sets(samples).tolist() == [0, 1, 0, 2, 3, 2]


def shared(sample: Sample) -> set[str]:
    """Return what puts a sample into a group with others that have it."""
    own = [] if "with_picture" in sample.metadata else sample.images  # others in the place of its own
    images = {f"image {path}" for path in own}
    if not sample.images and "image" in sample.metadata:
        images = {f"image {sample.metadata.get('subtask')}/{sample.metadata['image']}"}
    pair = set() if sample.pair_id is None else {f"pair {sample.pair_id}"}
    return images | pair | {f"sample {sample.metadata.get('with_picture', sample.id)}"}


def merge_slowly(samples: list[Sample]) -> list[int]:
    """Return the group of each sample, by merging the groups of two samples until no two share anything."""
    groups = list(range(len(samples)))
    for _ in samples:
        for first, other in itertools.combinations(range(len(samples)), 2):
            if shared(samples[first]) & shared(samples[other]):
                old, new = max(groups[first], groups[other]), min(groups[first], groups[other])
                groups = [new if group == old else group for group in groups]
    return [sorted(set(groups)).index(group) for group in groups]


def test_sets_are_those_of_a_slow_search():
    """Of all samples, and of some, in any order and several times; some ids are those of several samples."""
    rng = random.Random(0)
    for _ in range(200):
        ids = [f"s{number}" for number in range(rng.randint(1, 8))]
        samples = []
        for _ in range(9):
            metadata = {"with_picture": rng.choice([*ids, "gone"])} if rng.random() < 0.2 else {}
            metadata |= {"image": rng.choice("ab"), "subtask": rng.choice("uv")} if rng.random() < 0.2 else {}
            images = [f"{rng.choice('pqrstuvw')}.png" for _ in range(rng.choice([0, 0, 1, 2]))]
            pair = rng.choice([None, None, "a", "b"])
            samples.append(
                Sample(id=rng.choice(ids), question="?", images=images, pair_id=pair, metadata=metadata)
            )
        sets = Sets()
        for sample in samples:
            sets.add(sample.id, set_keys(sample))
        assert sets.number().tolist() == merge_slowly(samples)
        kept = rng.choices(range(len(samples)), k=6)
        assert sets.number(kept).tolist() == merge_slowly([samples[place] for place in kept])
