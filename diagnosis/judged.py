"""What a judge reads in answers where rules cannot: whether they are true, and which objects they say are in which image.

The ledger keeps its labels (`JUDGED`), so that no call is made again. They count where the rules read nothing, and an
answer that the judge left unscored is neither right nor wrong.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.benchmarks.core.prompts import shared_text
from mmprobe.benchmarks.core.questions import make_question, right_request
from mmprobe.benchmarks.judges import Judge, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.ensemble import majority_labels
from mmprobe.benchmarks.judges.judge import run_outside_event_loop
from mmprobe.benchmarks.judges.requests import UnusableReply, list_reader
from mmprobe.diagnosis.battery.co_occurrence import list_false
from mmprobe.diagnosis.claims import Thing, read_contents
from mmprobe.diagnosis.effects import AnswerRecord
from mmprobe.diagnosis.truth import TruthRecord
from mmprobe.ledger import Ledger
from mmprobe.samples import Sample
from mmprobe.thoughts import drop_thoughts

JUDGED = "judged.jsonl"
RIGHT, NAMED = "right", "named"  # what is asked of an answer
Key = tuple[str, str]
"""The id of a sample, and what is asked of its answer."""


def ask_judge(
    judge: Judge, samples: Sequence[Sample], records: Sequence[AnswerRecord], ledger: Ledger
) -> None:
    """Save a judge's labels of what the rules left unread. What has a label already is not asked again.

    Args:
        records: as `read_records` returns them.
    """
    labelled = {(line["id"], line["task"]) for line in ledger.lines(JUDGED) if line["unscored"] is None}
    known = list_known(samples)
    requests = {
        key: request for key, request in plan_requests(samples, records, known).items() if key not in labelled
    }
    if not requests:
        return
    judgements = run_outside_event_loop(lambda: asyncio.run(ask_by_name(judge, requests)))
    lines = []
    for (name, task), each in judgements.items():
        labels = None if each.items is None else list(each.items)
        if labels is not None and task == NAMED:
            labels = [
                [object_ for object_, said in zip(known, labels[start:], strict=False) if said]
                for start in range(0, len(labels), len(known))
            ]
        lines.append({"id": name, "task": task, "labels": labels, "unscored": each.unscored})
    ledger.append(JUDGED, lines)


def list_known(samples: Sequence[Sample]) -> list[str]:
    """Return the names of all objects that any image of the data shows."""
    return sorted({thing.shape for sample in samples for image in read_contents(sample) for thing in image})


def plan_requests(
    samples: Sequence[Sample], records: Sequence[AnswerRecord], known: Sequence[str]
) -> dict[Key, JudgeRequest[Any]]:
    """Return what to ask a judge: whether an answer is true, and which objects it names, where rules cannot read it."""
    by_id = {sample.id: sample for sample in samples}
    requests: dict[Key, JudgeRequest[Any]] = {}
    for record in records:
        sample, said = by_id[record.id], drop_thoughts(record.answer).strip()
        if not re.search(r"\w", said):
            continue
        question = make_question(sample)
        if question is not None and record.of(TruthRecord).right is None:
            requests[sample.id, RIGHT] = right_request(question, said)
        contents = read_contents(sample)[: len(sample.images)]
        is_list = bool(contents and known) and first_word(said) not in ("yes", "no")
        if is_list and not _rules_read(contents, known):
            requests[sample.id, NAMED] = objects_request(sample.question, said, contents, known)
    return requests


def _rules_read(contents: Sequence[Sequence[Thing]], known: Sequence[str]) -> bool:
    """Return whether rules read which of the known objects an answer names: in the drawn world, or of one image and COCO."""
    if any(thing.is_drawn for image in contents for thing in image):
        return True
    return len(contents) == 1 and all(find_category(name) is not None for name in known)


def objects_request(
    question: str, answer: str, contents: Sequence[Sequence[Thing]], known: Sequence[str]
) -> JudgeRequest[bool]:
    """Return the request whose labels say of each image, and in it of each known object, whether an answer says it is there.

    What an image shows is told, so that a thing has the name that its list has: a lorry is its `truck`.
    """
    shown = [sorted({thing.shape for thing in image}) for image in contents]
    data = {"question": question, "answer": answer, "objects": list(known), "shown": shown}
    read_lists = list_reader(list[str], len(shown), "pictures")

    def read(reply: str) -> tuple[bool, ...]:
        named = [{name.strip().lower() for name in names} for names in read_lists(reply)]
        if not set().union(*named) <= set(known):
            raise UnusableReply("it holds a name that `objects` lacks")
        return tuple(name in names for names in named for name in known)

    return JudgeRequest(shared_text("objects"), data, read, vote=partial(majority_labels, tie=False))


def read_labels(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Return the labels of a judge by the id of the sample and what was asked; those of the last call."""
    labels: dict[str, dict[str, Any]] = {}
    for line in ledger.lines(JUDGED):
        labels.setdefault(line["id"], {})[line["task"]] = line["labels"]
    return labels


def add_labels(sample: Sample, text: Mapping[str, Any], labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return what rules read in an answer, with the labels of a judge where they read nothing.

    Args:
        labels: by what was asked; nothing without a judge.
    """
    right, named = labels.get(RIGHT), labels.get(NAMED)
    added: dict[str, Any] = {}
    if text["right"] is None and right is not None:
        added["right"] = right[0]
    if named is not None:
        claimed = {image: set(names) for image, names in enumerate(named) if names}
        added["listed"] = [each.model_dump() for each in list_false(read_contents(sample), claimed)]
    return {**text, **added}


def count_labels(ledger: Ledger) -> dict[str, Any]:
    """Return how many answers a judge was asked about, how many items it `judged`, and how many it left `unscored`, by reason.

    An item is whether an answer is true, or which objects it names.
    """
    last = {(line["id"], line["task"]): line["unscored"] for line in ledger.lines(JUDGED)}
    unscored = Counter(reason for reason in last.values() if reason is not None)
    answers = len({name for name, _ in last})
    return {"answers": answers, "judged": len(last), "unscored": dict(sorted(unscored.items()))}
