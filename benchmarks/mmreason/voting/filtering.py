"""The filtered set of questions: what the voters leave, and how much of it needs the pictures, before and after."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.jsonl import write_whole
from mmprobe.benchmarks.core.results import Metric, mean_metric, write_results
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mmreason.benchmark import MMReasonTruth, ask
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct
from mmprobe.benchmarks.mmreason.metrics import by_value, final_accuracy, relevance_rate
from mmprobe.benchmarks.mmreason.voting import (
    ROUNDS,
    WITH_PICTURES,
    Ask,
    Check,
    Filtered,
    Votes,
    open_votes,
    vote,
)

VOTES = "votes.jsonl"


def filter_questions(
    truth: MMReasonTruth,
    voters: Sequence[str],
    asked: Ask,
    out: Path,
    settings: Mapping[str, Any],
    rounds: int = ROUNDS,
    about: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
) -> tuple[dict[str, Metric], Filtered]:
    """Filter questions by votes, measure how much they need their pictures, and write the result folder.

    For the relevance rates (table 5) each voter is asked every question once with its pictures. Before the filter
    the answers from the text alone are those of the first round; after it the questions that are kept are asked
    once more, since in the rounds nobody was right on them.

    Args:
        truth: from `benchmark.read`.
        voters: names.
        asked: asks a voter; see `voters.ask_voters`.
        out: gets `votes.jsonl`, `kept.jsonl`, `removed.jsonl`, `results.json` and `samples.jsonl`. Votes that are
            there already are not asked again.
        settings: of the answers, such as temperature and seed; votes made with others are refused.
        rounds: 2 in the paper.
        about: what else `results.json` says.
        judge: says which answers are right; None for our rules.

    Raises:
        InputError: no voter or round, a name twice, or `out` holds other votes.

    Example:
        >>> metrics, found = filter_questions(truth, ["tiny-spd"], asked, Path("out"), {})      # doctest: +SKIP
        >>> metrics["kept"].value                                                  # doctest: +SKIP
        0.8
    """
    texts = {sample.id: [sample.system, sample.question] for sample in ask(truth)}
    votes = open_votes(out / VOTES, texts, settings)
    check = _check(truth, judge)
    found = vote([question.id for question in truth.questions], voters, asked, check, votes, rounds)
    metrics = _kept_shares(truth.questions, found)
    metrics |= _relevance(
        truth.questions, found, lambda voter, names, turn: votes.of(voter, names, turn, asked, check)
    )
    stand = [0.0] * len(truth.questions) + [1.0] * len(truth.left_out)
    metrics["left_out"] = mean_metric(stand, "neither")
    given = [right for by_round in found.right.values() for turn in by_round for right in turn]
    metrics["without_verdict"] = mean_metric([float(right is None) for right in given], "lower")
    kept = set(found.kept)
    _write_lines(out / "kept.jsonl", (_line(one, out) for one in truth.questions if one.id in kept))
    gone = [(one, found.removed[one.id]) for one in truth.questions if one.id in found.removed]
    _write_lines(
        out / "removed.jsonl",
        (_line(one, out, {"round": turn, "voters": list(by)}) for one, (turn, by) in gone),
    )
    made = {"voters": list(voters), "rounds": rounds, **settings, **(about or {})}
    made |= {"cannot_stand_open": truth.left_out, "undecided": found.undecided}
    write_results(out, "mmreason-filter", metrics, _records(truth.questions, voters, votes, found), made)
    return metrics, found


def _check(truth: MMReasonTruth, judge: Judge | None) -> Check:
    questions = {question.id: question for question in truth.questions}
    if judge is None:
        return lambda responses: {name: is_correct(questions[name], text) for name, text in responses.items()}
    from mmprobe.benchmarks.mmreason.model_labels import right_by_judge

    return lambda responses: right_by_judge(questions, responses, judge)


def _kept_shares(questions: Sequence[ReasonQuestion], found: Filtered) -> dict[str, Metric]:
    """Of those that were voted on."""
    kept = set(found.kept)
    values = [None if one.id in found.undecided else float(one.id in kept) for one in questions]
    metrics = {"kept": mean_metric(values, "neither")}
    for key in ("discipline", "source"):
        groups = by_value([getattr(question, key) for question in questions], values)
        metrics |= {f"kept[{key}={name}]": mean_metric(some, "neither") for name, some in groups.items()}
    shares = enumerate(found.removed_by_round, 1)
    return metrics | {f"removed[round={turn}]": share for turn, share in shares}


def _relevance(
    questions: Sequence[ReasonQuestion],
    found: Filtered,
    right: Callable[[str, Sequence[str], int], Sequence[bool | None]],
) -> dict[str, Metric]:
    """Accuracies with and without pictures and relevance rates of each voter, as in table 5."""
    seen = [question.id for question in questions if question.images]
    kept = [name for name in seen if name in set(found.kept)]
    after = len(found.removed_by_round) + 1
    metrics: dict[str, Metric] = {}
    for voter in found.right:
        full = dict(zip(seen, right(voter, seen, WITH_PICTURES), strict=True))
        for when, names, turn in (("before", seen, 1), ("after", kept, after)):
            alone = right(voter, names, turn)
            whole = [full[name] for name in names]
            end = f"_{when}[voter={voter}]"
            metrics[f"accuracy_text{end}"] = final_accuracy(alone)
            metrics[f"accuracy_full{end}"] = final_accuracy(whole)
            metrics[f"relevance_rate{end}"] = relevance_rate(alone, whole)
    return metrics


def _records(
    questions: Sequence[ReasonQuestion], voters: Sequence[str], votes: Votes, found: Filtered
) -> list[dict[str, Any]]:
    """Of each question, what became of it, and what each voter answered, by round; 0 is the one with pictures."""
    kept = set(found.kept)
    records = []
    for question in questions:
        turn, by = found.removed.get(question.id, (None, ()))
        fate = "kept" if question.id in kept else "undecided" if turn is None else "removed"
        answers = [
            {"voter": voter, "round": one, "response": votes.cast[at], "right": votes.right[at]}
            for voter in voters
            for one in range(len(found.removed_by_round) + 2)
            if (at := (one, voter, question.id)) in votes.right
        ]
        records.append(
            {
                "id": question.id,
                "question": question.question,
                "answer": question.answer,
                "fate": fate,
                "round": turn,
                "right": list(by),
                "votes": answers,
            }
        )
    return records


def _line(question: ReasonQuestion, out: Path, removed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A question as a line of a questions file in `out`, whose images are named from there."""
    line = question.model_dump(mode="json", exclude_defaults=True)
    if question.images:
        line["images"] = [os.path.relpath(image, out) for image in question.images]
    if removed is not None:
        line["metadata"] = {**question.metadata, "removed": removed}
    return line


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    write_whole(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
