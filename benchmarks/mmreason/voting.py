"""The voting filter: questions that a model answers from their text alone go (paper 004, algorithm 1)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmprobe.benchmarks.lines import json_lines
from mmprobe.benchmarks.results import Metric, mean_metric
from mmprobe.errors import InputError

Ask = Callable[[str, str, int], bool | None]
"""(voter, id, round from 1) -> whether the voter's answer is right; None if it could not be scored."""
Votes = dict[tuple[int, str, str], bool | None]
"""By round, voter and id."""

ROUNDS = 2


@dataclass(frozen=True)
class Filtered:
    """What the filter leaves, and what it took away.

    Attributes:
        kept: ids, in their order.
        removed: by id, the round and the voters who got the question right in it.
        removed_share: of all questions.
        removed_by_round: by round, share of the questions that it began with.
        right: by voter and round, how many questions it got right, was asked, and left without a verdict.
    """

    kept: list[str]
    removed: dict[str, tuple[int, tuple[str, ...]]]
    removed_share: Metric
    removed_by_round: list[Metric]
    right: dict[str, list[tuple[int, int, int]]]


def vote(
    questions: Mapping[str, str],
    voters: Sequence[str],
    ask: Ask,
    votes: str | Path,
    rounds: int = ROUNDS,
) -> Filtered:
    """Ask each voter each question, text only, round by round; what is answered rightly even once goes.

    All voters vote on what a round begins with; what any of them got right does not enter the next. Each vote
    is written down at once: a filter that was cut off goes on where it stopped, and asks nothing twice.

    Args:
        questions: text of each by its id.
        voters: names, 4 in the paper.
        ask: is called for votes that are not written yet. If it raises, the votes until then are kept.
        votes: JSON lines, made if needed; of these very questions, else it is refused.
        rounds: 2 in the paper.

    Raises:
        InputError: no voter or round, a name twice, or a file of votes on other questions or that is damaged.

    Example:
        >>> questions = {"a": "2 + 2?", "b": "How old is she?"}
        >>> found = vote(questions, ["m"], lambda voter, name, turn: name == "a", "v.jsonl")   # doctest: +SKIP
        >>> found.kept                                                         # doctest: +SKIP
        ['b']
    """
    if not voters or len(set(voters)) < len(voters):
        raise InputError("voters are missing, or one is named twice")
    if rounds < 1:
        raise InputError(f"rounds is {rounds}; 1 or more is expected")
    path = Path(votes)
    cast = _opened(path, questions)
    left = list(questions)
    removed: dict[str, tuple[int, tuple[str, ...]]] = {}
    by_round: list[Metric] = []
    tallies: dict[str, list[tuple[int, int, int]]] = {voter: [] for voter in voters}
    for turn in range(1, rounds + 1):
        for voter in voters:
            _ask_missing(cast, path, ask, voter, left, turn)
            given = [cast[turn, voter, name] for name in left]
            tallies[voter].append((given.count(True), len(given), given.count(None)))
        found = {name: tuple(v for v in voters if cast[turn, v, name]) for name in left}
        removed |= {name: (turn, by) for name, by in found.items() if by}
        by_round.append(mean_metric([float(bool(found[name])) for name in left], "neither"))
        left = [name for name in left if not found[name]]
    share = mean_metric([float(name in removed) for name in questions], "neither")
    return Filtered(left, removed, share, by_round, tallies)


def _ask_missing(cast: Votes, path: Path, ask: Ask, voter: str, names: Sequence[str], turn: int) -> None:
    with path.open("a", encoding="utf-8") as file:
        for name in names:
            if (turn, voter, name) in cast:
                continue
            right = ask(voter, name, turn)
            cast[turn, voter, name] = right
            line = {"round": turn, "voter": voter, "id": name, "right": right}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


def _opened(path: Path, questions: Mapping[str, str]) -> Votes:
    """Votes that are written already; a file that is not there yet is begun."""
    header = json.dumps({"questions": _digest(questions)}) + "\n"
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if not whole and header.encode().startswith(content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header, encoding="utf-8")
        return {}
    if not content.startswith(header.encode()):
        raise InputError(
            f"{path}, line 1: no votes, or votes on other questions; name another file or delete it"
        )
    if whole < len(content):
        os.truncate(path, whole)  # a vote that was being written when the filter was cut off
    lines = json_lines(path)
    next(lines)
    cast: Votes = {}
    for number, line in lines:
        if not _is_vote(line):
            raise InputError(
                f"{path}, line {number}: no vote; fields 'round', 'voter', 'id' and 'right' are expected"
            )
        cast[line["round"], line["voter"], line["id"]] = line["right"]
    return cast


def _is_vote(line: object) -> bool:
    return (
        isinstance(line, dict)
        and set(line) == {"round", "voter", "id", "right"}
        and type(line["round"]) is int
        and isinstance(line["voter"], str)
        and isinstance(line["id"], str)
        and (line["right"] is None or isinstance(line["right"], bool))
    )


def _digest(questions: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(list(questions.items())).encode()).hexdigest()
