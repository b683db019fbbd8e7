"""The voting filter: algorithm 1 by hand, interrupted and resumed at every vote."""

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
    """The answers of the voters. It records what was asked."""

    def __init__(self, stop_after: int | None = None, unanswered=UNANSWERED) -> None:
        self.asked: list[tuple[int, str, str]] = []
        self.stop_after, self.unanswered = stop_after, unanswered

    def __call__(self, voter: str, names: list[str], round_number: int):
        for name in names:
            if self.stop_after is not None and len(self.asked) == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((round_number, voter, name))
            if self.asked[-1] not in self.unanswered:
                yield name, f"{'Yes' if self.asked[-1] in RIGHT else 'No'}, {voter}: \u201c{name}\u201d"


def check(responses):
    return {name: text.startswith("Yes") for name, text in responses.items()}


def run_filter(file, ask, rounds=2, voters=VOTERS, questions=QUESTIONS, settings=None, check=check):
    return vote(list(questions), voters, ask, check, open_votes(file, questions, settings or {}), rounds)


def test_questions_answered_rightly_once_are_removed(tmp_path):
    ask = Answers()
    result = run_filter(tmp_path / "new" / "votes.jsonl", ask)
    assert result.kept == ["b", "d"] and result.undecided == []
    assert result.removed == {"a": (1, ("m", "n")), "c": (2, ("o",))}
    assert [share.value for share in result.removed_by_round] == pytest.approx([1 / 4, 1 / 3])
    assert result.correct == {
        "m": [[True, False, False, False], [False, False, False]],
        "n": [[True, False, False, False], [False, False, False]],
        "o": [[False, None, False, False], [False, True, False]],
    }
    # every voter votes on all questions of a round, and on none that an earlier round removed
    first = [(1, voter, name) for voter in VOTERS for name in "abcd"]
    assert ask.asked == first + [(2, voter, name) for voter in VOTERS for name in "bcd"]


def test_a_filter_interrupted_at_any_vote_resumes_and_asks_nothing_twice(tmp_path):
    whole = run_filter(tmp_path / "whole.jsonl", Answers(unanswered=()))
    for stop in range(22):
        file = tmp_path / f"{stop}.jsonl"
        first = Answers(stop, unanswered=())
        with contextlib.suppress(KeyboardInterrupt):
            run_filter(file, first)
        if stop % 3 == 1:  # interrupted within a line
            file.write_bytes(file.read_bytes()[:-7])
            first.asked.pop()
        second = Answers(unanswered=())
        assert run_filter(file, second) == whole
        assert len(set(first.asked) & set(second.asked)) == 0
        assert len(first.asked) + len(second.asked) == 21
        assert file.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_voters_that_could_not_be_asked_are_asked_again(tmp_path):
    run_filter(tmp_path / "votes.jsonl", Answers())
    again = Answers(unanswered=())
    run_filter(tmp_path / "votes.jsonl", again)
    assert set(again.asked) == UNANSWERED


def test_questions_without_votes_are_undecided(tmp_path):
    never = {(round_number, voter, "b") for round_number in (1, 2) for voter in VOTERS}
    result = run_filter(tmp_path / "votes.jsonl", Answers(unanswered=never))
    assert result.kept == ["d"] and result.undecided == ["b"]


def test_unchecked_votes_are_undecided_and_not_asked_again(tmp_path):
    file = tmp_path / "votes.jsonl"
    result = run_filter(file, Answers(unanswered=()), check=lambda responses: dict.fromkeys(responses))
    assert result.undecided == list("abcd") and result.kept == [] and result.removed == {}
    assert run_filter(file, Answers(stop_after=0)).removed == {"a": (1, ("m", "n")), "c": (2, ("o",))}


def test_a_third_round_asks_only_what_is_new(tmp_path):
    run_filter(tmp_path / "votes.jsonl", Answers(unanswered=()))
    ask = Answers(unanswered=())
    result = run_filter(tmp_path / "votes.jsonl", ask, rounds=3)
    assert result.kept == ["b"] and {round_number for round_number, _, _ in ask.asked} == {3}


def test_all_questions_are_removed(tmp_path):
    def always(voter, names, round_number):
        yield from ((name, "Yes") for name in names)

    result = run_filter(tmp_path / "votes.jsonl", always, 2, ["m"], {"a": "?"})
    assert result.kept == [] and result.removed_by_round[1].value is None and result.correct["m"][1] == []


def test_votes_on_other_questions_or_settings_are_refused_and_kept(tmp_path):
    file = tmp_path / "votes.jsonl"
    run_filter(file, Answers())
    before = file.read_bytes()
    with pytest.raises(InputError, match="other questions"):
        run_filter(file, Answers(), questions=QUESTIONS | {"a": "2 + 3?"})
    with pytest.raises(InputError, match="other settings"):
        run_filter(file, Answers(), settings={"temperature": 1.0})
    assert file.read_bytes() == before
    for content in (b"important", b"important\nnotes", b'{"x": 1}\n'):
        file.write_bytes(content)
        with pytest.raises(InputError, match="no votes"):
            run_filter(file, Answers())
        assert file.read_bytes() == content


def test_a_damaged_vote_is_named_by_its_line(tmp_path):
    file = tmp_path / "votes.jsonl"
    run_filter(file, Answers())
    lines = file.read_text().split("\n")
    good = json.loads(lines[2])
    for broken in ("{", json.dumps(good | {"response": None}), json.dumps(good | {"round": True}), "[]"):
        file.write_text("\n".join([*lines[:2], broken, *lines[3:]]))
        with pytest.raises(InputError, match="line 3"):
            run_filter(file, Answers())


def test_voters_and_rounds_are_needed(tmp_path):
    for voters, rounds in [([], 2), (["m", "m"], 2), (["m", ""], 2), (["m"], 0)]:
        with pytest.raises(InputError):
            run_filter(tmp_path / "votes.jsonl", Answers(), rounds, voters)


def test_votes_on_images_that_changed_are_refused(tmp_path):
    file = tmp_path / "votes.jsonl"
    before = {"a": "0123"}
    votes = open_votes(file, {"a": "?"}, {}, before)
    votes.collect(
        "m", ["a"], 0, lambda *_: (each for each in [("a", "Yes.")]), lambda given: dict.fromkeys(given)
    )
    assert open_votes(file, {"a": "?"}, {}, before).responses == {(0, "m", "a"): "Yes."}
    with pytest.raises(InputError, match="images .*changed"):
        open_votes(file, {"a": "?"}, {}, {"a": "4567"})
    with pytest.raises(InputError, match="other questions"):
        open_votes(file, {"a": "Why?"}, {}, before)
    text = file.read_text()
    file.write_text(text[:60])  # a kill within the first line
    assert open_votes(file, {"a": "?"}, {}, before).responses == {}
    header, rest = text.split("\n", 1)
    file.write_text(json.dumps({"questions": json.loads(header)["questions"]}) + "\n" + rest)
    assert open_votes(file, {"a": "?"}, {}, before).responses, "of an earlier version"
