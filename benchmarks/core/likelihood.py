"""Closed questions by likelihood: how probable each answer is, whether that is right, and how well it is calibrated.

A closed question is answered by yes or no, by one of its options, or by one of `metadata.candidates`. After the prompt, the
model is asked for the probability of each, over all spellings that its tokenizer has (`mmprobe.models.likelihood`), so that no
answer has to be read: coverage is 100 %. `likelihoods.jsonl` keeps the log-probabilities, a line a question.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from mmprobe.benchmarks.answers.options import find_mark, read_choice, split_options
from mmprobe.benchmarks.answers.texts import same_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.core.questions import make_question
from mmprobe.benchmarks.core.results import (
    Metric,
    count_metric,
    list_answers,
    mean_metric,
    metrics_by_group,
    with_ids,
)
from mmprobe.errors import InputError
from mmprobe.files import append_lines, cut_torn_line, json_lines
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_known, estimate_mean

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.models import Model

log = logging.getLogger("mmprobe")

READINGS = ("text", "likelihood")
"""How answers are read: by their text alone, or closed questions by likelihood, too."""
LIKELIHOODS = "likelihoods.jsonl"
HEADLINE = ("likelihood_accuracy", "likelihood_ece", "likelihood_agreement")
BINS = 10  # of confidence, of equal width, as of Guo et al. (2017)
KEPT = (25, 50, 75)  # percent of the questions whose accuracy is a metric; our choice
ROWS = 8  # of a pass where prompts share what was read of their images, so that a row is a few tokens; our choice


def check_reading(read: str) -> str:
    """Return how answers are read. Raises InputError for another name than those of `READINGS`."""
    if read not in READINGS:
        raise InputError(f"read {read!r}: must be {' or '.join(READINGS)}")
    return read


class ClosedQuestion(NamedTuple):
    """A question with a few possible answers.

    Attributes:
        kind: `yes-no`, `options` or `candidates`.
        answers: the text of each possible answer, by its name: the letter of an option, else the text.
        lettered: whether the model sees the letters.
        right: names of the right answers; empty if nobody knows.
    """

    kind: str
    answers: Mapping[str, str]
    lettered: bool
    right: frozenset[str]


def find_closed(sample: Sample) -> ClosedQuestion | None:
    """Return the possible answers to a sample as it is asked; None for an open question.

    Options are those of `metadata.options`, or stand in the question. A question whose true answer says yes or no is
    answered by yes or no.

    Raises:
        InputError: `metadata.options` or `metadata.candidates` has another form, or lacks the answer.

    Example:
        >>> find_closed(Sample(id="1", question="Which? (A) a dog (B) a cat", answer="B")).answers
        {'A': 'a dog', 'B': 'a cat'}
        >>> sorted(find_closed(Sample(id="2", question="Is it a dog?", answer="No, it is a cat.")).right)
        ['no']
    """
    question = make_question(sample)
    shown = split_options(sample.question, sample.answer or "").choices
    if question is not None and question.options:
        return ClosedQuestion("options", question.options, bool(shown), frozenset(question.accepted))
    answers = [] if question is None else question.accepted
    if len(shown) > 1:
        by_text = {text: name for name, text in shown.items()}
        marks = [find_mark(answer, shown) for answer in answers]
        texts = [name for text, name in by_text.items() for answer in answers if same_text(text, answer)]
        right = frozenset(mark for mark in [*marks, *texts] if mark)
        if right or question is None:
            return ClosedQuestion("options", shown, True, right)
    if "candidates" in sample.metadata:
        texts = sample.metadata["candidates"]
        if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise InputError(f"sample {sample.id}: metadata.candidates must be a list of two or more texts")
        right = frozenset(text for text in texts for answer in answers if same_text(text, answer))
        if answers and not right:
            raise InputError(
                f"sample {sample.id}: its answer {sample.answer!r} is none of metadata.candidates"
            )
        return ClosedQuestion("candidates", {text: text for text in texts}, False, right)
    said = {read_yes_no(answer) for answer in answers}
    if len(said) == 1 and (word := said.pop()):
        return ClosedQuestion("yes-no", {"yes": "yes", "no": "no"}, False, frozenset([word]))
    return None


def check_closed(samples: Sequence[Sample]) -> None:
    """Raise InputError where no question is closed, or two answers of one are the same text without letters."""
    closed = {sample.id: question for sample in samples if (question := find_closed(sample))}
    if not closed:
        raise InputError(
            "read likelihood: no question has yes or no, options or `metadata.candidates` as its answers; leave it out"
        )
    for name, question in closed.items():
        if not question.lettered and len(set(question.answers.values())) < len(question.answers):
            raise InputError(
                f"sample {name}: two of its options have the same text, and the question shows no letters"
            )


def read_likelihoods(
    model: Model, samples: Iterable[Sample], folder: Path, batch_size: int = 1
) -> dict[str, dict[str, Any]]:
    """Return the line of `likelihoods.jsonl` of each closed question, and write those that are missing.

    A question that fails, as where the model computes NaN, is listed in `failures.jsonl` and has no line, as one without an
    answer.

    A line has, by the name of each possible answer, `logprob`, the log-probability in nat that the answer begins with
    it; `letter` and `text`, the same of the letter and of the text alone. It is None where two answers are written alike.

    Args:
        samples: as they are asked. Open questions are left out.
        folder: where the lines are kept, so that a second call continues.
        batch_size: the most spellings that are read together, where prompts share no prefix.
    """
    from mmprobe.models.likelihood import Spellings, score_spellings, share_prefixes, sum_spellings
    from mmprobe.models.prompt import build_chat
    from mmprobe.traces.asking import EndsRun, Unanswered, append_failure, drop_failures

    file = folder / LIKELIHOODS
    lines = {line["id"]: line for _, line in json_lines(file)} if cut_torn_line(file) else {}
    closed = [(sample, found) for sample in samples if (found := find_closed(sample))]
    left = [pair for pair in closed if pair[0].id not in lines]
    drop_failures(folder, [sample.id for sample, _ in left])
    spellings, prefixes = Spellings(model), None
    for sample, question in tqdm(left, "likelihoods", unit="question", disable=None):
        try:
            chat = build_chat(sample, model)
            prefixes = share_prefixes(model, [chat]) if prefixes is None else prefixes
            shares = prefixes if chat.images else None
            texts = {
                name: spellings.of(text.strip(" .") or text, exact=len(text) == 1)
                for name, text in question.answers.items()
            }
            letters = (
                {
                    name: spellings.of(name, exact=True) + spellings.of(f"({name}", exact=True)
                    for name in texts
                }
                if question.lettered
                else {}
            )
            taken = {
                each for own in letters.values() for each in own
            }  # where the model sees letters, they win
            both = {
                name: [*letters.get(name, []), *(each for each in own if each not in taken)]
                for name, own in texts.items()
            }
            every = list(dict.fromkeys(each for own in both.values() for each in own))
            rows = batch_size if shares is None else max(batch_size, ROWS)
            (scores,) = score_spellings(model, [chat], [every], rows, shares)
        except (OSError, EndsRun):
            raise
        except Exception as error:
            append_failure(folder, sample.id, Unanswered.of(error))
            continue
        lines[sample.id] = {
            "id": sample.id,
            "logprob": _finite(sum_spellings(scores, both)),
            "letter": _finite(sum_spellings(scores, letters)) or None,
            "text": _finite(sum_spellings(scores, texts)),
        }
        append_lines(file, [lines[sample.id]])
    return {sample.id: lines[sample.id] for sample, _ in closed if sample.id in lines}


def _finite(logprobs: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in logprobs.items()}


def _known(logprobs: Mapping[str, float | None]) -> dict[str, float]:
    return {name: -np.inf if value is None else value for name, value in logprobs.items()}


def describe(sample: Sample, line: Mapping[str, Any] | None, response: str | None = None) -> dict[str, Any]:
    """Return what a record says of a closed question, from its line of `likelihoods.jsonl`; None if it was not answered.

    - `chosen`, `correct`: the most probable answer, and whether it is right; None if nobody knows.
    - `agrees`: whether the generated answer says the same; None where it is unread.
    - `margin`: the log-probability of the right answer less that of the most probable other, nat.
    - `probability`: of each answer among the possible ones; `entropy` of these, nat; `mass`: of all of them together among
      everything that the model could say.
    - `by`: the most probable answer by `letter`, by `text` and by `text_per_character`, as `acc` and `acc_norm` of
      lm-eval-harness choose it.

    Example:
        >>> sample = Sample(id="1", question="Is it red?", answer="yes")
        >>> line = {"logprob": {"yes": -0.5, "no": -1.5}, "letter": None, "text": {"yes": -0.5, "no": -1.5}}
        >>> told = describe(sample, line, "No.")
        >>> told["chosen"], told["agrees"], told["margin"], round(told["probability"]["yes"], 2)
        ('yes', False, 1.0, 0.73)
    """
    question = find_closed(sample)
    assert question is not None
    right_names = sorted(question.right)
    if line is None:
        nothing = dict.fromkeys(("chosen", "correct", "agrees", "margin", "entropy", "mass"))
        return {"kind": question.kind, **nothing, "probability": {}, "by": {}, "right": right_names}
    names = list(question.answers)
    logprobs = np.array([_known(line["logprob"])[name] for name in names])
    total = float(np.logaddexp.reduce(logprobs))
    shares = np.exp(logprobs - total)
    chosen = names[int(logprobs.argmax())]
    right = np.isin(names, list(question.right))
    known = bool(right.any() and not right.all())
    said = None
    if response is not None:
        is_yes_no = question.kind == "yes-no"
        said = (
            read_yes_no(response, sample.question)
            if is_yes_no
            else read_choice(response, question.answers, question.lettered)[0]
        )
    letter, text = _known(line["letter"] or {}), _known(line["text"])
    per_character = {name: text[name] / len(question.answers[name] or " ") for name in names}
    by = {"letter": letter, "text": text, "text_per_character": per_character}
    return {
        "kind": question.kind,
        "chosen": chosen,
        "correct": chosen in question.right if known else None,
        "agrees": None if said is None else said == chosen,
        "margin": float(logprobs[right].max() - logprobs[~right].max()) if known else None,
        "probability": dict(zip(names, shares.round(6).tolist(), strict=True)),
        "entropy": float(-(shares * np.log(np.maximum(shares, 1e-300))).sum()),
        "mass": float(np.exp(total)),
        "by": {kind: max(each, key=each.__getitem__) for kind, each in by.items() if each},
        "right": right_names,
    }


def describe_all(
    model: Model, samples: Sequence[Sample], responses: Mapping[str, str], folder: Path, batch_size: int = 1
) -> dict[str, dict[str, Any]]:
    """Return what `describe` says of each closed question, by its id; see `read_likelihoods`.

    A question without a response is not read.
    """
    answered = [sample for sample in samples if sample.id in responses]
    lines = read_likelihoods(model, answered, folder, batch_size)
    return {
        sample.id: describe(sample, lines.get(sample.id), responses.get(sample.id))
        for sample in samples
        if find_closed(sample)
    }


def add_likelihoods(records: Sequence[dict[str, Any]], told: Mapping[str, dict[str, Any]]) -> None:
    """Add to the record of each closed question what `describe` says of it, as `likelihood`."""
    for answer in list_answers(records):
        if (found := told.get(str(answer.get("id")))) is not None:
            answer["likelihood"] = found


def find_margins(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the margin of each answer that was read by likelihood, by its id; of those whose truth is known.

    Example:
        >>> find_margins([{"id": "1", "likelihood": {"margin": -0.5}}, {"id": "2"}])
        {'1': -0.5}
    """
    told = ((str(answer.get("id")), answer.get("likelihood") or {}) for answer in list_answers(records))
    return {name: found["margin"] for name, found in told if found.get("margin") is not None}


def likelihood_metrics(told: Mapping[str, Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute accuracy, calibration and agreement from what `describe` says of each question, by its id.

    - `likelihood_accuracy`: share of the questions whose most probable answer is right; also by the letter, the text, or
      the text's log-probability per character alone (`[by=…]`), and of the questions with the highest probabilities
      (`[kept=…%]`).
    - `likelihood_ece`: expected calibration error (Naeini et al., 2015; Guo et al., 2017, equation 3), over 10 bins of
      the chosen answer's probability. It is biased upwards for few questions.
    - `likelihood_agreement`: share of the generated answers that were read and say the most probable answer.
    - `likelihood_mass`: mean probability of all possible answers together; where it is low, the model would say something else.

    Example:
        >>> told = {
        ...     name: {"correct": right, "probability": {"yes": 0.8, "no": 0.2}, "mass": 0.9, "kind": "yes-no", "agrees": None,
        ...            "by": {}, "right": ["yes"]}
        ...     for name, right in zip("abcde", (True, True, True, False, False))
        ... }
        >>> {name: round(metric.value, 2) for name, metric in likelihood_metrics(told).items() if metric.value is not None}["likelihood_ece"]
        0.2
    """
    ids, records = list(told), list(told.values())

    def mean(values: Sequence[bool | float | None]) -> Metric:
        numbers = [None if value is None else float(value) for value in values]
        return with_ids({"": mean_metric(numbers, "higher")}, ids)[""]

    def accuracy(members: Sequence[int]) -> dict[str, Metric]:
        kept = set(members)
        values = [record["correct"] if index in kept else None for index, record in enumerate(records)]
        return {"likelihood_accuracy": mean(values)}

    metrics = accuracy(range(len(records)))
    for kind in ("letter", "text", "text_per_character"):
        chosen = [record["by"].get(kind) for record in records]
        rights = [
            None if record["correct"] is None or name is None else name in record["right"]
            for record, name in zip(records, chosen, strict=True)
        ]
        if any(right is not None for right in rights):
            metrics[f"likelihood_accuracy[by={kind}]"] = mean(rights)
    order = _by_confidence(records)
    for percent in KEPT:
        kept = order[: round(len(order) * percent / 100)]
        metrics[f"likelihood_accuracy[kept={percent}%]"] = accuracy(kept)["likelihood_accuracy"]
    metrics |= metrics_by_group("closed", [record["kind"] for record in records], accuracy, smallest=2)
    counts = [None if record["correct"] is None else _count(record) for record in records]
    metrics["likelihood_ece"] = with_ids({"": count_metric(counts, _calibration_error, "lower")}, ids)[""]
    metrics["likelihood_agreement"] = mean([record["agrees"] for record in records])
    metrics["likelihood_mass"] = mean(
        [None if record["mass"] is None else min(record["mass"], 1.0) for record in records]
    )
    return metrics


def _by_confidence(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the places of the records whose truth is known, the most probable answer first."""
    known = [index for index, record in enumerate(records) if record["correct"] is not None]
    return sorted(known, key=lambda index: -max(records[index]["probability"].values()))


def _bin(record: Mapping[str, Any]) -> int:
    return min(int(max(record["probability"].values()) * BINS), BINS - 1)


def _count(record: Mapping[str, Any]) -> list[float]:
    """Return what a question adds to the bins: a question, its confidence, and whether it is right; [3 * bin]."""
    counts = np.zeros((3, BINS))
    counts[:, _bin(record)] = 1, max(record["probability"].values()), record["correct"]
    return counts.ravel().tolist()


def _calibration_error(counts: np.ndarray) -> np.ndarray:
    """Return the expected calibration error [...] of summed counts [..., 3 * bin]: the mean over questions of how far the mean
    confidence of their bin is from its accuracy.

    Example:
        >>> counts = np.zeros((3, BINS))
        >>> counts[:, 8] = 5, 4.0, 3
        >>> round(float(_calibration_error(counts.ravel())), 3)
        0.2
    """
    number, confidence, right = np.moveaxis(counts.reshape(*counts.shape[:-1], 3, BINS), -2, 0)
    return np.abs(confidence - right).sum(-1) / number.sum(-1)


def calibration(told: Mapping[str, Mapping[str, Any]], samples: Sequence[Sample]) -> xr.Dataset:
    """Return the reliability diagram and the accuracy over coverage, for a figure.

    Args:
        told: what `describe` says of each question, by its id.
        samples: the questions; those about the same images are one set.

    Returns:
        A data set with the dimensions `bin` and `coverage`.

        - accuracy (bin), with _low, _high: share of right answers among those whose probability is in the bin; NaN
          without any
        - confidence (bin): their mean probability; n (bin): their number
        - kept_accuracy (coverage), with _low, _high: share of right answers among the most probable part
    """
    import xarray as xr

    sets_of = dict(zip([sample.id for sample in samples], image_sets(samples).tolist(), strict=True))
    known = {name: record for name, record in told.items() if record["correct"] is not None}
    records, sets = list(known.values()), np.array([sets_of[name] for name in known], int)
    right = np.array([record["correct"] for record in records], float)
    sure = np.array([max(record["probability"].values()) for record in records])
    places, order = np.array(list(map(_bin, records)), int), _by_confidence(records)
    shares = np.arange(1, 21) / 20
    in_bin = places[:, None] == np.arange(BINS)  # [sample, bin]
    by_bin = estimate_known(np.where(in_bin, right[:, None], np.nan), sets, (0, 1))
    parts = [order[: max(1, round(len(order) * share))] for share in shares]
    kept = [estimate_mean(right[part], sets[part], (0, 1)) for part in parts]
    dataset = xr.Dataset(coords={"bin": (np.arange(BINS) + 0.5) / BINS, "coverage": shares})
    dataset = dataset.assign(by_bin.variables("accuracy", "bin"))
    number = in_bin.sum(0)
    with np.errstate(invalid="ignore"):
        dataset["confidence"] = ("bin", in_bin.T @ sure / number)
    dataset["n"] = ("bin", number)
    for end, name in (("", "value"), ("_low", "low"), ("_high", "high")):
        dataset[f"kept_accuracy{end}"] = ("coverage", [getattr(each, name) for each in kept])
    dataset.attrs = {"analysis": "calibration", "n": len(records), "sets": len(np.unique(sets))}
    return dataset
