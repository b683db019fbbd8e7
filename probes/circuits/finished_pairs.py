"""Measure pairs of prompts one after the other, and keep what is finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from mmprobe.models import Model
from mmprobe.probes.answer_records import Arrays, Record, RunAnswer, read_record, write_records
from mmprobe.probes.circuits.graph import Graph
from mmprobe.probes.circuits.node_pair import NodePair, check_pairs, read_node_pairs
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import Answer
from mmprobe.samples import Sample, image_sets

Samples = Sample | Sequence[Sample]


class MeasuredPairs(NamedTuple):
    """What was measured for pairs of prompts.

    Attributes:
        graph: the nodes, the same for all pairs.
        metric: name of the metric.
        arrays: by pair; `passes` is the number of forward passes.
    """

    graph: Graph
    metric: str
    arrays: list[Arrays]

    def stack(self, name: str) -> np.ndarray:
        """Return an array of all pairs, [pair, ...]."""
        return np.array([arrays[name] for arrays in self.arrays])


def measure_pairs(
    model: Model,
    clean: Sequence[Sample],
    corrupt: Sequence[Sample],
    metric: Metric,
    answers: Sequence[Answer] | None,
    max_new_tokens: int,
    measure: Callable[[NodePair, int], Arrays],
    settings: dict[str, Any],
    finished: Path | None,
) -> MeasuredPairs:
    """Return what a function measures for each pair. One pair at a time is in memory.

    Args:
        measure: a function of a pair and its number.
        settings: what the arrays depend on besides the model and the pair, for JSON, with the name of the
            analysis as `analysis`.
        finished: folder that keeps the arrays of each pair under the clean sample's id. Pairs that are there
            are not measured again; the first one is read all the same, for the graph.

    Raises:
        InputError: the pairs do not match, or the folder holds pairs with other settings.
        NotApplicable: the family is of a form that the graph does not know.
    """
    check_pairs(model, clean, corrupt, answers)
    given = [None] * len(clean) if answers is None else answers
    texts = [
        json.dumps(settings | _describe(model, *pair, metric, max_new_tokens), sort_keys=True)
        for pair in zip(clean, corrupt, given, strict=True)
    ]
    kept = [read_record(finished, sample, [], text) for sample, text in zip(clean, texts, strict=True)]
    arrays: list[Arrays] = [{} if record is None else record.arrays for record in kept]
    left = [number for number, record in enumerate(kept) if record is None or number == 0]
    pairs = read_node_pairs(
        model,
        [clean[number] for number in left],
        [corrupt[number] for number in left],
        metric,
        [given[number] for number in left],
        max_new_tokens,
    )
    graph: Graph | None = None
    with tqdm(total=len(left), desc=settings["analysis"], disable=None) as progress:
        for number, nodes in zip(left, pairs, strict=True):
            graph, name = nodes.graph, nodes.pair.metric_name
            if kept[number] is None:
                arrays[number] = measure(nodes, number) | {"passes": np.array(nodes.passes)}
                answer = RunAnswer(clean[number], nodes.pair.clean.forcing.ids.tolist(), None)
                write_records(finished, [Record(answer, arrays[number])], texts[number])
            progress.update()
    assert graph is not None
    return MeasuredPairs(graph, name, arrays)


def _describe(
    model: Model, clean: Sample, corrupt: Sample, answer: Answer, metric: Metric, longest: int
) -> dict[str, Any]:
    """Return what the arrays of a pair depend on, for JSON."""
    return {
        "model": model.name,
        "metric": metric if isinstance(metric, str) else getattr(metric, "__name__", str(metric)),
        "longest": longest,
        "question": clean.question,
        "corrupt": [corrupt.id, corrupt.question, *(path.name for path in corrupt.images)],
        "answer": clean.answer
        if answer is None
        else answer
        if isinstance(answer, str)
        else list(map(int, answer)),
    }


def list_samples(samples: Samples) -> list[Sample]:
    """Return one sample or several as a list."""
    return [samples] if isinstance(samples, Sample) else list(samples)


def describe(
    model: Model, measured: MeasuredPairs, clean: Sequence[Sample], corrupt: Sequence[Sample]
) -> dict[str, object]:
    """Return the attributes of a data set that describe its pairs."""
    return {
        "model": model.name,
        "metric": measured.metric,
        "samples": ", ".join(sample.id for sample in clean),
        "corrupt": ", ".join(sample.id for sample in corrupt),
        "n": len(clean),
        "sets": len(np.unique(image_sets(clean))),
        "n_edges": int(measured.graph.edges.sum()),
        "forward_passes": int(measured.stack("passes").sum()),
    }
