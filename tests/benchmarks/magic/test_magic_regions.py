"""The boxes of MagiC, compared with slow references and hand-made boxes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image

from mmprobe.benchmarks.magic.regions import (
    BoxRules,
    MarkedRegion,
    adversarial_boxes,
    draw_regions,
    intersection,
    mark_regions,
    prune_overlap,
    saliency_boxes,
)
from mmprobe.errors import InputError


def pixels(box: tuple[int, int, int, int]) -> set[tuple[int, int]]:
    x, y, w, h = box
    return set(itertools.product(range(x, x + w), range(y, y + h)))


def test_intersections_agree_with_counted_pixels():
    rng = np.random.default_rng(0)
    common = []
    for _ in range(200):
        first, second = (
            tuple(int(v) for v in (*rng.integers(0, 8, 2), *rng.integers(1, 8, 2))) for _ in range(2)
        )
        common.append(intersection(first, second))
        assert common[-1] == len(pixels(first) & pixels(second))
    assert 0 in common and max(common) > 3


def test_two_spots_and_a_speck():
    saliency = np.zeros((60, 100))
    saliency[5:15, 10:30] = 0.9
    saliency[40:55, 60:80] = 0.6
    saliency[30, 50] = 1.0  # one pixel: cleaned away
    saliency[20:30, 90:100] = 0.5  # not above the threshold
    assert saliency_boxes(saliency, (100, 60)) == [(10, 5, 20, 10), (60, 40, 20, 15)]
    assert [
        len(saliency_boxes(saliency, (100, 60), BoxRules(clean=times, minimum_area=0))) for times in (0, 1)
    ] == [
        3,
        2,
    ]
    assert saliency_boxes(saliency, (100, 60), BoxRules(threshold=0.7)) == [(10, 5, 20, 10)]
    assert saliency_boxes(saliency, (100, 60), BoxRules(minimum_area=0.04)) == [(60, 40, 20, 15)]


def test_cleaning_closes_a_hole_and_keeps_the_edges():
    saliency = np.ones((20, 20))
    saliency[:, 10] = 0  # a crack of one pixel
    assert saliency_boxes(saliency, (20, 20)) == [(0, 0, 20, 20)]
    assert saliency_boxes(saliency, (20, 20), BoxRules(clean=0)) == [(0, 0, 10, 20), (11, 0, 9, 20)]


def test_a_coarse_map_is_resized_and_its_scale_does_not_matter():
    saliency = np.zeros((6, 10))
    saliency[2:4, 2:5] = 255
    boxes = saliency_boxes(saliency, (100, 60))
    assert boxes == saliency_boxes(saliency / 1000, (100, 60))
    assert len(boxes) == 1 and np.abs(np.array(boxes[0]) - (20, 20, 30, 20)).max() <= 2


def test_maps_that_show_nothing():
    assert saliency_boxes(np.zeros((4, 4)), (40, 40)) == []
    for wrong in (np.zeros(3), np.full((2, 2), np.nan), -np.ones((2, 2)), np.zeros((0, 3))):
        with pytest.raises(InputError, match="saliency"):
            saliency_boxes(wrong, (40, 40))


def test_overlap_is_pruned_by_coverage_or_union():
    large, inside = (
        MarkedRegion((0, 0, 10, 10), True, "object"),
        MarkedRegion((0, 0, 10, 4), True, "saliency"),
    )
    separate = MarkedRegion((8, 8, 10, 10), True, "saliency")
    assert prune_overlap([large, inside, separate]) == [large, separate]
    assert prune_overlap([inside, large]) == [inside]
    assert prune_overlap([large, inside], BoxRules(rule="iou")) == [large, inside]  # 40 of 100
    assert prune_overlap([large, inside], BoxRules(overlap=0.39, rule="iou")) == [large]
    assert prune_overlap([large, separate], BoxRules(overlap=0.03)) == [large]


def test_adversarial_boxes_overlap_nothing():
    relevant = [(0, 0, 50, 50), (60, 70, 30, 20)]
    candidates = [(40, 40, 20, 20), (60, 5, 30, 30), (62, 8, 30, 30), (0, 60, 1, 1), (0, 0, 100, 100)]
    sources = set()
    for seed in range(20):
        regions = adversarial_boxes(candidates, relevant, (100, 100), seed)
        assert len(regions) == 3 and not any(region.relevant for region in regions)
        boxes = [region.box for region in regions]
        for first, second in itertools.combinations([*relevant, *boxes], 2):
            assert not pixels(first) & pixels(second)
        assert all(pixels(box) <= pixels((0, 0, 100, 100)) for box in boxes)
        drawn = [region.box for region in regions if region.source == "distractor"]
        assert len(drawn) == 1 and drawn[0] in candidates[1:3]  # the two that fit overlap each other
        sources.add(drawn[0])
        assert regions == adversarial_boxes(candidates, relevant, (100, 100), seed)
    assert len(sources) == 2


def test_a_last_free_corner_is_found_and_a_full_image_is_refused():
    taken = [(0, 0, 100, 95), (0, 95, 95, 5)]
    assert pixels(adversarial_boxes([], taken, (100, 100), 0, BoxRules(count=1))[0].box) <= pixels(
        (95, 95, 5, 5)
    )
    with pytest.raises(InputError, match="no room"):
        adversarial_boxes([], [(0, 0, 100, 100)], (100, 100), seed=0)


def test_random_boxes_are_spread_over_all_free_places():
    corners = np.array(
        [
            adversarial_boxes([], [(0, 0, 50, 100)], (100, 100), s, BoxRules(count=1))[0].box[:2]
            for s in range(60)
        ]
    )
    assert corners[:, 0].min() >= 50
    assert np.ptp(corners[:, 0]) > 20 and np.ptp(corners[:, 1]) > 50


def test_all_boxes_of_a_question():
    saliency = np.zeros((100, 100))
    saliency[2:30, 2:30] = 1  # on the object
    saliency[60:80, 60:80] = 1
    orders = set()
    for seed in range(6):
        regions = mark_regions((100, 100), [(0, 0, 32, 32)], [saliency, saliency], [(70, 0, 20, 20)], seed)
        assert sorted(region.source for region in regions) == [
            "distractor",
            "object",
            "random",
            "random",
            "saliency",
        ]
        assert {region.box for region in regions if region.relevant} == {(0, 0, 32, 32), (60, 60, 20, 20)}
        orders.add(tuple(region.relevant for region in regions))
    assert len(orders) > 1  # the number of a box does not reveal whether it is relevant


def test_invalid_boxes_are_refused():
    with pytest.raises(InputError, match="no relevant box"):
        mark_regions((50, 50), [], [np.zeros((50, 50))], [], 0)
    for box in [(0, 0, 51, 10), (-1, 0, 5, 5), (0, 0, 0, 5)]:
        with pytest.raises(InputError, match="is not within"):
            mark_regions((50, 50), [box], [], [], 0)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_numbered_boxes_are_drawn_on_a_copy(mode):
    image = Image.new(mode, (200, 120))
    boxes = [(10, 10, 60, 40), (100, 50, 80, 60)]
    before = image.tobytes()
    drawn = draw_regions(image, boxes)
    assert image.tobytes() == before and drawn.mode == "RGB"
    for x, y, w, h in boxes:
        for corner in [(x, y + h - 1), (x + w - 1, y), (x + w - 1, y + h - 1), (x, y + h // 2)]:
            assert drawn.getpixel(corner) == (255, 0, 0)
    first, second = (np.asarray(drawn)[y + 2 : y + 12, x + 2 : x + 22] for x, y, _, _ in boxes)
    assert not np.array_equal(first, second)  # R1 is not R2
    assert (np.asarray(drawn)[0] == 0).all()
