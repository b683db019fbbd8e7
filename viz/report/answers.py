"""The table of answers that a report opens with: question, answer, truth, label, images, and its internals.

What is worth a look comes first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from markupsafe import Markup

from mmprobe.cache import Run
from mmprobe.samples import Sample
from mmprobe.thoughts import is_degenerate
from mmprobe.viz.report.elements import (
    LABEL_NAMES,
    REPETITIVE,
    RIGHT_NAMES,
    WORDLESS,
    compress,
    data_block,
    has_words,
    label_counts,
    render,
)
from mmprobe.viz.report.images import Images
from mmprobe.viz.report.results import MAX_LENGTH, AnswerRow, ResultFolder, truncate

MAX_ANSWERS = 20_000  # in the table
UNCHANGED = "no other images change it"
LOSS = "Loss with other images, nat"
# analysis, variable, name and explanation of the column
_INTERNALS = (
    (
        "image_interchange",
        "free_effect",
        LOSS,
        "how far the answer's free tokens, which some of the other images would change, fall below what the model would say "
        "then, mean; 0 if none is free",
    ),
    (
        "attention_decay",
        "share_of_sample",
        "Visual share",
        "attention on visual tokens, mean over layers and steps",
    ),
    (
        "attention_decay",
        "slope_authors_of_sample",
        "Decay",
        "slope per step of the images' share of the attention to the prompt; below 0 if it decreases",
    ),
    (
        "attention_vs_activation",
        "region_mass_attention_of_sample",
        "Attention on regions",
        "share of the attention on visual tokens that falls on the sample's regions, mean over steps",
    ),
    (
        "attention_vs_activation",
        "region_mass_activation_of_sample",
        "Activation on regions",
        "share of the token activation maps that falls on the sample's regions, mean over steps",
    ),
    (
        "attention_vs_activation",
        "iou_of_sample",
        "Overlap",
        "intersection over union of the top cells of attention and token activation, mean over steps",
    ),
)


class InternalColumn(NamedTuple):
    """A column with one number of an analysis for each sample.

    Attributes:
        name: heading of the column.
        about: explanation below the table.
        values: by sample id; None if undefined.
    """

    name: str
    about: str
    values: dict[str, float | None]


def internal_columns(datasets: Iterable[xr.Dataset]) -> list[InternalColumn]:
    """Return the columns of the analyses that are present.

    Example:
        >>> [column.name for column in internal_columns([mp.analyses.attention_decay(run)])]    # doctest: +SKIP
        ['Visual share', 'Decay']
    """
    by_name = {str(dataset.attrs.get("analysis")): dataset for dataset in datasets}
    return [
        InternalColumn(name, about, _values_by_sample(by_name[analysis][variable]))
        for analysis, variable, name, about in _INTERNALS
        if analysis in by_name and variable in by_name[analysis]
    ]


def _values_by_sample(values: xr.DataArray) -> dict[str, float | None]:
    """Return one value for each sample: the mean over all other dimensions without NaN."""
    names = [str(name) for name in values["sample"].values]
    flat = values.transpose("sample", ...).values.reshape(len(names), -1).astype(float)
    finite = np.isfinite(flat)
    counts, totals = finite.sum(1), np.where(finite, flat, 0).sum(1)
    return {
        name: float(f"{total / count:.4g}") if count else None
        for name, count, total in zip(names, counts, totals, strict=True)
    }


class Answers(NamedTuple):
    """The answers of a report.

    Attributes:
        rows: each answer with its texts.
        labels: whether each is faithful or right; None if unknown. The run's labels come before those of the results.
        names: the words for these labels: `LABEL_NAMES`, or `RIGHT_NAMES` where they only say what is right.
        folder: where relative paths of images begin.
    """

    rows: list[AnswerRow]
    labels: list[bool | None]
    names: Mapping[bool | None, str]
    folder: Path

    @property
    def words(self) -> list[str]:
        """The word for each answer's label."""
        return [self.names[label] for label in self.labels]

    @property
    def wordless(self) -> list[bool]:
        """Whether each answer has no words."""
        return [not has_words(row.answer) for row in self.rows]

    @property
    def repetitive(self) -> list[bool]:
        """Whether each answer repeats itself."""
        return [row.answer is not None and is_degenerate(row.answer) for row in self.rows]

    @property
    def degenerate_share(self) -> float:
        """Share of the answers that have no words or repeat themselves; 0 without answers."""
        flags = [any(pair) for pair in zip(self.wordless, self.repetitive, strict=True)]
        return sum(flags) / max(len(flags), 1)

    @property
    def by_id(self) -> dict[str, tuple[AnswerRow, bool | None]]:
        """Each answer with its label, by its id."""
        return {row.id: (row, label) for row, label in zip(self.rows, self.labels, strict=True)}


def collect_answers(run: Run | None, results: ResultFolder | None) -> Answers:
    """Return the answers of the results, or those of a run without results.

    Example:
        >>> collect_answers(mp.open_run("runs/mine"), None).words                    # doctest: +SKIP
        ['right', 'unread', 'wrong']
    """
    run_labels = {name: run.faithful(name) for name in run.ids} if run is not None else {}
    known = {name: label for name, label in run_labels.items() if label is not None}
    is_read = all(
        run is not None and run.right.get(name, not label) == label for name, label in known.items()
    )
    if results is not None and (results.answers or run is None):
        rows, folder = results.answers, results.folder
        labels = [known.get(row.id, row.faithful) for row in rows]
        is_read = is_read and all(row.is_read for row in rows)
    else:
        rows, folder = list(_run_answers(run)) if run is not None else [], Path()
        labels = list(run_labels.values())
        is_read = is_read and bool(run is not None and run.right)
    return Answers(rows, labels, RIGHT_NAMES if is_read and rows else LABEL_NAMES, folder)


def _run_answers(run: Run) -> Iterator[AnswerRow]:
    for name in run.ids:
        trace = run[name]
        try:
            sample, answer = trace.sample, trace.answer
        finally:
            trace.close()
        yield AnswerRow(
            name,
            truncate(sample.question, MAX_LENGTH["question"]),
            truncate(answer, MAX_LENGTH["answer"]),
            "",
            None,
            None if sample.answer is None else truncate(sample.answer, MAX_LENGTH["truth"]),
            tuple(map(str, sample.images)),
            str(sample.metadata.get("type", "")),
        )


class LabelledAnswer(NamedTuple):
    """An answer whose label is known.

    Attributes:
        faithful: whether it is right, or says nothing false of its images.
        kind: the type of its question, or "".
        sample: its sample; for an answer without a trace one with its images alone.
    """

    faithful: bool
    kind: str
    sample: Sample


def list_labelled(run: Run | None, answers: Answers) -> Iterator[LabelledAnswer]:
    """Yield the answers with a label."""
    for number, (row, label) in enumerate(zip(answers.rows, answers.labels, strict=True)):
        if label is not None:
            yield LabelledAnswer(label, row.kind, find_sample(run, answers, number))


def find_sample(run: Run | None, answers: Answers, number: int) -> Sample:
    """Return the sample of an answer in the run; without a trace one with its images alone."""
    row = answers.rows[number]
    if run is not None and row.id in run:
        return run.sample(row.id)
    paths = [(answers.folder / image).resolve() for image in row.images]
    return Sample(id=f"answer-{number}", images=paths, question="?")


def answers_table(
    answers: Answers,
    columns: Sequence[InternalColumn],
    links: Mapping[str, str],
    images: Images,
    unchanged: Collection[str] = (),
) -> tuple[Markup, list[str]]:
    """Return the table, and the data from which `answers.js` fills it; nothing without answers.

    Args:
        columns: internals of the answers.
        links: fragment of each sample in the explorer, by sample id.
        images: gets thumbnails of the answers' images.
        unchanged: ids of the answers that no other images change.

    Example:
        >>> answers_table(Answers([], [], LABEL_NAMES, Path()), [], {}, Images())
        (Markup(''), [])
    """
    if not answers.rows:
        return Markup(), []
    shown = answers._replace(rows=answers.rows[:MAX_ANSWERS], labels=answers.labels[:MAX_ANSWERS])
    used = [column for column in columns if any(column.values.get(row.id) is not None for row in shown.rows)]
    losses = next((column.values for column in used if column.name == LOSS), {})
    flags = {
        WORDLESS: shown.wordless,
        REPETITIVE: shown.repetitive,
        UNCHANGED: [row.id in unchanged for row in shown.rows],
    }
    counts = {name: sum(flagged) for name, flagged in flags.items() if any(flagged)}
    filters = label_counts(shown.words)
    if counts:
        filters = (filters or {"all": len(shown.rows)}) | counts
    html = render(
        "answers.html",
        note=_size_note(len(shown.rows), len(answers.rows)),
        filters=filters,
        orders=_sort_options(used),
        columns=used,
        read=answers.names is RIGHT_NAMES,
    )
    table = json.dumps(
        _table_data(shown, used, flags, losses, links, images), allow_nan=False, separators=(",", ":")
    )
    return html, [data_block("answers-data", json.dumps(compress(table.encode())))]


def list_unchanged(ds: xr.Dataset | None) -> set[str]:
    """Return the ids of the answers that no other images change, from the data set of `image_interchange_run`, or None.

    Example:
        >>> list_unchanged(None)
        set()
    """
    if ds is None or "unused" not in ds:
        return set()
    return set(ds["sample"].values[ds["unused"].values == 1].tolist())


def _size_note(shown: int, count: int) -> str:
    return f"Shows the first {shown:,} of {count:,} answers." if shown < count else ""


def _sort_options(columns: Sequence[InternalColumn]) -> list[tuple[str, str]]:
    """Return value and name of each order: what is worth a look, as in the data, or by the numbers of a column."""
    options = [("worth", "worth a look first"), ("", "as in the data")]
    for index, column in enumerate(columns):
        options.append((f"{index} 1", f"lowest {column.name.lower()}"))
        options.append((f"{index} -1", f"highest {column.name.lower()}"))
    return options


def _rank_answers(
    words: Sequence[str],
    degenerate: Sequence[bool],
    unchanged: Sequence[bool],
    losses: Sequence[float | None],
) -> list[int]:
    """Return the place of each answer in the order of what is worth a look.

    First the degenerate answers, since the prompt or the model is wrong; then the wrong answers; then the right
    ones that no other images change; then those that nobody read; then the others. Equals are in the order of their
    loss, the least first.

    Args:
        words: for each answer's label.
        degenerate: whether it has no words, or repeats itself.
        unchanged: whether no other images change it.
        losses: nat with other images; None where it was not measured.

    Example:
        >>> unchanged = [False, False, False, True]
        >>> _rank_answers(["right", "unread", "wrong", "right"], [False] * 4, unchanged, [1.0, None, 2.0, 0.0])
        [3, 2, 0, 1]
    """

    def worth(index: int) -> tuple[float, float]:
        loss = losses[index]
        bad, unknown = words[index] in ("wrong", "unfaithful"), words[index] in ("unread", "unlabelled")
        place = 0 if degenerate[index] else 1 if bad else 2 if unchanged[index] else 3 if unknown else 4
        return place, math.inf if loss is None else loss

    order = sorted(range(len(words)), key=worth)
    ranks = [0] * len(order)
    for place, index in enumerate(order):
        ranks[index] = place
    return ranks


def _table_data(
    answers: Answers,
    columns: Sequence[InternalColumn],
    flags: Mapping[str, Sequence[bool]],
    losses: Mapping[str, float | None],
    links: Mapping[str, str],
    images: Images,
) -> dict[str, Any]:
    """Return the table for the script: each question and set of images once, and one row for each answer."""
    questions: dict[str | None, int] = {}
    sets: dict[tuple[str, ...], int] = {}
    words = answers.words
    degenerate = [any(pair) for pair in zip(flags[WORDLESS], flags[REPETITIVE], strict=True)]
    known = [losses.get(row.id) for row in answers.rows]
    ranks = _rank_answers(words, degenerate, flags[UNCHANGED], known)
    rows = [
        [
            row.id,
            questions.setdefault(row.question, len(questions)),
            row.answer,
            row.truth,
            row.details,
            [word, *(name for name, flagged in flags.items() if flagged[index])],
            ranks[index],
            links.get(row.id),
            sets.setdefault(row.images, len(sets)),
            [column.values.get(row.id) for column in columns],
        ]
        for index, (row, word) in enumerate(zip(answers.rows, words, strict=True))
    ]
    thumbnails = [[images.thumbnail((answers.folder / name).resolve()) for name in names] for names in sets]
    return {
        "columns": [column.name for column in columns],
        "questions": list(questions),
        "images": [[name for name in names if name] for names in thumbnails],
        "rows": rows,
    }
