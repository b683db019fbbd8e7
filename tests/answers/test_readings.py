"""What share of answers the rules read wrongly, and what share they leave unread, on texts nobody tuned to."""

from __future__ import annotations

import threading
import time

import pytest
from helpers.readings import Item, read_all

from mmprobe.benchmarks.answers.claims import parse_count
from mmprobe.benchmarks.answers.drawn import judge_statement
from mmprobe.benchmarks.answers.forms import find_answer
from mmprobe.benchmarks.answers.numbers import read_number, same_expression
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.magic.rule_labels import is_correct
from mmprobe.benchmarks.magic.steps import find_cited_regions
from mmprobe.benchmarks.mirage_effect.rule_labels import find_diagnosis, is_alarming

FOUR = {"A": "a red car", "B": "a blue bus", "C": "a green tram", "D": "a yellow taxi"}


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return list(read_all())


def test_less_than_one_percent_is_read_wrongly(items):
    wrong = [item for item in items if item.outcome == "wrong"]
    assert len(items) >= 400
    assert len(wrong) < 0.01 * len(items), [(item.kind, item.line["answer"]) for item in wrong]


def test_what_is_declared_is_read(items):
    for kind in {item.kind for item in items} - {"typical"}:
        declared = [item for item in items if item.kind == kind and item.declared]
        n_read = sum(item.outcome == "right" for item in declared)
        assert n_read >= 0.95 * len(declared) and declared, kind


def test_typical_answers_of_real_models_are_read(items):
    typical = [item for item in items if item.kind == "typical"]
    assert len(typical) >= 180 and not [item.line["answer"] for item in typical if item.outcome == "wrong"]
    with_reading = [item for item in typical if item.line.get("right", item.line["read"]) not in (None, "")]
    unread = [item.line["answer"] for item in with_reading if item.outcome == "unread"]
    assert len(unread) <= 0.1 * len(with_reading), unread


def test_refusals_are_never_right():
    text = "There is no image attached, so I cannot answer."
    assert find_answer(text).refused and read_yes_no(text) is None
    assert judge_statement(text, "No") == judge_statement("Please provide 2 images.", "2") == "refused"
    assert read_number("Please provide 2 images.") is None and parse_count("Please provide 2 images.") is None


@pytest.mark.parametrize("text", ["The answer is not C.", "A, C and D are possible.", "A or B", "Maybe (B)"])
def test_an_open_choice_is_unread(text):
    assert read_choice(text, FOUR) == (None, False)


@pytest.mark.parametrize(
    "text",
    ["I choose B.", "It's C. Wait, it's B.", "It's not A. It's B.", "It must be B, since the bus is blue.",
     "A is red, C is green, D is yellow. So, B", "That leaves B.", "B is correct; A, C and D are wrong."],
)  # fmt: skip
def test_a_last_sentence_names_an_option(text):
    assert read_choice(text, FOUR)[0] == "B"


@pytest.mark.parametrize(
    "text",
    ["If it's B. Then the bus is blue.", "It's B. subtilis.", "I wouldn't choose B.",
     "It's B or C.", "So B and C are wrong.", "Is it B?", "It is not B."],
)  # fmt: skip
def test_a_sentence_that_only_mentions_an_option_is_unread(text):
    assert read_choice(text, FOUR)[0] is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("twenty-four", 24), ("Ninety", 90), ("I count 23.", 23), ("There are forty two chairs.", 42),
     ("There are 3 rows of 8 chairs, so 24 in total.", 24), ("12 on the left and 12 on the right, for a total of 24 in all.", 24),
     ("I count 3 rows of chairs.", 3), ("Not all are visible, so 24 in total.", 24), ("twenty-four or twenty-five", None),
     ("I count at least 23, maybe more.", None), ("twenty-eleven", None)],
)  # fmt: skip
def test_counts_in_words_and_sums(text, number):
    assert read_number(text) == number


@pytest.mark.parametrize(
    ("text", "said"),
    [("Nope, there isn't.", "no"), ("Yeah, I can see a cat.", "yes"), ("Not at all. No", "no"),
     ("Not at all similar to the first image.", None), ("Yeah, maybe.", None), ("Yep! Wait, no.", "no")],
)  # fmt: skip
def test_colloquial_words_are_read_as_yes_and_no(text, said):
    assert read_yes_no(text) == said


@pytest.mark.parametrize(
    ("question", "response", "said"),
    [
        ("Is the man wearing a hat?", "The man has no hat.", "no"),
        ("Is the man wearing a hat?", "The man is not smiling.", None),
        ("Is the man wearing a hat?", "The man wears no glasses.", None),
        ("Is there a dog in the image?", "There is no dog on the sofa.", "no"),
        ("Is there a dog in the image?", "There is no cat on the sofa.", None),
        ("Is there a dog in the image?", "The dog is not wearing a collar.", None),
        ("Are there any people in the image?", "None of them are people.", "no"),
        ("Are there two people in the image?", "There are no children, but there are two people.", "yes"),
        ("Is it raining?", "There is no sign of rain.", "no"),
    ],
)
def test_only_a_denial_of_what_is_asked_says_no(question, response, said):
    assert read_yes_no(response, question) == said


def test_a_unit_may_touch_its_number():
    assert (
        read_choice("12cm", {"A": "4 cm", "B": "12 cm"})[0] == "B" and judge_text("12mm", "12 cm") == "wrong"
    )


@pytest.mark.parametrize("text", ["20-24", "between 20 and 24", "24 or 25", "not 24", "12 cm by 5 cm"])
def test_an_open_number_is_unread(text):
    assert read_number(text) is None


@pytest.mark.parametrize(
    "text",
    ["The answer is **B. a blue bus**.", "So the final answer is: $\\boxed{B}$.", "### Final Answer\n\\[\n\\boxed{B}\n\\]",
     "Based on the image, the correct answer is:\n\n**B. a blue bus**", "Therefore, the correct choice is B.", "Thus [[B]]."],
)  # fmt: skip
def test_declared_choices_of_real_models_are_read(text):
    assert read_choice(text, FOUR) == ("B", False)


def test_equal_expressions_are_right():
    assert judge_text("The answer is $3+2x$.", "2x+3") == "right"
    assert judge_text("Answer: 3x+2", "2x+3") == "wrong"


def test_other_examples_of_guesses():
    assert is_alarming("acute coronary syndrome") is True
    assert find_diagnosis("<diagnosis>melanoma unlikely</diagnosis>") == "melanoma unlikely"
    assert find_cited_regions(["The distance from R1 to R3"], 4) is None
    assert is_correct("It is not really red.", "red") is False


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "9^{9^{9^{9}}}", "9**9**9**9", "10^{999999999}", "99999999999999999999!", "x" * 10_000,
     "(" * 5_000, r"\int_0^{10^9} e^{x^{x^x}} dx", r"\frac{" * 2_000, "((x+1)^9)^9", "open('/etc/passwd')", "f(lambda: 3)"],
)  # fmt: skip
def test_expressions_are_compared_in_bounded_time_and_never_run(text):
    start = time.process_time()
    assert same_expression(text, "2x+3") in (None, False)
    assert same_expression("2x+3", text) in (None, False)
    assert time.process_time() - start < 20


def test_expressions_are_compared_in_a_thread():
    results: list[bool | None] = []
    thread = threading.Thread(target=lambda: results.append(same_expression("2x+3", "3+2x")))
    thread.start()
    thread.join(60)
    assert results == [True]


@pytest.mark.parametrize(
    ("truth", "response", "verdict"),
    [
        ("12 May 2020", "It says 12/05/2020.", "right"),
        ("May 12, 2020", "2020-05-12", "right"),
        ("12 May 2020", "12/06/2020", "other"),
        ("10 out 2000", "12/05/2020", "other"),
    ],
)
def test_dates_in_digits_are_those_with_the_name_of_a_month(truth, response, verdict):
    assert judge_text(response, truth) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("It is a quarter to five.", "right"),
        ("It is 4:45, not 3:15.", "right"),
        ("It is 3:15, not 4:45.", "other"),
        ("It is either 3:15 or 4:45.", "unread"),
        ("The train leaves at 3:15 and arrives at 4:45.", "unread"),
    ],
)
def test_of_several_times_the_asserted_one_is_read(text, verdict):
    assert judge_text(text, "4:45 pm", question="What time is it?") == verdict


@pytest.mark.parametrize(
    ("text", "truth", "verdict"),
    [
        ("The car [[10, 20, 30, 40]] is blue.", "blue", "right"),
        ("The car<|box_start|>(10,20),(30,40)<|box_end|> is red.", "blue", "wrong"),
        ("The coordinates are [3, 4].", "[3, 4]", "right"),
        ("The matrix is [[1, 2], [3, 4]].", "[[1, 2], [3, 4]]", "right"),
        ("<box>blue</box>", "blue", "right"),
    ],
)
def test_boxes_are_left_out_and_lists_that_answer_are_not(text, truth, verdict):
    assert judge_text(text, truth) == verdict
