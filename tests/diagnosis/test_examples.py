"""Examples of a named cause: what is changed in a prompt, and what the model answers then."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from helpers.asked import drive, read
from helpers.causal_toy import COLOURS, build_toy, draw_sample
from PIL import Image

from mmprobe.diagnosis.answers import make_answer
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.choices import Choice
from mmprobe.diagnosis.diagnose import diagnosis_ledger
from mmprobe.diagnosis.examples import ask_examples, choose_examples, describe_change
from mmprobe.diagnosis.study import Case, Study
from mmprobe.models.prompt import Chat, build_chat


@pytest.fixture
def study(tmp_path):
    toy = build_toy()
    samples = [draw_sample(tmp_path, colour) for colour in COLOURS]
    answers = [make_answer(toy, sample, toy.tokenizer(sample.answer)["input_ids"]) for sample in samples]
    return Study(toy, answers, max_new_tokens=1)


def test_a_model_that_sees_says_the_colour_of_the_other_image(study, tmp_path):
    ledger = diagnosis_ledger(tmp_path)
    tests = {name: CAUSES[name]() for name in ("blind", "language-prior")}
    chosen = [(name, answer.sample.id) for name in tests for answer in study.answers]
    found = ask_examples(study, chosen, tests, ledger, 8)
    assert [(each.cause, each.id) for each in found] == chosen
    for each in found[: len(COLOURS)]:
        assert each.changed == "Another image" and each.then in set(COLOURS) - {each.answer}
    for each in found[len(COLOURS) :]:
        assert each.changed == "Grey images" and each.answer in COLOURS
    with patch.object(study.model.hf, "generate", side_effect=AssertionError("asked again")):
        assert ask_examples(study, chosen, tests, ledger, 8) == found


@pytest.mark.parametrize("cause", ["follows-hints", "unsure-agreeable", "order"])
def test_a_closed_question_is_shown_as_its_test_asks_it(cause, study, tmp_path):
    sample = draw_sample(tmp_path, "red").model_copy(update={"question": "Is it red?", "answer": "Yes."})
    answer = study.answers[0]._replace(sample=sample, ids=[1], tokens=["Yes"], text="Yes")
    test, asked = CAUSES[cause](), []

    def keep(request):
        asked.append(request.chat)
        return read([1.0])

    with patch.object(Study, "choice", return_value=Choice(step=0, tokens=(1, 2), words=("yes", "no"))):
        case = Case(study, answer, {"own": read([1.0])})
        study.numbers[sample.id] = 0
        drive(test.ask(case), keep)
        shown = drive(test.show(case), keep)
    assert shown.messages == asked[0].messages != build_chat(sample).messages
    assert describe_change(build_chat(sample), shown).startswith("User: ")


def test_what_differs_between_two_prompts_is_said():
    red, blue, grey = (Image.new("RGB", (4, 4)) for _ in range(3))
    red.putpixel((0, 0), (255, 0, 0))
    blue.putpixel((0, 0), (0, 0, 255))
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Red?"}]}]
    own = Chat(turns, [red, blue], "a")
    expected = {
        "": [red, blue],
        "Images in another order": [blue, red],
        "Another image 2": [red, red],
        "Grey images": [grey, grey],
        "Without images": [],
        "After another image": [red, red, blue],
    }
    assert {
        describe_change(own, own._replace(images=images)): images for images in expected.values()
    } == expected
    claimed = [*turns, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Red?"}]
    assert describe_change(own, own._replace(messages=claimed)) == "User: Red?\nModel: No.\nUser: Red?"


def test_the_surest_answers_are_the_examples():
    answers = [
        {"id": str(number), "causes": ["blind"] if number else [], "scores": {"blind": number / 10}}
        for number in range(6)
    ]
    assert choose_examples(["blind", "forgets"], answers) == [("blind", "5"), ("blind", "4"), ("blind", "3")]
