"""The voting filter: questions that a model answers from their text alone go (paper 004, algorithm 1)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.core.results import Metric, mean_metric
from mmprobe.errors import InputError

ROUNDS = 2
WITH_PICTURES = 0  # what is asked with the pictures, as a round


Ask = Callable[[str, Sequence[str], int], Generator[tuple[str, str]]]
"""(voter, ids, round) -> id and response, in any order; who could not be asked is left out, and asked again later."""
Check = Callable[[Mapping[str, str]], Mapping[str, bool | None]]
"""Responses by the questions' ids -> whether each is right; None without a verdict."""


@dataclass
class Votes:
    """A file of votes that grows: each is written down at once, and nothing that stands there is asked again.

    Attributes:
        path: JSON lines of round, voter, id and response, under a header; made with the first vote.
        header: the first line, which says what the votes are on.
        cast: the responses, by round, voter and id.
        right: whether they are right, of those that were needed; None without a verdict.
    """

    path: Path
    header: bytes
    cast: dict[tuple[int, str, str], str] = field(default_factory=dict)
    right: dict[tuple[int, str, str], bool | None] = field(default_factory=dict)

    def of(self, voter: str, names: Sequence[str], turn: int, ask: Ask, check: Check) -> list[bool | None]:
        """Whether a voter is right on each question in a round; None where it could not be asked, or not be checked.

        Args:
            turn: from 1; 0 is the one with pictures.
            ask: for what was not asked before. If it raises, the votes until then are kept.
            check: says what is right, once all is answered.
        """
        missing = [name for name in names if (turn, voter, name) not in self.cast]
        if missing:
            what = f"{voter}, {f'round {turn}' if turn else 'with pictures'}"
            with closing(ask(voter, missing, turn)) as answers:
                for name, response in tqdm(answers, what, len(missing), unit="answer", disable=None):
                    self._write({"round": turn, "voter": voter, "id": name, "response": response})
                    self.cast[turn, voter, name] = response
        places = {name: (turn, voter, name) for name in names}
        new = {name: at for name, at in places.items() if at in self.cast and at not in self.right}
        verdicts = check({name: self.cast[at] for name, at in new.items()}) if new else {}
        self.right |= {at: verdicts[name] for name, at in new.items()}
        return [self.right.get(at) for at in places.values()]

    def _write(self, line: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            begun = b"" if file.tell() else self.header
            file.write(begun + json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")


@dataclass(frozen=True)
class Filtered:
    """What the filter leaves, and what it took away.

    Attributes:
        kept: ids, in their order.
        undecided: ids of those that there is no verdict on, since no voter could be asked about them.
        removed: by id, the round and the voters who got the question right in it.
        removed_by_round: by round, share of the questions that it began with.
        right: by voter and round, whether each question that the round began with was answered rightly, in order.
    """

    kept: list[str]
    undecided: list[str]
    removed: dict[str, tuple[int, tuple[str, ...]]]
    removed_by_round: list[Metric]
    right: dict[str, list[list[bool | None]]]


def vote(
    names: Sequence[str], voters: Sequence[str], ask: Ask, check: Check, votes: Votes, rounds: int = ROUNDS
) -> Filtered:
    """Ask each voter each question, text only, round by round; what is answered rightly even once goes.

    All voters vote on what a round begins with; what any of them got right does not enter the next. Who could not
    be asked has not been right.

    Args:
        names: ids of the questions.
        voters: names, 4 in the paper.
        ask: is called for votes that are not there yet.
        check: says which of them are right.
        votes: from `open_votes`.
        rounds: 2 in the paper.

    Raises:
        InputError: no voter or round, or a name twice.

    Example:
        >>> def ask(voter, names, turn):
        ...     return ((name, "4") for name in names)
        >>> def check(responses):
        ...     return {name: name == "a" for name in responses}
        >>> vote(["a", "b"], ["m"], ask, check, open_votes("votes.jsonl", {}, {})).kept        # doctest: +SKIP
        ['b']
    """
    if not voters or "" in voters or len(set(voters)) < len(voters):
        raise InputError("--voters: a voter is missing, or named twice; give names with commas between")
    if rounds < 1:
        raise InputError(f"--rounds {rounds}: must be 1 or more")
    left, unasked = list(names), set(names)
    removed: dict[str, tuple[int, tuple[str, ...]]] = {}
    by_round: list[Metric] = []
    right: dict[str, list[list[bool | None]]] = {voter: [] for voter in voters}
    for turn in range(1, rounds + 1):
        given = {voter: votes.of(voter, left, turn, ask, check) for voter in voters}
        found = {name: tuple(voter for voter in voters if given[voter][at]) for at, name in enumerate(left)}
        for voter in voters:
            right[voter].append(given[voter])
            unasked -= {name for name, one in zip(left, given[voter], strict=True) if one is not None}
        removed |= {name: (turn, by) for name, by in found.items() if by}
        by_round.append(mean_metric([float(bool(by)) for by in found.values()], "neither"))
        left = [name for name in left if not found[name]]
    kept = [name for name in left if name not in unasked]
    return Filtered(kept, [name for name in left if name in unasked], removed, by_round, right)


def open_votes(path: str | Path, questions: Mapping[str, Any], settings: Mapping[str, Any]) -> Votes:
    """The votes of a file, if it is there; a line that was cut off is dropped.

    Args:
        questions: what is asked, by id, as JSON can hold it.
        settings: what else the answers depend on, but for voters and rounds, of which more may be asked later.

    Raises:
        InputError: the file holds votes on other questions or with other settings, or is damaged.

    Example:
        >>> open_votes("out/votes.jsonl", {"a": "2 + 2?"}, {"temperature": 0.7}).cast       # doctest: +SKIP
        {}
    """
    path = Path(path)
    asked = json.dumps([list(questions.items()), dict(settings)], sort_keys=True).encode()
    header = (json.dumps({"questions": hashlib.sha256(asked).hexdigest()}) + "\n").encode()
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if not whole and header.startswith(content):
        if content:
            os.truncate(path, 0)
        return Votes(path, header)
    if not content.startswith(header):
        raise InputError(
            f"{path}, line 1: no votes, or votes on other questions or with other settings; choose another --out"
        )
    if whole < len(content):
        os.truncate(path, whole)  # a vote that was being written when the filter was cut off
    lines = json_lines(path)
    next(lines)
    votes = Votes(path, header)
    for number, line in lines:
        if not _is_vote(line):
            raise InputError(
                f"{path}, line {number}: no vote; it holds 'round', 'voter', 'id' and 'response'"
            )
        votes.cast[line["round"], line["voter"], line["id"]] = line["response"]
    return votes


def _is_vote(line: object) -> bool:
    kinds = {"round": int, "voter": str, "id": str, "response": str}
    return isinstance(line, dict) and {name: type(value) for name, value in line.items()} == kinds
