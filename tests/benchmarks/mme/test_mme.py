"""MME: the official folders, hand-counted scores, and the synthetic world's questions."""

from __future__ import annotations

import pytest
from PIL import Image

from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.mme.benchmark import Mme
from mmprobe.benchmarks.mme.data import COGNITION, PERCEPTION, read_mme, read_mme_answers
from mmprobe.benchmarks.mme.metrics import read_official
from mmprobe.benchmarks.mme.synthetic import draw_synthetic_mme
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples


def make_questions(subtask, *images):
    """Return two questions about each image. The answer to the first is yes."""
    return [
        Sample(
            id=f"{subtask}-{image}-{number}",
            question="?",
            answer=label,
            metadata={"subtask": subtask, "image": image},
        )
        for image in images
        for number, label in ((1, "yes"), (2, "no"))
    ]


def write_image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def write_text(path, content="Is it so? Please answer yes or no.\tYes\nIs it not?\tNo\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_reads_both_layouts(tmp_path):
    write_image(tmp_path / "existence" / "0001.jpg")
    write_text(tmp_path / "existence" / "0001.txt")
    write_image(tmp_path / "posters" / "images" / "tt00 (1).png")
    write_text(tmp_path / "posters" / "questions_answers_YN" / "tt00 (1).txt")
    write_text(tmp_path / "eval_tool" / "readme.txt", "not a question")
    samples = read_mme(tmp_path)
    assert [sample.id for sample in samples] == [
        "existence-0001-1",
        "existence-0001-2",
        "posters-tt00-1--1",
        "posters-tt00-1--2",
    ]
    assert [sample.answer for sample in samples] == ["yes", "no", "yes", "no"]
    assert samples[0].question == "Is it so? Please answer yes or no."
    assert samples[2].images == [tmp_path / "posters" / "images" / "tt00 (1).png"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Is it?\tYes\n", "contains 1 questions"),
        ("Is it?\tYes\nIs it?\tNo\nIs it?\tNo\n", "contains 3 questions"),
        ("Is it?\tYes\nIs it? No\n", "line 2: not a question, a tab"),
        ("Is it?\tYes\nIs it?\tMaybe\n", "line 2: the truth 'Maybe'"),
    ],
)
def test_bad_questions(tmp_path, content, message):
    write_image(tmp_path / "OCR" / "1.jpg")
    write_text(tmp_path / "OCR" / "1.txt", content)
    with pytest.raises(InputError, match=message) as caught:
        read_mme(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_images(tmp_path):
    with pytest.raises(InputError, match="contains no questions"):
        read_mme(tmp_path)
    write_text(tmp_path / "OCR" / "1.txt")
    with pytest.raises(InputError, match="image .* is missing"):
        read_mme(tmp_path)
    (tmp_path / "OCR" / "1.jpg").write_text("no picture")
    with pytest.raises(InputError, match="not a readable image"):
        read_mme(tmp_path)


def test_scores_by_hand():
    """Existence: 4 of 6 right, both of 1 of 3 images; count: all right; code: one of two, both of no image."""
    samples = (
        make_questions("existence", "a", "b", "c")
        + make_questions("count", "d")
        + make_questions("code_reasoning", "e")
    )
    answers = ["Yes", "No", "Yes", "Yes", "Yes", "I cannot tell", "yes.", "NO!", "No", "No"]
    answers = {sample.id: answer for sample, answer in zip(samples, answers, strict=True)}
    metrics, rows = Mme(profile="code").score(samples, answers)
    assert metrics["existence_accuracy"].value == pytest.approx(4 / 6)
    assert metrics["existence_accuracy_plus"].value == pytest.approx(1 / 3)
    assert metrics["existence"].value == pytest.approx(100)
    assert metrics["count"].value == pytest.approx(200)
    assert metrics["code_reasoning"].value == pytest.approx(50)
    assert metrics["perception"].value == pytest.approx(300)
    assert (metrics["perception"].range, metrics["perception"].n) == ((0, 400), 4)
    assert metrics["cognition"].value == pytest.approx(50)
    assert metrics["unknown"].value == pytest.approx(1 / 10)
    assert [row["correct"] for row in rows][:6] == [True, True, True, False, True, False]
    assert metrics["existence"].low <= 100 <= metrics["existence"].high
    own, rows = Mme().score(samples, answers)
    assert rows[5]["correct"] is False and own["unread"].value == pytest.approx(1 / 10)
    assert own["existence_accuracy"].value == pytest.approx(4 / 6), (
        "an unread answer is wrong, as in the authors' code"
    )
    assert (own["existence"].value, own["existence"].n, own["existence"].unread) == (pytest.approx(100), 3, 1)
    assert own["existence"].bounds == pytest.approx((100, 150)), "5 of 6, and 2 of 3 images"


def test_the_published_rule_with_its_oddities():
    """Yes or no within the first four characters as they are; everything else is wrong."""
    texts = {
        "Yes, it is.": "yes",
        "**No**": "no",
        "None of them": "no",
        "  Yes": "unknown",
        "**Yes**": "unknown",
        "The answer is no": "unknown",
    }
    for text, said in texts.items():
        assert read_official(text) == said
    samples = make_questions("scene", "a")
    metrics, _ = Mme(profile="code").score(samples, {"scene-a-1": "Yes", "scene-a-2": "It is not"})
    assert (metrics["scene"].value, metrics["unknown"].value, metrics["scene"].coverage) == (50, 0.5, 1)
    assert make_benchmark("mme", {"profile": "code"}).score(samples, {})[0]["scene"].value is None


def test_the_whole_benchmark_goes_to_2000_and_800():
    samples = [
        sample for subtask in (*PERCEPTION, *COGNITION) for sample in make_questions(subtask, "a", "b")
    ]
    metrics, _ = Mme().score(samples, {sample.id: sample.answer for sample in samples})
    assert (metrics["perception"].value, metrics["cognition"].value) == (2000, 800)
    assert (metrics["perception"].range, metrics["cognition"].range) == ((0, 2000), (0, 800))


def test_the_interval_of_a_sum_covers_its_spread():
    """Half of 40 images right: a score of 100 in each of two subtasks, whose sum varies by the square root of two."""
    samples = make_questions("existence", *map(str, range(40))) + make_questions(
        "color", *map(str, range(40))
    )
    answers = {sample.id: sample.answer if int(sample.metadata["image"]) % 2 else "?" for sample in samples}
    metrics, _ = Mme(profile="code").score(samples, answers)
    subtask, total = metrics["existence"], metrics["perception"]
    assert (subtask.value, total.value) == (100, 200)
    assert (subtask.high - subtask.low) == pytest.approx(2 * 1.96 * 200 * (0.25 / 40) ** 0.5, rel=0.2)
    assert (total.high - total.low) == pytest.approx((subtask.high - subtask.low) * 2**0.5, rel=0.2)


def test_unanswered_and_unknown():
    samples = make_questions("scene", "a", "b")
    metrics, _ = Mme().score(samples, {"scene-a-1": "Yes", "scene-a-2": "No", "scene-b-1": "Yes"})
    assert (metrics["scene"].value, metrics["scene"].n, metrics["scene"].coverage) == (200, 1, 0.5)
    assert Mme().score(samples, {})[0]["scene"].value is None
    with pytest.raises(InputError, match="'x' answers no question"):
        Mme().score(samples, {"x": "Yes"})
    with pytest.raises(InputError, match="1 questions; two are needed"):
        Mme().score(samples[:3], {})
    with pytest.raises(InputError, match="not a question of MME"):
        Mme().score([Sample(id="x", question="?", answer="yes")], {})


def test_reads_official_results(tmp_path):
    write_text(tmp_path / "count.txt", "1.jpg\tTwo?\tYes\tYes, two\n1.jpg\tThree?\tNo\tYes\tor no\n")
    samples, responses = read_mme_answers(tmp_path)
    assert responses == {"count-1-1": "Yes, two", "count-1-2": "Yes\tor no"}
    assert Mme().score(samples, responses)[0]["count"].value == pytest.approx(50)
    for content, message in (
        ("1.jpg\tTwo?\tYes\tYes\n2.jpg\tTwo?\tNo\tYes\n", "line 1: image '1.jpg' has one question"),
        ("1.jpg\tTwo?\tYes\tYes\n", "line 1: image '1.jpg' has one question"),
        ("1.jpg\tTwo?\tYes\n", "line 1: not image, question"),
        ("1.jpg\tA\tYes\tYes\n1.jpg\tB\tNo\tNo\n" * 2, "line 3: image '1.jpg' was asked about before"),
    ):
        write_text(tmp_path / "count.txt", content)
        with pytest.raises(InputError, match=message):
            read_mme_answers(tmp_path)
    with pytest.raises(InputError, match="contains no results"):
        read_mme_answers(tmp_path / "nowhere")


def test_official_results_are_matched_by_question(tmp_path):
    """The second question comes first in the results; both are answered rightly."""
    write_image(tmp_path / "data" / "count" / "1.jpg")
    write_text(tmp_path / "data" / "count" / "1.txt", "Two?  Say yes or no.\tYes\nThree?\tNo\n")
    samples = Mme().read(tmp_path / "data")
    results = tmp_path / "results"
    write_text(results / "count.txt", "1.png\tThree?\tNo\tNo.\n1.png\tTwo? Say yes or no.\tYes\tYes.\n")
    responses = Mme().read_answers(results, samples)
    assert responses == {"count-1-1": "Yes.", "count-1-2": "No."}
    assert Mme().score(samples, responses)[0]["count"].value == 200
    for content in ("1.jpg\tFour?\tNo\tNo\n1.jpg\tThree?\tNo\tNo\n", "1.jpg\tThree?\tYes\tNo\n" * 2):
        write_text(results / "count.txt", content)
        with pytest.raises(InputError, match="count.txt: image '1.jpg'"):
            Mme().read_answers(results, samples)


def test_the_synthetic_world(tmp_path):
    made = load_samples(make_pairs(tmp_path / "pairs", n=8, seed=4))
    shown = {
        image: objects
        for sample in made
        for image, objects in zip(sample.images, sample.metadata["objects"], strict=False)
    }
    samples = draw_synthetic_mme(made)
    assert len(samples) == 16 * 4 * 2
    for sample in samples:
        objects = [obj.split() for obj in shown[sample.images[0]]]
        words = sample.question.rstrip("?").split()
        true = {
            "existence": lambda words, objects: words[-1] in [shape for _, shape, _ in objects],
            "count": lambda words, objects: int(words[2]) == len(objects),
            "position": lambda words, objects: (words[2], words[4]) in [(s, cell) for _, s, cell in objects],
            "color": lambda words, objects: (words[2], words[3]) in [(s, colour) for colour, s, _ in objects],
        }[sample.metadata["subtask"]](words, objects)
        assert true == (sample.answer == "yes"), sample.question
    metrics, _ = Mme().score(samples, {sample.id: "Yes." for sample in samples})
    assert {metrics[name].value for name in ("existence", "count", "position", "color")} == {50}
    assert draw_synthetic_mme(made, seed=1) != samples == draw_synthetic_mme(made)
    with pytest.raises(InputError, match="objects of its images"):
        draw_synthetic_mme([Sample(id="1", images=["a.png"], question="?")])
