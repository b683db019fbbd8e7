"""Right and wrong answers, written by hand for two small scene pairs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmprobe.benchmarks.synthetic.check import check_answer, check_sample
from mmprobe.benchmarks.synthetic.pairs import read_synthetic_objects
from mmprobe.errors import InputError
from mmprobe.samples import Sample

OBJECTS = [["red star B2", "orange ring C1", "blue heart D4"], ["green star B2", "blue heart A4"]]
SENTENCES = ("The star changed from red to green.", "The ring was removed.", "The heart moved from D4 to A4.")
ALL = " ".join(SENTENCES)
ONE, TWO = (
    "Picture one: red star B2, orange ring C1, blue heart D4.",
    "Picture two: green star B2, blue heart A4.",
)
CAPTION = "A red star at B2, an orange ring at C1 and a blue heart at D4."
TRUTHS = {
    "same": f"No. {ALL}",
    "different": f"Yes. {ALL}",
    "count": "There are 3 differences.",
    "find": ALL,
    "exists": "Yes, the star is at B2.",
    "colour": "The star is red.",
    "describe": CAPTION,
    "steps": f"{ONE}\n{TWO}\nTherefore: {ALL}",
}
UNCHANGED = {
    "same": "Yes. Nothing changed.",
    "different": "No. Nothing changed.",
    "count": "There are no differences.",
    "steps": f"{ONE}\n{ONE.replace('one', 'two', 1)}\nTherefore: Nothing changed.",
}
GARBAGE = (
    "",
    " ",
    ".",
    "...",
    "\n\n",
    "?!",
    ",",
    "blah",
    "Nothing",
    "Picture",
    "the the the",
    "\U0001f600",
    "at is .",
    "Picture one:",
    "Therefore:",
)


def check(kind, answer, truth=None):
    differences = [{"sentence": sentence} for sentence in SENTENCES]
    facts = {"type": kind, "objects": OBJECTS, "differences": differences}
    return check_answer(answer, truth or TRUTHS[kind], facts)


def check_unchanged(kind, answer):
    facts = {"type": kind, "objects": [OBJECTS[0], OBJECTS[0]], "differences": []}
    return check_answer(answer, UNCHANGED[kind], facts)


@pytest.mark.parametrize("kind", TRUTHS)
def test_the_truth_is_exact_correct_and_faithful(kind):
    verdict = check(kind, f"  {TRUTHS[kind]}\n")
    assert (verdict.exact, verdict.correct, verdict.faithful, verdict.errors) == (True, True, True, ())


@pytest.mark.parametrize("kind", UNCHANGED)
def test_the_truth_about_equal_images_is_exact_correct_and_faithful(kind):
    verdict = check_unchanged(kind, UNCHANGED[kind])
    assert (verdict.exact, verdict.correct, verdict.faithful, verdict.errors) == (True, True, True, ())


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("same", "No."),
        ("same", "no"),
        ("same", f"No. {SENTENCES[1]}"),
        ("different", "YES!"),
        ("different", f"Yes. {SENTENCES[2]} {SENTENCES[0]}"),
        ("count", "There are 3 differences"),
        ("find", f"{SENTENCES[2]} {SENTENCES[0]} {SENTENCES[1]}"),
        ("exists", "Yes."),
        ("colour", "The star is red"),
        ("colour", "I think the star is red."),
        ("describe", "An orange ring at C1, a blue heart at D4, a red star at B2"),
        ("steps", f"Picture one: red star B2.\nTherefore: {ALL}"),
        ("steps", f"Therefore: {ALL}"),
    ],
)
def test_the_right_conclusion_in_other_words_is_correct_but_not_exact(kind, answer):
    verdict = check(kind, answer)
    assert (verdict.exact, verdict.correct, verdict.faithful, verdict.errors) == (False, True, True, ())


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("find", SENTENCES[0]),
        ("find", f"{SENTENCES[0]} {SENTENCES[2]}"),
        ("describe", "A red star at B2."),
        ("describe", "A red star at B2 and a blue heart at D4."),
        ("steps", f"{ONE}\n{TWO}"),
        ("steps", f"{ONE}\n{TWO}\nTherefore: {SENTENCES[1]}"),
    ],
)
def test_what_leaves_something_out_is_incomplete_but_faithful(kind, answer):
    verdict = check(kind, answer)
    assert (verdict.exact, verdict.correct, verdict.faithful, verdict.errors) == (False, False, True, ())


@pytest.mark.parametrize(
    ("kind", "answer", "correct", "error"),
    [
        ("same", "Yes.", False, "yes is wrong"),
        ("same", "No. The star was removed.", True, "not a change: The star was removed."),
        ("same", "No. Nothing changed.", True, "not a change: Nothing changed."),
        ("different", f"No. {ALL}", False, "no is wrong"),
        ("different", f"{ALL}", False, "neither yes nor no"),
        ("count", "There are 2 differences.", False, "wrong number: There are 2 differences."),
        ("count", "There are 33 differences.", False, "wrong number: There are 33 differences."),
        (
            "find",
            f"{ALL} The ring moved from C1 to C2.",
            False,
            "not a change: The ring moved from C1 to C2.",
        ),
        (
            "find",
            "The star changed from green to red.",
            False,
            "not a change: The star changed from green to red.",
        ),
        ("find", "Nothing changed.", False, "not a change: Nothing changed."),
        ("exists", "Yes, the star is at B3.", True, "the star is not at B3"),
        ("exists", "No, there is no star.", False, "there is a star"),
        ("colour", "The star is blue.", False, "the star is not blue"),
        ("colour", "The star is red. The heart is red.", False, "the heart is not red"),
        ("describe", CAPTION.replace("C1", "C2"), False, "not in the picture: orange ring C2"),
        ("describe", f"{CAPTION} A black cross at A1.", False, "not in the picture: black cross A1"),
        ("steps", TRUTHS["steps"].replace("ring C1", "ring C2"), True, "not in picture one: orange ring C2"),
        (
            "steps",
            TRUTHS["steps"].replace("heart A4.", "heart A4, red ring C1."),
            True,
            "not in picture two: red ring C1",
        ),
        ("steps", f"{ONE}\n{TWO}\nTherefore: Nothing changed.", False, "not a change: Nothing changed."),
    ],
)
def test_a_false_statement_is_caught_and_named(kind, answer, correct, error):
    verdict = check(kind, answer)
    assert error in verdict.errors
    assert (verdict.exact, verdict.correct, verdict.faithful) == (False, correct, False)


@pytest.mark.parametrize(
    ("kind", "answer", "error"),
    [
        ("same", "No. The star was removed.", "no is wrong"),
        ("different", "Yes. Nothing changed.", "yes is wrong"),
        ("count", "There is 1 difference.", "wrong number: There is 1 difference."),
        ("steps", f"{ONE}\nTherefore: The ring was removed.", "not a change: The ring was removed."),
    ],
)
def test_an_invented_difference_of_equal_images_is_caught(kind, answer, error):
    verdict = check_unchanged(kind, answer)
    assert not verdict.correct
    assert error in verdict.errors


def test_what_is_absent_may_be_denied_and_what_is_there_may_not():
    truth = "No, there is no cross."
    assert check("exists", truth, truth).exact
    false = check("exists", "No, there is no heart.", truth)
    assert (false.correct, false.faithful, false.errors) == (True, False, ("there is a heart",))
    invented = check("exists", "Yes, the cross is at A1.", truth)
    assert (invented.correct, invented.errors[1:]) == (False, ("the cross is not at A1",))


def test_a_polite_sentence_makes_no_number_false():
    polite = check("count", f"{TRUTHS['count']} There, there.")
    assert (polite.exact, polite.faithful, polite.errors) == (False, True, ())


@pytest.mark.parametrize("kind", TRUTHS)
@pytest.mark.parametrize("answer", GARBAGE)
def test_garbage_is_never_correct(kind, answer):
    verdict = check(kind, answer)
    assert not verdict.correct
    assert not verdict.exact


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    kind=st.sampled_from(sorted(TRUTHS)),
    answer=st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(
                [
                    "Yes",
                    "No",
                    ".",
                    ",",
                    " ",
                    "\n",
                    ":",
                    "the star is",
                    "at B2",
                    "a red star",
                    "Picture one:",
                    "Therefore:",
                    *SENTENCES,
                ]
            )
        ).map("".join),
    ),
)
def test_no_answer_crashes_the_check(kind, answer):
    verdict = check(kind, answer)
    assert verdict.exact == (answer.strip() == TRUTHS[kind])
    assert verdict.faithful == (not verdict.errors)


def test_an_unknown_question_type_is_refused():
    with pytest.raises(ValueError, match="unknown question type"):
        check("riddle", "x", "x")


@pytest.mark.parametrize(
    "kind", ["same", "different", "count", "find", "exists", "colour", "describe", "steps"]
)
@pytest.mark.parametrize("answer", ["", "Hello.", "I cannot see any pictures."])
def test_an_answer_that_states_nothing_of_the_kind_is_not_faithful(kind, answer):
    facts = {
        "type": kind,
        "objects": [["red star B2"], []],
        "differences": [{"sentence": "The star was removed."}],
    }
    verdict = check_answer(answer, "Yes, the star is at B2.", facts)
    assert not verdict.faithful
    assert not verdict.correct
    assert verdict.errors


def test_a_false_clause_right_after_the_verdict_is_caught():
    facts = {
        "type": "same",
        "objects": [["red star B2"], []],
        "differences": [{"sentence": "The star was removed."}],
    }
    assert check_answer("No, The star was removed.", "No. The star was removed.", facts).faithful
    assert not check_answer("No, the ring was removed.", "No. The star was removed.", facts).faithful


@pytest.mark.parametrize(
    "listed",
    [None, 3, "cat", ["dog"], [["dog"]], [3], [[3]], [{"name": "dog"}], [[{"name": "dog"}]], {"a": 1}],
)
def test_contents_from_elsewhere_are_not_checked_as_drawn(listed):
    """Anyone's metadata may have these names: nothing is judged by the drawn world's grammar, and nothing fails."""
    metadata = {"type": "same", "objects": listed, "differences": []}
    sample = Sample(id="a", images=["a.png"], question="Is it?", answer="No.", metadata=metadata)
    assert check_sample("No.", sample) is None
    with pytest.raises(InputError, match="sample a: .*objects"):
        read_synthetic_objects([sample])
