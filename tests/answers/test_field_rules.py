"""Headline numbers are what the field's code gives on the same answers, where all are read.

Each rule is written here anew from VLMEvalKit (`YOrN_Extraction`, `POPE_rating`, `MME_rating`, `can_infer`, `vqa_eval`) or from the
authors' released code, and computes from the texts and truths alone.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from statistics import mean

import pytest

from mmprobe.benchmarks.answers.coco import find_objects
from mmprobe.benchmarks.chair.benchmark import Chair, ChairTruth
from mmprobe.benchmarks.chair.data import published_finder
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.core.questions import make_question
from mmprobe.benchmarks.magic.benchmark import Magic
from mmprobe.benchmarks.magic.data import MagicQuestion, MagicTruth
from mmprobe.benchmarks.mirage.benchmark import Mirage, MirageTruth
from mmprobe.benchmarks.mirage.data import MirageQuestion
from mmprobe.benchmarks.mirage_effect.benchmark import MirageEffect
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, ImagelessQuestion, MirageEffectTruth
from mmprobe.benchmarks.mme.benchmark import Mme
from mmprobe.benchmarks.mme.data import COGNITION, PERCEPTION
from mmprobe.benchmarks.mmreason.benchmark import MMReason
from mmprobe.benchmarks.pope.benchmark import Pope
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.benchmarks.spd_faith.rule_labels import score_by_rules
from mmprobe.benchmarks.vqa.benchmark import Vqa, VqaTruth
from mmprobe.samples import Sample

SAID = {
    "yes": ["Yes", "yes.", "**Yes**, there is a dog.", "Yes, I can see a dog on the left.", "<answer>Yes</answer>",
            "The answer is yes.", "<think>Is there none? No: there is one.</think>Yes."],
    "no": ["No", "no.", "**No**", "No, there is not.", "<answer>No</answer>", "The answer is: No.", "<think>Yes?</think>\nNo."],
}  # fmt: skip
OPEN = {
    "What is it?": {"cat": "It is a cat.", "dog": "A dog.", "cow": "**cow**", "red bus": "The answer is a red bus.", "a blue car": "the blue car"},
    "How many dogs are there?": {"2": "two", "14": "14.", "three": "3", "one": "There is one dog.", "0": "Zero"},
}  # fmt: skip


def without_thought(text: str) -> str:
    return re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)


def infer_yes_no(text: str) -> str:
    words = re.sub(r"[^\w\s]", " ", re.sub(r"</?\w+>", " ", without_thought(text)).lower()).split()
    return "unknown" if ("yes" in words) == ("no" in words) else "yes" if "yes" in words else "no"


def infer_option(text: str, options: dict[str, str]) -> str | None:
    words = re.sub(r"[.()\[\],:;!*#{}]", " ", text).split()
    letters = [letter for letter in options if letter in words]
    texts = [letter for letter, option in options.items() if option.lower() in text.lower()]
    return letters[0] if len(letters) == 1 else texts[0] if not letters and len(texts) == 1 else None


@pytest.mark.parametrize("seed", range(3))
def test_pope(seed):
    draw = random.Random(seed)
    truth = {str(i): draw.choice(["yes", "no"]) for i in range(60)}
    answers = {name: draw.choice(SAID[draw.choice(["yes", "no"])]) for name in truth}
    said = {name: infer_yes_no(text) for name, text in answers.items()}
    assert set(said.values()) == {"yes", "no"}
    samples = [
        Sample(id=name, question="Is there a dog in the image?", answer=label)
        for name, label in truth.items()
    ]
    metrics, _ = Pope().score(samples, answers)
    hits = Counter((said[name], label) for name, label in truth.items())
    precision = hits["yes", "yes"] / (hits["yes", "yes"] + hits["yes", "no"])
    recall = hits["yes", "yes"] / (hits["yes", "yes"] + hits["no", "yes"])
    theirs = {
        "accuracy": (hits["yes", "yes"] + hits["no", "no"]) / 60,
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall),
        "yes_ratio": (hits["yes", "yes"] + hits["yes", "no"]) / 60,
        "unread": 0,
    }
    assert {name: metrics[name].value for name in theirs} == pytest.approx(theirs)


@pytest.mark.parametrize("seed", range(3))
def test_mme(seed):
    draw = random.Random(seed)
    samples = [
        Sample(id=f"{subtask}-{image}-{label}", question="Is it so?", answer=label,
               metadata={"subtask": subtask, "image": str(image)})
        for subtask in (*PERCEPTION, *COGNITION) for image in range(4) for label in ("yes", "no")
    ]  # fmt: skip
    answers = {sample.id: draw.choice(SAID[draw.choice(["yes", "no"])]) for sample in samples}
    metrics, _ = Mme().score(samples, answers)
    hit = {sample.id: infer_yes_no(answers[sample.id]) == sample.answer for sample in samples}

    def rate(subtask: str) -> float:
        pairs = [[hit[f"{subtask}-{image}-{label}"] for label in ("yes", "no")] for image in range(4)]
        return 100 * mean(sum(pairs, [])) + 100 * mean(map(all, pairs))

    theirs = {subtask: rate(subtask) for subtask in (*PERCEPTION, *COGNITION)}
    theirs |= {"perception": sum(map(rate, PERCEPTION)), "cognition": sum(map(rate, COGNITION)), "unread": 0}
    assert {name: metrics[name].value for name in theirs} == pytest.approx(theirs)


OPTIONS = {"A": "a red car", "B": "a blue bus", "C": "a green tram", "D": "a yellow taxi"}
CHOSEN = ["{letter}", "({letter})", "{letter}.", "**{letter}**", "{letter}. {text}", "The answer is {letter}.", "{text}", "It is {text}.",
          "Answer: {letter}"]  # fmt: skip


def choose(draw: random.Random) -> str:
    letter = draw.choice("ABCD")
    return draw.choice(CHOSEN).format(letter=letter, text=OPTIONS[letter])


@pytest.mark.parametrize("seed", range(3))
def test_options(seed):
    draw = random.Random(seed)
    truth = {str(i): draw.choice("ABCD") for i in range(60)}
    answers = {name: choose(draw) for name in truth}
    theirs = mean(infer_option(text, OPTIONS) == truth[name] for name, text in answers.items())
    assert None not in {infer_option(text, OPTIONS) for text in answers.values()} and 0 < theirs < 1
    questions = [
        make_question(Sample(id=name, question="Which?", answer=letter, metadata={"options": OPTIONS}))
        for name, letter in truth.items()
    ]
    metrics, _ = Vqa().score(VqaTruth(questions), answers)
    assert metrics["accuracy"].value == pytest.approx(theirs) and metrics["unread"].value == 0
    asked = [
        ChoiceQuestion(id=name, question="Which?", choices=OPTIONS, answer=letter, images=["a.png"])
        for name, letter in truth.items()
    ]
    blind = {name: choose(draw) for name in truth}
    shown, _ = MirageEffect().score(
        MirageEffectTruth([], asked), answers | {f"{name}--absent": text for name, text in blind.items()}
    )
    without = mean(infer_option(text, OPTIONS) == truth[name] for name, text in blind.items())
    assert shown["accuracy_with"].value == pytest.approx(theirs)
    assert shown["accuracy_without"].value == pytest.approx(without)
    assert shown["mirage_score"].value == pytest.approx(without / theirs), "section 7.6"


def normalize(text: str) -> str:
    """As VQA's evaluation: no case, punctuation and articles, and numbers in digits."""
    numbers = {"zero": "0", "one": "1", "two": "2", "three": "3"}
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return " ".join(numbers.get(word, word) for word in words if word not in ("a", "an", "the"))


@pytest.mark.parametrize("seed", range(3))
def test_open_questions(seed):
    """A short answer is right if it is the true one; a sentence, if it has the true words."""
    draw = random.Random(seed)
    asked = {str(i): draw.choice(list(OPEN)) for i in range(60)}
    truth = {name: draw.choice(list(OPEN[question])) for name, question in asked.items()}
    answers = {
        name: OPEN[asked[name]][draw.choice([label, *OPEN[asked[name]]])] for name, label in truth.items()
    }
    theirs = mean(f" {normalize(truth[name])} " in f" {normalize(text)} " for name, text in answers.items())
    questions = [
        make_question(Sample(id=name, question=asked[name], answer=label)) for name, label in truth.items()
    ]
    metrics, _ = Vqa().score(VqaTruth(questions), answers)
    free_form = [
        MirageQuestion(id=name, question=asked[name], topic="spatial", type="free_form", answer=label)
        for name, label in truth.items()
    ]
    free, _ = Mirage().score(MirageTruth(free_form), answers)
    assert metrics["unread"].value == free["unread"].value == 0 and 0 < theirs < 1
    assert metrics["accuracy"].value == free["accuracy"].value == pytest.approx(theirs)


@pytest.mark.parametrize("seed", range(3))
def test_mmreason_with_and_without_options(seed, tmp_path):
    draw = random.Random(seed)
    lines = "\n".join(f"({letter}) {text}" for letter, text in OPTIONS.items())
    rows = [
        {"id": str(i), "question": f"What is seen at the stop?\n{lines}", "answer": draw.choice("ABCD"),
         "discipline": "science", "source": "own"}
        for i in range(40)
    ]  # fmt: skip
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    benchmark = MMReason(with_choices=True)
    truth = benchmark.read(file)
    said = {row["id"]: draw.choice("ABCD") for row in rows}
    answers = {name: f"The answer is {OPTIONS[letter]}." for name, letter in said.items()}
    answers |= {f"{row['id']}--choices": choose(draw) for row in rows}
    metrics, _ = benchmark.score(truth, answers)
    final = mean(said[row["id"]] == row["answer"] for row in rows)
    chosen = mean(infer_option(answers[f"{row['id']}--choices"], OPTIONS) == row["answer"] for row in rows)
    assert metrics["s_final"].value == pytest.approx(final)
    assert metrics["s_final_choices"].value == pytest.approx(chosen)
    assert metrics["choices_gain"].value == pytest.approx(chosen - final)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("profile", ["own", "code"])
def test_chair(profile, seed):
    """Hallucinated words over words of objects, captions with one over captions, and objects named over true ones."""
    draw = random.Random(seed)
    names = ["dog", "cat", "bus", "train", "pizza", "couch"]
    objects = {str(i): frozenset(draw.sample(names, 2)) for i in range(30)}
    told = {name: draw.choices(names, k=draw.randint(1, 3)) for name in objects}
    captions = {name: " ".join(f"There is a {word}." for word in words) for name, words in told.items()}
    samples = [Sample(id=name, question="Describe the image.") for name in objects]
    if profile == "code":
        truth = ChairTruth(samples, objects, published_finder({name: name for name in names}))
    else:
        truth = ChairTruth(samples, objects, find_objects)
    metrics, _ = Chair().score(truth, captions)
    false = {name: [word for word in words if word not in objects[name]] for name, words in told.items()}
    theirs = {
        "chair_s": mean(bool(words) for words in false.values()),
        "chair_i": sum(map(len, false.values())) / sum(map(len, told.values())),
        "recall": sum(len(objects[name] & set(words)) for name, words in told.items())
        / sum(map(len, objects.values())),
    }
    assert {name: metrics[name].value for name in theirs} == pytest.approx(theirs)


@pytest.mark.parametrize("seed", range(3))
def test_the_mirage_rate(seed):
    """One minus the share of the answers that say that the image is missing (section 7.3)."""
    draw = random.Random(seed)
    notices = [
        "I don't see an image attached.",
        "There is no image attached.",
        "Please upload the image so I can help you.",
    ]
    mirages = [
        "The flower is a red rose.",
        "It shows a golden retriever on the grass.",
        "The sign says STOP.",
    ]
    questions = [ImagelessQuestion(f"i{i}", "art/a", "What is shown?") for i in range(40)]
    missed = {question.id: draw.random() < 0.4 for question in questions}
    answers = {name: draw.choice(notices if is_missed else mirages) for name, is_missed in missed.items()}
    metrics, records = MirageEffect().score(MirageEffectTruth(questions, []), answers)
    assert metrics["mirage_rate"].value == pytest.approx(1 - mean(missed.values()))
    assert metrics["mirage_rate"].unread == 0


COLOURS, CATEGORIES = ("red", "blue", "green"), ("car", "bus", "dog", "cat", "cup")


def tell(kind: str, category: str) -> str:
    return {
        "color": f"The {category} changed from red to blue.",
        "remove": f"The {category} was removed.",
        "position": f"The {category} moved from the left to the right.",
    }[kind]


@pytest.mark.parametrize("seed", range(3))
def test_spd_faith(seed):
    """The released `eval_multi_diff_metrics.py` on the claims that the answers make, and equations 9, 13 and 14."""
    draw = random.Random(seed)
    kinds = ("color", "remove", "position")
    pairs, told, answers = [], {}, []
    for i in range(40):
        true = [(draw.choice(kinds), category) for category in draw.sample(CATEGORIES, draw.randint(1, 3))]
        said = [each for each in true if draw.random() < 0.7]
        said += [(draw.choice(kinds), category) for category in draw.sample(CATEGORIES, draw.randint(0, 1))]
        said = said or [("remove", "cup")]
        pairs.append(Pair(str(i), tuple(Difference(*each) for each in true)))
        told[str(i)] = (true, said, draw.choice(["yes", "no"]), draw.choice(["yes", "no"]))
        texts = {
            "list": " ".join(tell(*each) for each in said),
            "find": " ".join(tell(*each) for each in said),
            "count": f"There are {len(said)} differences between the two images." if len(said) > 1 else "There is only one difference.",
            "same": "Yes, nothing changed." if told[str(i)][2] == "yes" else "No, the two images are not the same.",
            "different": "Yes, they are different." if told[str(i)][3] == "yes" else "No, there are no differences.",
        }  # fmt: skip
        answers += [{"id": str(i), "question_type": kind, "response": text} for kind, text in texts.items()]
    metrics, _ = score_by_rules(pairs, answers)

    def f1(matched: float, n_said: float, n_true: float) -> float:
        return 2 * matched / (n_said + n_true) if matched else 0.0

    n_true, n_said = (sum(len(each[side]) for each in told.values()) for side in (0, 1))
    by_type = {
        kind: [[Counter(kind for kind, _ in each[side])[kind] for each in told.values()] for side in (0, 1)]
        for kind in kinds
    }
    matched = {kind: sum(map(min, *sides)) for kind, sides in by_type.items()}
    in_truth = sum(
        category in {name for _, name in true} for true, said, *_ in told.values() for _, category in said
    )
    single = [each for each in told.values() if len(each[0]) == 1]

    def faithful(true: list[tuple[str, str]], said: list[tuple[str, str]]) -> float:
        return sum((Counter(true) & Counter(said)).values()) / len(said)

    theirs = {
        "dqr_ratio": mean(len(said) / len(true) for true, said, *_ in told.values()),
        "dqr_exact": mean(len(said) == len(true) for true, said, *_ in told.values()),
        "ds_tolerance": mean(
            max(0, 1 - abs(len(said) - len(true)) / len(true)) for true, said, *_ in told.values()
        ),
        "tf1_micro": f1(sum(matched.values()), n_said, n_true),
        "tf1_macro": mean(f1(matched[kind], *(sum(side) for side in by_type[kind])) for kind in kinds),
        "cf1_code": f1(in_truth, n_said, n_true),
        "contradiction_rate": mean(same == different == "yes" for _, _, same, different in single),
        "drf": mean(faithful(true, said) for true, said, *_ in told.values()),
    }
    assert {name: metrics[name].value for name in theirs} == pytest.approx(theirs)
    assert not any(metrics[name].unread for name in theirs)


@pytest.mark.parametrize("seed", range(3))
def test_magiscore(seed):
    """Precision, recall and F1 of cited boxes from the counts of all questions (section 4.1), and right answers over questions."""
    draw = random.Random(seed)
    cite = ["R{}.", "In box {} there is a dog.", "Region {} shows it.", "See bounding box number {}."]
    questions, answers, counts, right = [], {}, Counter(), []
    for i in range(30):
        boxes = [
            {"box": (10.0 * j, 0.0, 5.0, 5.0), "relevant": j == 0 or draw.random() < 0.5} for j in range(4)
        ]
        said = sorted(draw.sample(range(1, 5), draw.randint(1, 3)))
        answer, given = draw.choice(["yes", "no"]), draw.choice(["yes", "no"])
        questions.append(
            MagicQuestion(id=str(i), image="a.png", question="Is it red?", answer=answer, boxes=boxes)
        )
        steps = " ".join(draw.choice(cite).format(number) for number in said)
        answers[str(i)] = f"{steps} The answer is {given}."
        relevant = {j for j, box in enumerate(boxes, 1) if box["relevant"]}
        counts += Counter(hit=len(relevant & set(said)), said=len(said), true=len(relevant))
        right.append(answer == given)
    metrics, _ = Magic().score(MagicTruth(questions, {each.id: {} for each in questions}), answers)
    precision, recall = counts["hit"] / counts["said"], counts["hit"] / counts["true"]
    theirs = {
        "magiscore_micro_precision": precision,
        "magiscore_micro_recall": recall,
        "magiscore_micro_f1": 2 * precision * recall / (precision + recall),
        "accuracy_short": mean(right),
    }
    assert {name: metrics[name].value for name in theirs} == pytest.approx(theirs)


def test_the_authors_profiles_of_pope_and_mme_read_as_their_code_does():
    """POPE's first sentence says no by `No`, `no` or `not`; MME's first four characters say yes or no."""
    texts = [
        "Yes, it is.",
        "No.",
        "There is no dog. Yes.",
        "yes",
        "It is not here.",
        "NO",
        "**No**",
        "Perhaps",
    ]
    samples = [Sample(id=str(i), question="Is there a dog?", answer="yes") for i in range(len(texts))]
    pope = make_benchmark("pope", {"profile": "code"})
    metrics, _ = pope.score(samples, {str(i): text for i, text in enumerate(texts)})
    theirs = [
        not set(text.partition(".")[0].replace(",", "").split(" ")) & {"No", "no", "not"} for text in texts
    ]
    assert metrics["accuracy"].value == mean(theirs)
    samples = [
        Sample(id=f"{i}-{label}", question="?", answer=label, metadata={"subtask": "scene", "image": str(i)})
        for i in range(len(texts)) for label in ("yes", "no")
    ]  # fmt: skip
    answers = {sample.id: texts[int(sample.id.partition("-")[0])] for sample in samples}
    metrics, _ = Mme(profile="code").score(samples, answers)
    said = [next((word for word in ("yes", "no") if word in text.lower()[:4]), None) for text in texts]
    assert metrics["scene_accuracy"].value == mean(
        [word == label for word in said for label in ("yes", "no")]
    )
