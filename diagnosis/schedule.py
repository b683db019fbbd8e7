"""The readings of all tests: what is asked of the model, in one pass over each batch, and how many passes that takes.

A test is written for one answer, as a generator: it yields the readings that it needs, gets them back, and may then ask for others.
`run` drives many of these at once and reads in one batch what they ask for at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.attention import AttentionCall, softmax_rows
from mmprobe.models.finite import watch_finite
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.models.prompt import Chat, render_chat
from mmprobe.models.reading import (
    PrefixStore,
    Reading,
    begin_chats,
    float32_logits,
    image_key,
    own_logits,
    read_chats,
)

log = logging.getLogger("mmprobe")

AHEAD = 2  # batches that are put together, so that their requests fill passes of one length

T = TypeVar("T")


class AnswerReading(NamedTuple):
    """An answer as the model reads it.

    Attributes:
        logprobs: log-probability of each token, [step].
        likeliest: id of the token that the model would have said, int [step].
        margins: how far each token is above the likeliest other one, nat [step]; below 0 where that is likelier.
        last: log-probability of every token at the last step, [token].
        looks: mean attention of the answer's queries to each visual token, [layer * head, visual]; None where
            it was not asked for.
    """

    logprobs: np.ndarray
    likeliest: np.ndarray
    margins: np.ndarray
    last: np.ndarray
    looks: np.ndarray | None = None


class Read(NamedTuple):
    """Asks how the model reads an answer after a chat: an `AnswerReading`.

    Attributes:
        ids: the answer's tokens, one at least.
        looks: whether attention to the images is read, too. Not for models with cross-attention.
    """

    chat: Chat
    ids: Sequence[int]
    looks: bool = False


class Say(NamedTuple):
    """Asks what the model answers to a chat: token ids, the likeliest each time, an end token included.

    Attributes:
        longest: the number of tokens, at most.
    """

    chat: Chat
    longest: int


Request = Read | Say
Task = Generator[Sequence[Request], list[Any], T]
"""What is asked of one answer: yields requests, gets their results in this order, and returns what was measured."""


def read(requests: Sequence[Read]) -> Task[list[AnswerReading]]:
    """Return the readings that are asked for: `readings = yield from read([...])`."""
    return (yield requests) if requests else []


def say(requests: Sequence[Say]) -> Task[list[list[int]]]:
    """Return the answers that are asked for: `answers = yield from say([...])`."""
    return (yield requests) if requests else []


class Measured(NamedTuple):
    """What a task returned, and how many passes it took. To generate an answer counts as one."""

    value: Any
    passes: int


def together(tasks: Sequence[Task[Any]]) -> Task[list[Measured]]:
    """Join tasks to one that yields at each turn what all of them ask for, and returns what they return, in order.

    An InputError of a request is raised in the task that asked for it.

    Example:
        >>> def ask(words):
        ...     heard = yield [words]
        ...     return heard[0]
        >>> joined = together([ask("a"), ask("b")])
        >>> next(joined)
        ['a', 'b']
        >>> try: joined.send(["A", "B"])
        ... except StopIteration as stop: print(stop.value)
        [Measured(value='A', passes=1), Measured(value='B', passes=1)]
    """
    done: list[Measured] = [Measured(None, 0)] * len(tasks)
    asked: dict[int, Sequence[Request]] = {}

    def advance(number: int, results: list[Any] | None) -> None:
        error = next((each for each in results or () if isinstance(each, InputError)), None)
        task, passes = tasks[number], done[number].passes
        try:
            if error is not None:
                asked[number] = task.throw(error)
            else:
                asked[number] = next(task) if results is None else task.send(results)
            done[number] = Measured(None, passes + len(asked[number]))
        except StopIteration as stop:
            asked.pop(number, None)
            done[number] = Measured(stop.value, passes)

    for number in range(len(tasks)):
        advance(number, None)
    while asked:
        turn = dict(asked)
        results = iter((yield [request for own in turn.values() for request in own]))
        for number, own in turn.items():
            advance(number, [next(results) for _ in own])
    return done


def run(
    model: Model, tasks: Sequence[Task[Any]], batch_size: int, prefixes: PrefixStore | None = None
) -> list[Measured]:
    """Return what tasks measure, and the passes of each.

    Args:
        batch_size: how many requests are read together.
        prefixes: what chats with the same images share, which is read once for many requests; None to read whole prompts.
    """
    joined = together(tasks)
    try:
        requests = next(joined)
        with float32_logits(model):
            while True:
                requests = joined.send(_answer(model, requests, batch_size, prefixes))
    except StopIteration as stop:
        return list(stop.value)


def _answer(
    model: Model, requests: Sequence[Request], batch_size: int, prefixes: PrefixStore | None
) -> list[Any]:
    """Return the result of each request, or an InputError where its chat cannot be rendered. Batches hold chats of one kind."""

    def kind(place: int) -> tuple[Any, ...]:
        request = requests[place]
        return type(request).__name__, len(request.chat.images)

    def length(place: int) -> int:  # after the images, in characters, about
        request = requests[place]
        tokens = len(request.ids) if isinstance(request, Read) else request.longest
        text = "".join(str(message["content"]) for message in request.chat.messages)
        return len(text.rpartition("'image'")[2]) + 4 * tokens

    shown = [image_key(each.chat) if prefixes is not None and each.chat.images else () for each in requests]
    first = {key: place for place, key in reversed(list(enumerate(shown)))}
    results: list[Any] = [None] * len(requests)
    ordered = sorted(
        range(len(requests)), key=lambda place: (*kind(place), first[shown[place]], length(place))
    )
    size = batch_size if model.family.batches else 1
    for _, same in groupby(ordered, key=kind):
        left = list(same)
        while left:
            on_cpu = model.device.type == "cpu"
            places = sorted(left[: AHEAD * size if on_cpu else size], key=length)
            parts = cut_padded(places, list(map(length, places)), size) if on_cpu else [places]
            try:
                found = [
                    each
                    for part in parts
                    for each in _answer_batch(model, [requests[place] for place in part], prefixes)
                ]
            except (torch.OutOfMemoryError, MemoryError):
                if size == 1:
                    raise
                size //= 2
                log.warning("out of memory; continuing with %d readings at a time", size)
                continue
            for place, result in zip(places, found, strict=True):
                results[place] = result
            left = left[len(places) :]
    return results


def cut_padded(places: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
    """Return parts of so many requests at most, in which no length is more than half as long again as the first.

    A processor pays for each token that fills up a row, and a GPU for each pass.

    Example:
        >>> cut_padded([3, 5, 4, 9], [10, 12, 30, 31], 8)
        [[3, 5], [4, 9]]
    """
    parts: list[list[int]] = []
    shortest = 0
    for place, length in zip(places, lengths, strict=True):
        if not parts or len(parts[-1]) == most or 2 * length > 3 * shortest:
            parts.append([])
            shortest = length
        parts[-1].append(place)
    return parts


def _answer_batch(model: Model, batch: Sequence[Any], prefixes: PrefixStore | None) -> list[Any]:
    perform = partial(_read_batch if isinstance(batch[0], Read) else _say_batch, prefixes=prefixes)
    try:
        return perform(model, batch)
    except InputError:  # such as that of a template that takes no earlier turns
        errors = {
            place: error for place, each in enumerate(batch) if (error := _find_error(model, each.chat))
        }
        if not errors:
            raise
        rest = [each for place, each in enumerate(batch) if place not in errors]
        left = iter(perform(model, rest) if rest else [])
        return [errors[place] if place in errors else next(left) for place in range(len(batch))]


def _find_error(model: Model, chat: Chat) -> InputError | None:
    try:
        render_chat(model, chat)
    except InputError as error:
        return error
    return None


def _read_batch(model: Model, batch: Sequence[Read], prefixes: PrefixStore | None) -> list[Any]:
    chats = [each.chat for each in batch]
    looks = [each.looks for each in batch]
    return read_answers(
        model, chats, [each.ids for each in batch], looks, prefixes if chats[0].images else None
    )


def _say_batch(model: Model, batch: Sequence[Say], prefixes: PrefixStore | None) -> list[Any]:
    chats = [each.chat for each in batch]
    inputs, columns = begin_chats(model, chats, prefixes if chats[0].images else None)
    longest = max(each.longest for each in batch)
    with torch.inference_mode(), own_logits(model), watch_finite(model, inputs):
        ids = model.hf.generate(**inputs, **build_generation_kwargs(model, longest))
    said = ids[:, columns:].tolist()
    return [_end(model, row[: each.longest]) for row, each in zip(said, batch, strict=True)]


def _end(model: Model, ids: list[int]) -> list[int]:
    """Return an answer up to its end token, which is followed by padding where others of the batch are longer."""
    ends = [place for place, token in enumerate(ids, 1) if token in model.eos_token_ids]
    return ids[: ends[0]] if ends else ids


def read_answers(
    model: Model,
    chats: Sequence[Chat],
    answers: Sequence[Sequence[int]],
    looks: Sequence[bool] = (),
    prefixes: PrefixStore | None = None,
) -> list[AnswerReading]:
    """Return the reading of each answer after its chat, all in one forward pass.

    Args:
        chats: all of them with equally many images.
        answers: token ids, at least one each.
        looks: whether to return the attention to the images, too, for each answer; () for none. Not for models with cross-attention.
        prefixes: as in `run`.
    """
    reading = read_chats(model, chats, answers, prefixes)
    seen: dict[int, list[Tensor]] = {row: [] for row, wanted in enumerate(looks) if wanted}
    observers = {
        ("call", layer): partial(_keep_looks, reading, seen) for layer in range(model.n_layers if seen else 0)
    }
    return [
        AnswerReading(
            said.logprobs.cpu().numpy().astype(float),
            said.likeliest.cpu().numpy(),
            said.margins.cpu().numpy().astype(float),
            said.last.cpu().numpy(),
            torch.cat(seen[row]).cpu().numpy() if row in seen else None,
        )
        for row, said in enumerate(reading.predict(observers=observers))
    ]


def _keep_looks(reading: Reading, seen: dict[int, list[Tensor]], call: AttentionCall) -> None:
    """Keep the mean attention of the queries of some answers to their visual tokens in a layer, [head, visual]."""
    before = call.key.shape[2] - call.query.shape[2]  # keys of tokens that were read earlier
    for number, layers in seen.items():
        row = reading.rows[number]
        first = reading.place(number, row.queries.start) - before
        weights = softmax_rows(call, number, slice(first, first + len(row.ids)))
        places = torch.as_tensor(reading.place(number, row.prompt.visual_positions), device=weights.device)
        layers.append(weights[:, :, places].mean(1))
