"""Several answers to each question at a temperature: how often each verdict comes, and where the answers part ways.

The answers are asked for in turn, with one seed after the other, each into a result folder of its own (`OUT/sample-1`, …).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored
from mmprobe.benchmarks.core.results import Metric, group_by_images, mean_metric, with_ids, write_results
from mmprobe.benchmarks.judges.judge import RULES, Judging
from mmprobe.errors import InputError, name_option
from mmprobe.settings import AskSettings

if TYPE_CHECKING:
    from mmprobe.traces.asking import Source

VERDICTS = ("right", "wrong", "unread")


def check_samples(samples: int, asking: AskSettings, **others: Any) -> None:
    """Check that several answers to a question can be asked for.

    Raises:
        InputError: the temperature is 0, so all would be the same; or something else is asked for that takes one answer.
    """
    if samples < 1:
        raise InputError(f"{name_option('samples')} {samples}: must be 1 or more")
    if samples == 1:
        return
    if not asking.temperature:
        raise InputError(
            f"{name_option('samples')} {samples}: greedy answers are all the same; give {name_option('temperature')}"
        )
    if given := [name for name, value in others.items() if value]:
        raise InputError(
            f"{name_option('samples')}: goes not with {name_option(given[0])}; leave one of them out"
        )


def run_several(
    benchmark: Benchmark,
    truth: Any,
    source: Source,
    out: Path,
    about: Mapping[str, Any],
    asking: AskSettings,
    samples: int,
    resume: bool = False,
    judging: Judging = RULES,
    title: str = "",
) -> Scored:
    """Ask every question several times, as `run_benchmark` does once, and write the result folder of all answers.

    Args:
        samples: number of answers to each question; their seeds follow that of `asking`.

    Returns:
        The metrics of `measure_stability` beside those of the first answers, and one record a question.
    """
    from mmprobe.benchmarks.core.runner import read_answers, run_benchmark

    seed, labels, responses = asking.seed or 0, list[dict[str, bool]](), list[dict[str, str]]()
    first: dict[str, Metric] = {}
    for number in range(samples):
        folder, own = out / f"sample-{number + 1}", asking.replace(seed=seed + number)
        noted = {**about, "seed": seed + number}
        metrics, records = run_benchmark(
            benchmark,
            truth,
            source,
            folder,
            noted,
            own,
            None,
            resume,
            f"{title or benchmark.name} {number + 1}",
            judging,
        )
        first = first or metrics
        labels.append(benchmark.label(truth, records))
        responses.append(read_answers(folder))
    questions = benchmark.ask(truth)
    found, records = measure_stability([sample.id for sample in questions], labels, responses)
    texts = {sample.id: sample.question for sample in questions}
    records = [{**record, "question": texts[record["id"]]} for record in records]
    metrics = group_by_images(found, questions) | {
        name: each for name, each in first.items() if name not in found
    }
    write_results(out, benchmark.name, metrics, records, {**about, "samples": samples})
    return metrics, records


def measure_stability(
    ids: Sequence[str], labels: Sequence[Mapping[str, bool]], responses: Sequence[Mapping[str, str]]
) -> Scored:
    """Return the metrics of several answers to each question, and a record of each.

    - `pass@1`: the mean share of right answers to a question; unread ones are not right
    - `pass@K`: share of questions with a right answer among the K
    - `flip_rate`: share of questions whose answers do not all have one verdict

    Args:
        ids: of the questions.
        labels: for each answer, whether it is right, by id; without those that nobody can judge.
        responses: for each answer, the texts, by id.

    Example:
        >>> metrics, records = measure_stability(["a"], [{"a": True}, {"a": False}], [{"a": "Red."}, {"a": "Blue."}])
        >>> metrics["pass@1"].value, metrics["flip_rate"].value, records[0]["parting"]["says"]
        (0.5, 1.0, {'Red.': 1, 'Blue.': 1})
    """
    records: list[dict[str, Any]] = []
    count = len(labels)
    for name in ids:
        verdicts = [
            "unread" if name not in label else "right" if label[name] else "wrong"
            for label, texts in zip(labels, responses, strict=True)
            if name in texts
        ]
        said = [texts[name] for texts in responses if name in texts]
        shares = (
            {verdict: verdicts.count(verdict) / len(verdicts) for verdict in VERDICTS} if verdicts else {}
        )
        answers = [
            {"id": f"{name}#{number}", "response": text, "verdict": verdict}
            for number, (text, verdict) in enumerate(zip(said, verdicts, strict=True), 1)
        ]
        parting = find_parting(said)
        places = None if parting is None else parting._asdict()
        records.append({"id": name, "shares": shares, "parting": places, "answers": answers})
    shares_of = [record["shares"] for record in records]
    right = [each.get("right") for each in shares_of]
    metrics = {
        "pass@1": mean_metric(right, "higher"),
        f"pass@{count}": mean_metric([None if each is None else float(each > 0) for each in right], "higher"),
        "flip_rate": mean_metric(
            [float(max(each.values()) < 1) if each else None for each in shares_of], "lower"
        ),
    }
    return with_ids(metrics, list(ids)), records


class Parting(NamedTuple):
    """Where answers part ways.

    Attributes:
        after: what all of them begin with.
        says: how many say which word next; an answer that ends there says nothing.
    """

    after: str
    says: dict[str, int]


def find_parting(texts: Sequence[str]) -> Parting | None:
    """Return where answers part ways; None if they are all the same.

    Example:
        >>> find_parting(["It is red.", "It is blue.", "It is red."])
        Parting(after='It is', says={'red.': 2, 'blue.': 1})
    """
    words = [re.findall(r"\S+", text) for text in texts]
    for place in range(max(map(len, words), default=0)):
        said = Counter(own[place] if place < len(own) else "" for own in words)
        if len(said) > 1:
            longest = max(words, key=len)
            return Parting(" ".join(longest[:place]), dict(said))
    return None
