"""The voting filter: against algorithm 1 written out, cut off and resumed at every vote."""

from __future__ import annotations

import contextlib
import json

import pytest

from mmprobe.benchmarks.mmreason.voting import open_votes, vote
from mmprobe.errors import InputError

QUESTIONS = {"a": "2 + 2?", "b": "What is drawn?", "c": "How old?", "d": "How many?"}
VOTERS = ["m", "n", "o"]
RIGHT = {(1, "m", "a"), (1, "n", "a"), (2, "o", "c"), (3, "m", "d")}
UNANSWERED = {(1, "o", "b")}


class Answers:
    """What the voters say, and what was asked."""

    def __init__(self, stop_after: int | None = None, unanswered=UNANSWERED) -> None:
        self.asked: list[tuple[int, str, str]] = []
        self.stop_after, self.unanswered = stop_after, unanswered

    def __call__(self, voter: str, names: list[str], turn: int):
        for name in names:
            if self.stop_after is not None and len(self.asked) == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((turn, voter, name))
            if self.asked[-1] not in self.unanswered:
                yield name, f"{'Yes' if self.asked[-1] in RIGHT else 'No'}, {voter}: \u201c{name}\u201d"


def check(responses):
    return {name: text.startswith("Yes") for name, text in responses.items()}


def filtered(file, ask, rounds=2, voters=VOTERS, questions=QUESTIONS, settings=None, check=check):
    return vote(list(questions), voters, ask, check, open_votes(file, questions, settings or {}), rounds)


def test_whatever_is_right_once_is_removed(tmp_path):
    ask = Answers()
    found = filtered(tmp_path / "new" / "votes.jsonl", ask)
    assert found.kept == ["b", "d"] and found.undecided == []
    assert found.removed == {"a": (1, ("m", "n")), "c": (2, ("o",))}
    assert [share.value for share in found.removed_by_round] == pytest.approx([1 / 4, 1 / 3])
    assert found.right == {
        "m": [[True, False, False, False], [False, False, False]],
        "n": [[True, False, False, False], [False, False, False]],
        "o": [[False, None, False, False], [False, True, False]],
    }
    # every voter votes on all of a round, and nobody on what an earlier round removed
    first = [(1, voter, name) for voter in VOTERS for name in "abcd"]
    assert ask.asked == first + [(2, voter, name) for voter in VOTERS for name in "bcd"]


def test_a_filter_cut_off_at_any_vote_goes_on_and_asks_nothing_twice(tmp_path):
    whole = filtered(tmp_path / "whole.jsonl", Answers(unanswered=()))
    for stop in range(22):
        file = tmp_path / f"{stop}.jsonl"
        first = Answers(stop, unanswered=())
        with contextlib.suppress(KeyboardInterrupt):
            filtered(file, first)
        if stop % 3 == 1:  # cut off within a line
            file.write_bytes(file.read_bytes()[:-7])
            first.asked.pop()
        second = Answers(unanswered=())
        assert filtered(file, second) == whole
        assert len(set(first.asked) & set(second.asked)) == 0
        assert len(first.asked) + len(second.asked) == 21
        assert file.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_who_could_not_be_asked_is_asked_again(tmp_path):
    filtered(tmp_path / "votes.jsonl", Answers())
    again = Answers(unanswered=())
    filtered(tmp_path / "votes.jsonl", again)
    assert set(again.asked) == UNANSWERED


def test_what_nobody_could_be_asked_about_is_undecided(tmp_path):
    never = {(turn, voter, "b") for turn in (1, 2) for voter in VOTERS}
    found = filtered(tmp_path / "votes.jsonl", Answers(unanswered=never))
    assert found.kept == ["d"] and found.undecided == ["b"]


def test_what_could_not_be_checked_is_undecided_and_needs_no_answers_anew(tmp_path):
    file = tmp_path / "votes.jsonl"
    found = filtered(file, Answers(unanswered=()), check=lambda responses: dict.fromkeys(responses))
    assert found.undecided == list("abcd") and found.kept == [] and found.removed == {}
    assert filtered(file, Answers(stop_after=0)).removed == {"a": (1, ("m", "n")), "c": (2, ("o",))}


def test_a_third_round_asks_only_what_is_new(tmp_path):
    filtered(tmp_path / "votes.jsonl", Answers(unanswered=()))
    ask = Answers(unanswered=())
    found = filtered(tmp_path / "votes.jsonl", ask, rounds=3)
    assert found.kept == ["b"] and {turn for turn, _, _ in ask.asked} == {3}


def test_no_question_is_left(tmp_path):
    def always(voter, names, turn):
        yield from ((name, "Yes") for name in names)

    found = filtered(tmp_path / "votes.jsonl", always, 2, ["m"], {"a": "?"})
    assert found.kept == [] and found.removed_by_round[1].value is None and found.right["m"][1] == []


def test_votes_on_other_questions_or_with_other_settings_are_refused_and_left_alone(tmp_path):
    file = tmp_path / "votes.jsonl"
    filtered(file, Answers())
    before = file.read_bytes()
    with pytest.raises(InputError, match="other questions"):
        filtered(file, Answers(), questions=QUESTIONS | {"a": "2 + 3?"})
    with pytest.raises(InputError, match="other settings"):
        filtered(file, Answers(), settings={"temperature": 1.0})
    assert file.read_bytes() == before
    for content in (b"important", b"important\nnotes", b'{"x": 1}\n'):
        file.write_bytes(content)
        with pytest.raises(InputError, match="no votes"):
            filtered(file, Answers())
        assert file.read_bytes() == content


def test_a_damaged_vote_is_named_by_its_line(tmp_path):
    file = tmp_path / "votes.jsonl"
    filtered(file, Answers())
    lines = file.read_text().split("\n")
    good = json.loads(lines[2])
    for broken in ("{", json.dumps(good | {"response": None}), json.dumps(good | {"round": True}), "[]"):
        file.write_text("\n".join([*lines[:2], broken, *lines[3:]]))
        with pytest.raises(InputError, match="line 3"):
            filtered(file, Answers())


def test_voters_and_rounds_are_needed(tmp_path):
    for voters, rounds in [([], 2), (["m", "m"], 2), (["m", ""], 2), (["m"], 0)]:
        with pytest.raises(InputError):
            filtered(tmp_path / "votes.jsonl", Answers(), rounds, voters)
