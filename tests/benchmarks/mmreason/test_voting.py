"""The voting filter: against algorithm 1 written out, cut off and resumed at every vote."""

from __future__ import annotations

import contextlib
import json

import pytest

from mmprobe.benchmarks.mmreason.voting import vote
from mmprobe.errors import InputError

QUESTIONS = {"a": "2 + 2?", "b": "What is drawn?", "c": "How old?", "d": "How many?"}
VOTERS = ["m", "n", "o"]
RIGHT = {(1, "m", "a"), (1, "n", "a"), (2, "o", "c"), (3, "m", "d")}
UNSCORED = {(1, "o", "b")}


class Answers:
    """What the voters say, and what was asked."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.asked: list[tuple[int, str, str]] = []
        self.stop_after = stop_after

    def __call__(self, voter: str, name: str, turn: int) -> bool | None:
        if self.stop_after is not None and len(self.asked) == self.stop_after:
            raise KeyboardInterrupt
        self.asked.append((turn, voter, name))
        return None if self.asked[-1] in UNSCORED else self.asked[-1] in RIGHT


def test_whatever_is_right_once_is_removed(tmp_path):
    ask = Answers()
    found = vote(QUESTIONS, VOTERS, ask, tmp_path / "new" / "votes.jsonl")
    assert found.kept == ["b", "d"]
    assert found.removed == {"a": (1, ("m", "n")), "c": (2, ("o",))}
    assert found.removed_share.value == 0.5 and found.removed_share.n == 4
    assert [share.value for share in found.removed_by_round] == pytest.approx([1 / 4, 1 / 3])
    assert found.right == {
        "m": [(1, 4, 0), (0, 3, 0)],
        "n": [(1, 4, 0), (0, 3, 0)],
        "o": [(0, 4, 1), (1, 3, 0)],
    }
    # every voter votes on all of a round, and nobody on what an earlier round removed
    first = [(1, voter, name) for voter in VOTERS for name in "abcd"]
    assert ask.asked == first + [(2, voter, name) for voter in VOTERS for name in "bcd"]


def test_a_filter_cut_off_at_any_vote_goes_on_and_asks_nothing_twice(tmp_path):
    whole = vote(QUESTIONS, VOTERS, Answers(), tmp_path / "whole.jsonl")
    for stop in range(22):
        file = tmp_path / f"{stop}.jsonl"
        first = Answers(stop)
        with contextlib.suppress(KeyboardInterrupt):
            vote(QUESTIONS, VOTERS, first, file)
        if stop % 3 == 1:  # cut off within a line
            file.write_bytes(file.read_bytes()[:-7])
            first.asked.pop()
        second = Answers()
        assert vote(QUESTIONS, VOTERS, second, file) == whole
        assert len(set(first.asked) & set(second.asked)) == 0
        assert len(first.asked) + len(second.asked) == 21
        assert file.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_third_round_asks_only_what_is_new(tmp_path):
    vote(QUESTIONS, VOTERS, Answers(), tmp_path / "votes.jsonl")
    ask = Answers()
    found = vote(QUESTIONS, VOTERS, ask, tmp_path / "votes.jsonl", rounds=3)
    assert found.kept == ["b"] and {turn for turn, _, _ in ask.asked} == {3}


def test_no_question_is_left(tmp_path):
    found = vote({"a": "?"}, ["m"], lambda *_: True, tmp_path / "votes.jsonl", rounds=2)
    assert found.kept == [] and found.removed_by_round[1].value is None and found.right["m"][1] == (0, 0, 0)


def test_votes_on_other_questions_are_refused_and_left_alone(tmp_path):
    file = tmp_path / "votes.jsonl"
    vote(QUESTIONS, VOTERS, Answers(), file)
    before = file.read_bytes()
    with pytest.raises(InputError, match="other questions"):
        vote(QUESTIONS | {"a": "2 + 3?"}, VOTERS, Answers(), file)
    assert file.read_bytes() == before
    for content in (b"important", b"important\nnotes", b'{"x": 1}\n'):
        file.write_bytes(content)
        with pytest.raises(InputError, match="no votes"):
            vote(QUESTIONS, VOTERS, Answers(), file)
        assert file.read_bytes() == content


def test_a_damaged_vote_is_named_by_its_line(tmp_path):
    file = tmp_path / "votes.jsonl"
    vote(QUESTIONS, VOTERS, Answers(), file)
    lines = file.read_text().split("\n")
    for broken in ("{", json.dumps({"round": 1, "voter": "m", "id": "a", "right": "yes"}), "[]"):
        file.write_text("\n".join([*lines[:2], broken, *lines[3:]]))
        with pytest.raises(InputError, match="line 3"):
            vote(QUESTIONS, VOTERS, Answers(), file)


def test_voters_and_rounds_are_needed(tmp_path):
    for voters, rounds in [([], 2), (["m", "m"], 2), (["m"], 0)]:
        with pytest.raises(InputError):
            vote(QUESTIONS, voters, Answers(), tmp_path / "votes.jsonl", rounds)
