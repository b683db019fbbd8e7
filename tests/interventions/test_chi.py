"""CHI: its requests, and the places of the hints."""

from __future__ import annotations

import pytest
from helpers.answers import make_sample, prepare

from mmprobe.interventions import generate, load_method
from mmprobe.interventions.generate import GeneratedAnswer


def ask_chi(tiny_spd, image_paths, topic_reply, **parameters):
    """Return CHI's answer and the texts of all that it asked, for one question with a prefill."""
    sample = make_sample(image_paths[:1]).model_copy(update={"question": "How long is AB?", "prefill": "So"})
    (chat,), _ = prepare(tiny_spd, sample)
    asked = []

    def ask(chats, **options):
        for chat in chats:
            text = next(part["text"] for part in chat.messages[-1]["content"] if part["type"] == "text")
            asked.append((text, chat.prefill))
        reply = (
            topic_reply
            if "topics" in asked[-1][0]
            else "Draw it."
            if "solve" in asked[-1][0]
            else "AB is half of AC."
        )
        return [GeneratedAnswer(reply, [], {})] * len(chats)

    (answer,) = load_method("chi", **parameters).answer(tiny_spd, [chat], ask, 0, 4)
    return answer, asked


def test_both_hints_stand_around_the_question(tiny_spd, image_paths):
    answer, asked = ask_chi(tiny_spd, image_paths, "Geometry.")
    assert "algebra, arithmetic" in asked[0][0] and "the topic geometry" in asked[1][0]
    assert asked[-1] == ("Draw it.\n\nHow long is AB?\n\nAB is half of AC.", "So")
    assert [prefill for _, prefill in asked] == ["", "", "", "So"]
    hints = {"topic": "geometry", "topic_hint": "Draw it.", "question_hint": "AB is half of AC."}
    assert answer.diagnostics["chi"] == hints


@pytest.mark.parametrize(
    ("hints", "reply", "last"),
    [
        ("topic", "geometry", "Draw it.\n\nHow long is AB?"),
        ("topic", "geometry or algebra", "How long is AB?"),
        ("question", "geometry", "How long is AB?\n\nAB is half of AC."),
    ],
)
def test_the_rows_of_table_8(hints, reply, last, tiny_spd, image_paths):
    _, asked = ask_chi(tiny_spd, image_paths, reply, hints=hints)
    assert asked[-1][0] == last


@pytest.mark.parametrize(
    ("reply", "begins"), [("Geometry.", "To solve the geometry problem, systematically"), ("Hm.", "How long")]
)
def test_the_fixed_hints_of_figure_19(reply, begins, tiny_spd, image_paths):
    answer, asked = ask_chi(tiny_spd, image_paths, reply, written="paper")
    assert asked[-1][0].startswith(begins) and len(asked) == 3  # the topic, the question's hint, the question
    assert asked[-1][0].endswith("How long is AB?\n\nAB is half of AC.")
    assert answer.diagnostics["chi"]["topic_hint"] == asked[-1][0].partition("How long")[0].strip()


def test_another_model_writes_the_hints(tiny_spd, image_paths):
    answer = generate(
        tiny_spd, make_sample(image_paths[:1]), "chi", hinter="tiny-spd", hints="question", max_new_tokens=3
    )
    own = generate(tiny_spd, make_sample(image_paths[:1]), "chi", hints="question", max_new_tokens=3)
    assert answer.diagnostics["chi"]["question_hint"] and answer == own
