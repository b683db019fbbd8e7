"""The table of effects: by kind of question, beside the range of controls, with what could not be read."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.causal_toy import draw_sample
from helpers.records import STILL, UNUSED, claim, read, record
from PIL import Image
from scipy.stats import norm

from mmprobe.diagnosis import causal_test
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.battery.language_prior import LanguagePrior, build_without
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.controls import list_ranges
from mmprobe.diagnosis.diagnose import conclude
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, Effect
from mmprobe.diagnosis.kinds import find_p, name_kinds
from mmprobe.diagnosis.plan import choose_tried, plan_diagnosis
from mmprobe.samples import Sample
from mmprobe.stats.compare import holm
from mmprobe.stats.intervals import share_interval
from mmprobe.viz.report.diagnosis_page import Diagnosed, write_diagnosis

KINDS = [f"kind-{number}" for number in range(6)]


def diagnose_kinds(changes, sets=9):
    """Diagnose answers to questions of several kinds about each set of images; `changes` gives what is special of a kind and a set."""
    lines, samples = [], []
    for number in range(sets):
        for kind in KINDS:
            name = f"{number}-{kind}"
            line = record(number, **changes(kind, number)) | {"id": name}
            line["images"].setdefault("looks", STILL["looks"])
            lines.append(line)
            samples.append(
                Sample(id=name, question=f"{kind}?", images=[f"{number}.png"], metadata={"type": kind})
            )
    return conclude("a model", read(lines), samples)


def test_a_cause_of_one_kind_of_questions_is_named_of_it_though_the_mean_is_small():
    blind = {"images": UNUSED | STILL, "right": False}
    found = diagnose_kinds(lambda kind, number: blind if kind == KINDS[2] else {"images": STILL})
    assert found.causes["blind"].effect.value == pytest.approx(1 / 6)
    assert found.verdict == ["blind"]
    assert [each.kind for each in found.causes["blind"].outside] == [KINDS[2]]
    assert "(of kind-2: 9 of 9 answers [" in found.why and "of all questions 9 of 54 answers" in found.why
    acting = {answer["id"] for answer in found.answers if answer["causes"]}
    assert acting == {f"{number}-{KINDS[2]}" for number in range(9)}
    rows = {(row["test"], row["kind"]): row for row in found.to_json()["effects"]}
    assert rows["blind", None]["outside"] is False and rows["blind", KINDS[2]]["outside"] is True
    assert rows["blind", KINDS[2]]["n"] == 9 and rows["blind", KINDS[3]]["value"] == 0


def test_the_kinds_of_one_test_share_holms_correction():
    """In four of twelve answers to one question of six kinds: alone it is outside, beside five others it is not."""
    blind = {"images": UNUSED | STILL, "right": False}

    def acts(kind, number):
        return blind if kind == KINDS[0] and number < 4 else {"images": STILL}

    found = diagnose_kinds(acts, sets=12)
    own = next(each for each in found.causes["blind"].kinds if each.kind == KINDS[0])
    limit = CAUSES["blind"]().find_limit(LIMITS, KINDS[0])
    alone = find_p(own.effect, limit)
    assert own.effect.value == pytest.approx(4 / 12) and own.effect.value > CAUSES["blind"].threshold
    assert own.p == pytest.approx(holm(np.array([alone, 1, 1, 1, 1, 1]))[0])
    assert alone <= 0.025 < own.p and not own.outside and found.verdict == ["control"]


@pytest.mark.parametrize(("count", "n", "limit"), [(7, 9, 0.3), (12, 40, 0.2), (9, 9, 0.5)])
def test_p_is_that_of_the_score_test(count, n, limit):
    low, high = share_interval(np.array([1.0] * count + [0.0] * (n - count)), np.ones(n))
    effect = Effect(name="x", value=count / n, low=float(low), high=float(high), n=n, sets=n)
    score = (count / n - limit) / np.sqrt(limit * (1 - limit) / n)
    assert find_p(effect, limit) == pytest.approx(norm.sf(score), rel=1e-6)


def test_an_effect_within_the_range_of_controls_is_not_named(monkeypatch):
    """Half of the answers agree with a claimed earlier one. Where 30 % do in a control, the interval is not outside."""
    lines = [record(number, claimed={"followed": number % 2 == 0}) for number in range(24)]
    samples = [Sample(id=each["id"], question="?", images=[f"{each['id']}.png"]) for each in lines]
    low = conclude("a model", read(lines), samples).causes["unsure-agreeable"].effect.low
    for highest, named in ((low - 0.01, True), (low, None)):
        monkeypatch.setattr(causal_test, "find_highest", lambda test, kind="", highest=highest: highest)
        assert conclude("a model", read(lines), samples).causes["unsure-agreeable"].named is named


def test_the_shipped_ranges_are_of_two_bases_and_below_every_threshold():
    for name in CAUSES:
        for base, each in list_ranges(name).items():
            assert base in ("drawn world", "real model") and 0 <= each.low <= each.high <= 1 <= each.n
    assert set(list_ranges("blind")) == {"drawn world", "real model"}
    assert max(each.high for each in list_ranges("blind").values()) < CAUSES["blind"].threshold


def test_a_model_that_is_blind_to_an_attribute_does_not_perceive_it_wrongly():
    """Colours are claimed wrongly in answers that use no image; where these use them, colours are misperceived."""
    wrong = [claim("colour", True)]
    right = [claim("shape", False), claim("place", False)]
    for images, named in ((UNUSED | STILL, ["blind"]), (STILL, ["misperceives"])):
        lines = [
            record(
                number,
                attributes=wrong if number % 2 else right,
                right=number % 2 == 0,
                images=images if number % 2 else STILL,
            )
            for number in range(24)
        ]
        samples = [Sample(id=each["id"], question="?", images=[f"{each['id']}.png"]) for each in lines]
        assert conclude("a model", read(lines), samples).verdict == named


@pytest.mark.parametrize(
    ("same", "stays", "right", "score"),
    [
        ({"blank": True, "text": True}, None, False, 1.0),  # usual, and false
        ({"blank": True, "text": True}, None, True, None),  # the image shows the usual
        ({"blank": False, "text": False}, None, True, 0.0),
        ({"blank": True, "text": False, "noise": False}, None, False, 0.0),  # another error
        ({"blank": True, "text": False, "noise": True}, None, False, 1.0),
        (
            {"blank": True, "text": True},
            True,
            True,
            1.0,
        ),  # and the same of the edited image, where it is false
        ({"blank": True, "text": True}, False, True, 0.0),  # the edit changes the answer
        ({"blank": False, "text": False}, True, False, 0.0),
    ],
)
def test_an_answer_follows_the_prior_if_it_is_the_same_without_an_image_that_shows_something_else(
    same, stays, right, score
):
    line = record(0, without={"same": same, "stays": stays}, right=right)
    line["without"] = {"same": same, "stays": stays}
    assert LanguagePrior().score_answer(AnswerRecord(line)) == score


def test_without_its_images_a_question_is_asked_with_others_of_their_size_and_alone(tmp_path):
    answer = ParsedAnswer(draw_sample(tmp_path, "red"), [1], "red", ["red"])
    noise, others = build_without(answer)
    assert others["text"].images == [] and "image" not in str(others["text"].messages)
    assert others["blank"].messages == noise.messages
    for chat in (noise, others["blank"]):
        with Image.open(answer.sample.images[0]) as image:
            assert [each.size for each in chat.images] == [image.size]
    assert len(np.unique(np.asarray(others["blank"].images[0]))) == 1
    assert np.asarray(noise.images[0]).std() > 50


def test_unread_answers_bound_the_score():
    """Of 24 answers that ask how many, 6 could not be read."""
    counted = {"said": 4, "true": 2, "by": 0, "followed": None}
    lines = [record(number, count=counted if number % 4 else None, answer="A few.") for number in range(24)]
    samples = [Sample(id=each["id"], question="How many?", images=[f"{each['id']}.png"]) for each in lines]
    lines = [
        each | {"uncounted": number % 4 == 0} for number, each in enumerate(lines)
    ]  # as `read` finds in the text
    found = conclude("a model", read(lines), samples).causes["quantity"]
    assert (found.effect.n, found.unread, found.effect.bound(found.unread)) == (18, 6, (0.75, 1.0))


def test_unread_answers_bound_the_score_of_a_kind_on_the_page_too(tmp_path):
    """Whether an answer follows the prior is not known of a third of those of one kind, where the truth is not."""

    def acts(kind, number):
        same = kind == KINDS[0]
        known = not (same and number % 3 == 0)
        return {
            "images": STILL,
            "without": {"same": {"blank": same, "text": same}},
            "right": False if known else None,
        }

    found = diagnose_kinds(acts)
    row = next(
        row
        for row in found.to_json()["effects"]
        if (row["test"], row["kind"]) == ("language-prior", KINDS[0])
    )
    assert (row["n"], row["unread"], row["bounds"]) == (6, 3, [pytest.approx(2 / 3, abs=1e-6), 1])
    page = write_diagnosis(
        [Diagnosed(found.to_dataset(), found.answers, found.tests, found.to_json()["effects"])],
        tmp_path / "page.html",
    )
    assert "3 unread: 67 to 100 %" in page.read_text()


def test_questions_that_differ_in_names_and_numbers_are_of_one_kind():
    objects = [{"name": "shoe", "bbox": [0, 0, 9, 9]}, {"name": "truck", "bbox": [9, 9, 9, 9]}]
    texts = [
        "What color is the shoe?",
        "What color is the truck?",
        "Which is it?\nA. red\nB. blue",
        "Which is it?\nA. left\nB. right",
        "Did Anna come at 12?",
        "Did Bert come at 7?",
    ]
    samples = [
        Sample(id=str(number), question=text, images=["a.png"], metadata={"objects": [objects]})
        for number, text in enumerate(texts)
    ]
    kinds = name_kinds(samples)
    assert kinds[0] == kinds[1] and kinds[2] == kinds[3] and kinds[4] == kinds[5]
    assert len(set(kinds)) == 3


def test_what_is_tried_before_a_diagnosis_is_whole_sets_of_images():
    samples = [
        Sample(id=f"{number}-{place}", question="?", images=[f"{number}.png"])
        for number in range(6)
        for place in range(4)
    ]
    assert [sample.id[0] for sample in choose_tried(samples)] == ["0"] * 4 + ["1"] * 4 + ["2"] * 4
    assert plan_diagnosis(None, samples, 24).seconds is None
