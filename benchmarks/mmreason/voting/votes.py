"""Vote on questions in rounds, and keep the votes in a file (arXiv:2506.23563, algorithm 1)."""

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
WITH_IMAGES = 0  # number of the round in which voters see the images

Ask = Callable[[str, Sequence[str], int], Generator[tuple[str, str]]]
"""(voter, question ids, round) -> id and response, in any order. Missing responses are asked for later."""
Check = Callable[[Mapping[str, str]], Mapping[str, bool | None]]
"""Responses by question id -> whether each is right; None without a verdict."""
VoteKey = tuple[int, str, str]
"""Round, voter, and question id."""


@dataclass
class Votes:
    """A file of votes. Each vote is written at once, and no vote in the file is asked for again.

    It holds JSON lines of round, voter, id and response, under a header: a hash of the questions and
    settings. `correct` says whether responses that were checked are right; None without a verdict.
    """

    path: Path
    header: bytes
    responses: dict[VoteKey, str] = field(default_factory=dict)
    correct: dict[VoteKey, bool | None] = field(default_factory=dict)

    def collect(
        self, voter: str, ids: Sequence[str], round_number: int, ask: Ask, check: Check
    ) -> list[bool | None]:
        """Return whether a voter is right on each question in a round; None without a response or a verdict."""
        missing = [name for name in ids if (round_number, voter, name) not in self.responses]
        if missing:
            title = f"{voter}, {f'round {round_number}' if round_number else 'with images'}"
            with closing(ask(voter, missing, round_number)) as answers:
                for name, response in tqdm(answers, title, len(missing), unit="answer", disable=None):
                    self._write({"round": round_number, "voter": voter, "id": name, "response": response})
                    self.responses[round_number, voter, name] = response
        keys = {name: (round_number, voter, name) for name in ids}
        unchecked = {
            name: key for name, key in keys.items() if key in self.responses and key not in self.correct
        }
        if unchecked:
            verdicts = check({name: self.responses[key] for name, key in unchecked.items()})
            self.correct |= {key: verdicts[name] for name, key in unchecked.items()}
        return [self.correct.get(key) for key in keys.values()]

    def _write(self, vote: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            header = b"" if file.tell() else self.header
            file.write(header + json.dumps(vote, ensure_ascii=False).encode(errors="replace") + b"\n")


def open_votes(path: str | Path, questions: Mapping[str, Any], settings: Mapping[str, Any]) -> Votes:
    """Open a file of votes, or prepare a new one. An incomplete last line is removed.

    Questions are JSON values by id, settings all else that the answers depend on, but voters and rounds, of
    which more may come. Raises InputError for votes on other questions or with other settings, or a damaged
    file.
    """
    path = Path(path)
    hashed = json.dumps([list(questions.items()), dict(settings)], sort_keys=True).encode()
    header = (json.dumps({"questions": hashlib.sha256(hashed).hexdigest()}) + "\n").encode()
    content = path.read_bytes() if path.exists() else b""
    complete = content.rfind(b"\n") + 1
    if not complete and header.startswith(content):
        if content:
            os.truncate(path, 0)
        return Votes(path, header)
    if not content.startswith(header):
        raise InputError(
            f"{path}, line 1: no votes, or votes on other questions or with other settings; "
            "choose another folder"
        )
    if complete < len(content):
        os.truncate(path, complete)  # the vote that was being written when the filter was killed
    lines = json_lines(path)
    next(lines)
    votes = Votes(path, header)
    for number, line in lines:
        types = {"round": int, "voter": str, "id": str, "response": str}
        if not isinstance(line, dict) or {name: type(value) for name, value in line.items()} != types:
            raise InputError(f"{path}, line {number}: no vote; a vote holds {', '.join(types)}")
        votes.responses[line["round"], line["voter"], line["id"]] = line["response"]
    return votes


@dataclass(frozen=True)
class VoteResult:
    """The ids of kept and undecided questions (no voter could be asked), and what was removed.

    `removed` holds by id the round and the voters who were right; `removed_by_round` the removed share of
    each round's questions; `correct`, by voter and round, whether each question of the round was answered
    rightly, in order.
    """

    kept: list[str]
    undecided: list[str]
    removed: dict[str, tuple[int, tuple[str, ...]]]
    removed_by_round: list[Metric]
    correct: dict[str, list[list[bool | None]]]


def vote(
    ids: Sequence[str], voters: Sequence[str], ask: Ask, check: Check, votes: Votes, rounds: int = ROUNDS
) -> VoteResult:
    """Ask every voter every question in rounds, without its images. Remove a question if any is right once.

    All voters vote on all questions of a round; what a voter answers rightly does not enter the next one. A
    voter that could not be asked was not right. The paper has 4 voters and 2 rounds. Raises InputError
    without a voter or round, or for a voter that is given twice.
    """
    if not voters or "" in voters or len(set(voters)) < len(voters):
        raise InputError(
            f"voters {', '.join(voters)!r}: a name is missing or given twice; give each voter once"
        )
    if rounds < 1:
        raise InputError(f"rounds {rounds}: must be 1 or more")
    remaining = list(ids)
    without_verdict = set(ids)
    removed: dict[str, tuple[int, tuple[str, ...]]] = {}
    removed_by_round: list[Metric] = []
    correct: dict[str, list[list[bool | None]]] = {voter: [] for voter in voters}
    for round_number in range(1, rounds + 1):
        right_voters: dict[str, list[str]] = {name: [] for name in remaining}
        for voter in voters:
            verdicts = votes.collect(voter, remaining, round_number, ask, check)
            correct[voter].append(verdicts)
            for name, verdict in zip(remaining, verdicts, strict=True):
                if verdict is not None:
                    without_verdict.discard(name)
                if verdict:
                    right_voters[name].append(voter)
        removed |= {name: (round_number, tuple(by)) for name, by in right_voters.items() if by}
        removed_by_round.append(mean_metric([bool(by) for by in right_voters.values()], "neither"))
        remaining = [name for name in remaining if not right_voters[name]]
    return VoteResult(
        kept=[name for name in remaining if name not in without_verdict],
        undecided=[name for name in remaining if name in without_verdict],
        removed=removed,
        removed_by_round=removed_by_round,
        correct=correct,
    )
