"""The voting filter (arXiv:2506.23563, algorithm 1): remove questions that models answer without images.

The voters, local models and models behind an API, sample their answers in rounds. A file keeps the votes. The filter
also measures how much the questions need their images before and after.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmprobe.benchmarks.core.api_models import api_answerer, is_api
from mmprobe.benchmarks.core.results import Metric, mean_metric, metrics_by_group, write_results
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mmreason.benchmark import MMReason, MMReasonTruth
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct
from mmprobe.benchmarks.mmreason.labels import TEXT
from mmprobe.benchmarks.mmreason.metrics import relevance_rate
from mmprobe.errors import InputError
from mmprobe.files import (
    JsonRecord,
    append_lines,
    cut_torn_line,
    json_lines,
    make_folders,
    read_record,
    write_atomic,
)
from mmprobe.ledger import (
    find_change,
    fingerprint,
    hash_content,
    hash_images,
    library_versions,
    warn_of_versions,
)
from mmprobe.models import Model, load_model
from mmprobe.models.checkpoints import find_checkpoint, fingerprint_checkpoint, locate
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings, ModelSettings
from mmprobe.traces.asking import Source, answer

ROUNDS = 2
WITH_IMAGES = 0  # number of the round in which voters see the images

AskVoter = Callable[[str, Sequence[str], int], Generator[tuple[str, str]]]
"""(voter, question ids, round) -> id and response, in any order. Missing responses are asked for later."""
CheckResponses = Callable[[Mapping[str, str]], Mapping[str, bool | None]]
"""Responses by question id -> whether each is right; None without a verdict."""
VoteKey = tuple[int, str, str]
"""Round, voter, and question id."""


@dataclass
class Votes:
    """A file of votes. Each vote is written at once, and no vote in the file is asked for again.

    It contains JSON lines of round, voter, id and response, under a header: a hash of the questions and
    settings. `correct` says whether responses that were checked are right; None without a verdict. `unanswered` are the
    votes that were asked for and did not come.
    """

    path: Path
    header: dict[str, str]
    responses: dict[VoteKey, str] = field(default_factory=dict)
    correct: dict[VoteKey, bool | None] = field(default_factory=dict)
    unanswered: set[VoteKey] = field(default_factory=set)

    def collect(
        self, voter: str, ids: Sequence[str], round_number: int, ask: AskVoter, check: CheckResponses
    ) -> list[bool | None]:
        """Return whether a voter is right on each question in a round; None without a response or a verdict."""
        missing = [name for name in ids if (round_number, voter, name) not in self.responses]
        if missing:
            with closing(ask(voter, missing, round_number)) as answers:
                for name, response in answers:
                    self._write({"round": round_number, "voter": voter, "id": name, "response": response})
                    self.responses[round_number, voter, name] = response
        keys = {name: (round_number, voter, name) for name in ids}
        self.unanswered.update(key for key in keys.values() if key not in self.responses)
        unchecked = {
            name: key for name, key in keys.items() if key in self.responses and key not in self.correct
        }
        if unchecked:
            verdicts = check({name: self.responses[key] for name, key in unchecked.items()})
            self.correct |= {key: verdicts[name] for name, key in unchecked.items()}
        return [self.correct.get(key) for key in keys.values()]

    def _write(self, vote: Mapping[str, Any]) -> None:
        make_folders(self.path.parent)
        is_new = not self.path.exists() or not self.path.stat().st_size
        append_lines(self.path, [self.header, vote] if is_new else [vote], ensure_ascii=False)


def open_votes(
    path: str | Path,
    questions: Mapping[str, Any],
    settings: Mapping[str, Any],
    images: Mapping[str, str] = MappingProxyType({}),
) -> Votes:
    """Open a file of votes, or prepare a new one. An incomplete last line is removed.

    Questions are JSON values by id, settings all else that the answers depend on, but voters and rounds, of
    which more may come. Raises InputError for votes on other questions, with other settings or on images that changed,
    or a damaged file.

    Args:
        images: hashes of each question's images (`hash_images`). Votes of an earlier version have none, and are not
            compared.
    """
    path = Path(path)
    hashed = json.dumps([list(questions.items()), dict(settings)], sort_keys=True).encode()
    asked = {"questions": hashlib.sha256(hashed).hexdigest()}
    votes = Votes(path, asked | {"images": hash_content(dict(images))})
    header = (json.dumps(votes.header) + "\n").encode()
    content = path.read_bytes() if path.exists() else b""
    older = (json.dumps(asked) + "\n").encode()
    if not content.startswith((header, older)) and not header.startswith(content):
        if content.startswith(older.removesuffix(b"}\n") + b", "):
            raise InputError(
                f"{path}: images of the questions changed since the votes; choose another folder"
            )
        raise InputError(
            f"{path}, line 1: no votes, or votes on other questions or with other settings; "
            "choose another folder"
        )
    if not cut_torn_line(path):
        return votes
    lines = json_lines(path)
    next(lines)
    for number, line in lines:
        types = {"round": int, "voter": str, "id": str, "response": str}
        if not isinstance(line, dict) or {name: type(value) for name, value in line.items()} != types:
            raise InputError(f"{path}, line {number}: no vote; a vote contains {', '.join(types)}")
        votes.responses[line["round"], line["voter"], line["id"]] = line["response"]
    return votes


@dataclass(frozen=True)
class VoteResult:
    """The ids of kept and undecided questions (no voter could be asked), and what was removed.

    `removed` gives by id the round and the voters who were right; `removed_by_round` the removed share of
    each round's questions; `correct`, by voter and round, whether each question of the round was answered
    rightly, in order; `unanswered` the number of votes that did not come.
    """

    kept: list[str]
    undecided: list[str]
    removed: dict[str, tuple[int, tuple[str, ...]]]
    removed_by_round: list[Metric]
    correct: dict[str, list[list[bool | None]]]
    unanswered: int = 0


def vote(
    ids: Sequence[str],
    voters: Sequence[str],
    ask: AskVoter,
    check: CheckResponses,
    votes: Votes,
    rounds: int = ROUNDS,
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


TEMPERATURE = 0.7  # our choice; the paper does not state how its rounds differ


def check_voters(voters: Sequence[str], out: Path | None = None, dtype: str = "auto") -> None:
    """Check that every voter exists, before any is asked, and that none changed since it voted in a folder.

    Args:
        dtype: in which local voters are loaded; `auto` is checked when they are.

    Raises:
        InputError: a model is neither known nor a folder, the package or key of an API is missing, or a local model
            changed. The message says what.
    """
    for voter in voters:
        if is_api(voter):
            api_answerer(voter)
            continue
        locate(voter)
        if out is not None:
            used = fingerprint(fingerprint_checkpoint(find_checkpoint(voter)))
            _check_voter(
                out, voter, used if dtype == "auto" else {"model": {**used["model"], "dtype": dtype}}
            )


def _check_voter(out: Path, voter: str, used: Mapping[str, Any]) -> None:
    """Check that a voter is what it was when it voted in a folder.

    Raises:
        InputError: it changed.
    """
    recorded = _read_voters(out).get(voter)
    if change := find_change(recorded, used):
        raise InputError(f"{out}: {change} of voter {voter} changed since it voted; choose another folder")
    if isinstance(recorded, dict):
        warn_of_versions(out, recorded.get("versions"))


def _read_voters(out: Path) -> dict[str, Any]:
    """Return what the local voters of a folder were made of, by name."""
    file = out / VOTERS
    return read_record(file, JsonRecord).model_dump() if file.is_file() else {}


def ask_voters(
    truth: MMReasonTruth,
    settings: AskSettings,
    loading: ModelSettings = ModelSettings(),  # noqa: B008
    sources: Mapping[str, Source] | None = None,
    out: Path | None = None,
) -> AskVoter:
    """Return the function that queries voters. Each round samples with its own seed, that of the settings + round.

    Only one local model is in memory at a time. It is loaded with its first question, and `voters.json` in `out`
    records what it is made of.

    Args:
        settings: the longest answers, the temperature, the seed and the batch size.
        loading: how local voters are loaded.
        sources: where some voters' answers come from; the others are models by their name.
    """
    samples = {sample.id: sample for sample in MMReason().ask(truth)}
    loaded: dict[str, Model] = {}

    def find_source(voter: str) -> Source:
        if sources is not None and voter in sources:
            return sources[voter]
        if is_api(voter):
            return api_answerer(voter)
        if voter not in loaded:
            loaded.clear()
            loaded[voter] = load_model(**loading.replace(name=voter).chosen)
            if out is not None:
                used = fingerprint(loaded[voter].fingerprint)
                _check_voter(out, voter, used)
                voters = _read_voters(out) | {voter: used | {"versions": library_versions()}}
                write_atomic(out / VOTERS, json.dumps(voters, indent=1) + "\n")
        return loaded[voter]

    def ask(voter: str, ids: Sequence[str], round_number: int) -> Generator[tuple[str, str]]:
        own = settings.replace(seed=(settings.seed or 0) + round_number)
        asked: dict[str, Sample] = {}  # by question id
        for name in ids:
            text = name + TEXT
            asked[name] = samples[text if round_number != WITH_IMAGES and text in samples else name]
        names = {sample.id: name for name, sample in asked.items()}
        title = f"{voter}, {f'round {round_number}' if round_number else 'with images'}"
        with closing(answer(find_source(voter), list(asked.values()), None, own, title=title)) as answers:
            for sample_id, text in answers:
                yield names[sample_id], text.strip()

    return ask


VOTES = "votes.jsonl"
VOTERS = "voters.json"


def filter_questions(
    truth: MMReasonTruth,
    voters: Sequence[str],
    ask: AskVoter,
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
    `removed.jsonl`, `results.json` and `samples.jsonl`; votes that it contains are not asked for again, and
    those with other `settings` are refused. Without a judge, rules decide which answers are right. Raises
    InputError as `vote` and `open_votes`.
    """
    questions = truth.questions
    asked = MMReason().ask(truth)
    prompts = {sample.id: [sample.system, sample.question] for sample in asked}
    images = {sample.id: hash_images(sample) for sample in asked if sample.files}
    votes = open_votes(out / VOTES, prompts, settings, images)
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
    return metrics, replace(result, unanswered=len(votes.unanswered))


def _make_check(truth: MMReasonTruth, judge: Judge | None) -> CheckResponses:
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
    for column in ("discipline", "source"):
        groups = [getattr(question, column) for question in questions]
        metrics |= metrics_by_group(
            column,
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
