"""Filter questions by votes, and measure how much the questions need their images before and after."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.jsonl import write_atomic
from mmprobe.benchmarks.core.results import Metric, mean_metric, metrics_by_group, write_results
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mmreason.benchmark import MMReasonTruth, ask_questions
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct
from mmprobe.benchmarks.mmreason.metrics import relevance_rate
from mmprobe.benchmarks.mmreason.voting.votes import (
    ROUNDS,
    WITH_IMAGES,
    Ask,
    Check,
    VoteResult,
    Votes,
    open_votes,
    vote,
)

VOTES = "votes.jsonl"


def filter_questions(
    truth: MMReasonTruth,
    voters: Sequence[str],
    ask: Ask,
    out: Path,
    settings: Mapping[str, Any],
    rounds: int = ROUNDS,
    about: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
) -> tuple[dict[str, Metric], VoteResult]:
    """Filter questions by votes, compute relevance rates, and write the result folder.

    For the relevance rates (table 5) each voter also answers every question once with its images. Before the
    filter, the answers without images are those of the first round. After it, the kept questions are asked
    once more, because in the rounds no voter was right on them. `out` gets `votes.jsonl`, `kept.jsonl`,
    `removed.jsonl`, `results.json` and `samples.jsonl`; votes that it holds are not asked for again, and
    those with other `settings` are refused. Without a judge, rules decide which answers are right. Raises
    InputError as `vote` and `open_votes`.
    """
    questions = truth.questions
    prompts = {sample.id: [sample.system, sample.question] for sample in ask_questions(truth)}
    votes = open_votes(out / VOTES, prompts, settings)
    check = _make_check(truth, judge)
    result = vote([question.id for question in questions], voters, ask, check, votes, rounds)
    metrics = _kept_shares(questions, result)
    metrics |= _relevance_metrics(
        questions,
        result,
        lambda voter, ids, round_number: votes.collect(voter, ids, round_number, ask, check),
    )
    left_out = [0.0] * len(questions) + [1.0] * len(truth.left_out)
    metrics["left_out"] = mean_metric(left_out, "neither")
    verdicts = [
        correct for by_round in result.correct.values() for votes_of in by_round for correct in votes_of
    ]
    metrics["without_verdict"] = mean_metric([correct is None for correct in verdicts], "lower")
    _write_questions(questions, result, out)
    entries = {"voters": list(voters), "rounds": rounds, **settings, **(about or {})}
    entries |= {"cannot_stand_open": truth.left_out, "undecided": result.undecided}
    write_results(out, "mmreason-filter", metrics, _make_records(questions, voters, votes, result), entries)
    return metrics, result


def _make_check(truth: MMReasonTruth, judge: Judge | None) -> Check:
    questions = {question.id: question for question in truth.questions}
    if judge is None:
        return lambda responses: {name: is_correct(questions[name], text) for name, text in responses.items()}
    from mmprobe.benchmarks.mmreason.model_labels import judge_correct

    return lambda responses: judge_correct(questions, responses, judge)


def _kept_shares(questions: Sequence[ReasonQuestion], result: VoteResult) -> dict[str, Metric]:
    """Compute the share of kept questions, by discipline and source, and the removed share of each round."""
    kept = set(result.kept)
    values = [None if question.id in result.undecided else question.id in kept for question in questions]
    metrics = {"kept": mean_metric(values, "neither")}
    for field in ("discipline", "source"):
        groups = [getattr(question, field) for question in questions]
        metrics |= metrics_by_group(
            field,
            groups,
            lambda members: {"kept": mean_metric([values[i] for i in members], "neither")},
        )
    for round_number, share in enumerate(result.removed_by_round, 1):
        metrics[f"removed[round={round_number}]"] = share
    return metrics


def _relevance_metrics(
    questions: Sequence[ReasonQuestion],
    result: VoteResult,
    collect: Callable[[str, Sequence[str], int], Sequence[bool | None]],
) -> dict[str, Metric]:
    """Compute accuracies with and without images and the relevance rate of each voter, as in table 5."""
    with_images = [question.id for question in questions if question.images]
    kept = [name for name in with_images if name in set(result.kept)]
    extra_round = len(result.removed_by_round) + 1
    metrics: dict[str, Metric] = {}
    for voter in result.correct:
        correct_full = dict(zip(with_images, collect(voter, with_images, WITH_IMAGES), strict=True))
        for when, ids, round_number in (("before", with_images, 1), ("after", kept, extra_round)):
            text = collect(voter, ids, round_number)
            full = [correct_full[name] for name in ids]
            suffix = f"_{when}[voter={voter}]"
            metrics[f"accuracy_text{suffix}"] = mean_metric(text, "higher")
            metrics[f"accuracy_full{suffix}"] = mean_metric(full, "higher")
            metrics[f"relevance_rate{suffix}"] = relevance_rate(text, full)
    return metrics


def _make_records(
    questions: Sequence[ReasonQuestion], voters: Sequence[str], votes: Votes, result: VoteResult
) -> list[dict[str, Any]]:
    """Return the fate of each question, and all votes on it. Round 0 is the round with images."""
    kept = set(result.kept)
    records = []
    for question in questions:
        round_removed, right_voters = result.removed.get(question.id, (None, ()))
        fate = "kept" if question.id in kept else "undecided" if round_removed is None else "removed"
        vote_records = [
            {
                "voter": voter,
                "round": round_number,
                "response": votes.responses[key],
                "right": votes.correct[key],
            }
            for voter in voters
            for round_number in range(len(result.removed_by_round) + 2)
            if (key := (round_number, voter, question.id)) in votes.correct
        ]
        records.append(
            {
                "id": question.id,
                "question": question.question,
                "answer": question.answer,
                "fate": fate,
                "round": round_removed,
                "right": list(right_voters),
                "votes": vote_records,
            }
        )
    return records


def _write_questions(questions: Sequence[ReasonQuestion], result: VoteResult, out: Path) -> None:
    """Write `kept.jsonl` and `removed.jsonl`, with image paths relative to the folder."""
    files: dict[str, list[str]] = {"kept": [], "removed": []}
    kept = set(result.kept)
    for question in questions:
        line = question.model_dump(mode="json", exclude_defaults=True)
        if question.images:
            line["images"] = [os.path.relpath(image, out) for image in question.images]
        if question.id in result.removed:
            round_number, right_voters = result.removed[question.id]
            fate = {"round": round_number, "voters": list(right_voters)}
            line["metadata"] = {**question.metadata, "removed": fate}
        if question.id in kept or question.id in result.removed:
            name = "kept" if question.id in kept else "removed"
            files[name].append(json.dumps(line, ensure_ascii=False) + "\n")
    for name, lines in files.items():
        write_atomic(out / f"{name}.jsonl", "".join(lines))
