"""A judge's client for a model that mmprobe loads: `--judge model:local/FOLDER`, without an API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from mmprobe.benchmarks.core.api_models import CallFailed, ChatTurn, Reply
from mmprobe.benchmarks.judges.judge import BlindJudge
from mmprobe.samples import Sample

PREFIX = "local/"


class LocalClient:
    """A model in this process, with images or for text alone, called as `api_models.ModelClient`.

    It answers one call at a time, greedily at temperature 0. A conversation is asked as one turn: the system prompt,
    and the texts of the user after each other.

    Args:
        name: a folder, a hub id, or an alias that mmprobe loads.
        settings: of every call: temperature, seed, max_tokens.

    Raises:
        InputError: the model cannot be loaded.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        from mmprobe.models.checkpoints import find_checkpoint, fingerprint_checkpoint
        from mmprobe.models.text_model import load_any

        self._name = name
        self._settings = dict(settings)
        self._model = load_any(name)
        self._limit: RunVar[anyio.Semaphore] = RunVar("local model")
        # Another model under the same name must not get the replies of this one.
        self.identity = json.dumps(fingerprint_checkpoint(find_checkpoint(name)), sort_keys=True)

    def turn(self) -> anyio.Semaphore:
        """Return the limit of this event loop: one turn at a time."""
        limit = self._limit.get(None)
        if limit is None:
            limit = anyio.Semaphore(1)
            self._limit.set(limit)
        return limit

    async def call(self, messages: Sequence[ChatTurn], settings: Mapping[str, Any] | None = None) -> Reply:
        """Return the reply to messages.

        Raises:
            CallFailed: the model failed, such as for memory.
            BlindJudge: a model for text alone is shown images.
        """
        reply = partial(self._reply, messages, {**self._settings, **(settings or {})})
        try:
            return await anyio.to_thread.run_sync(reply)
        except (RuntimeError, MemoryError) as error:
            raise CallFailed("error", type(error).__name__) from None

    def _reply(self, messages: Sequence[ChatTurn], settings: Mapping[str, Any]) -> Reply:
        from mmprobe.interventions import generate
        from mmprobe.models.text_model import TextModel, answer_texts, render_text

        system = "\n\n".join(each.text for each in messages if each.role == "system") or None
        text = "\n\n".join(each.text for each in messages if each.role == "user")
        images = [path for each in messages for path in each.images or ()]
        longest = settings["max_tokens"]
        if isinstance(self._model, TextModel):
            if images:
                raise BlindJudge(f"judge {PREFIX}{self._name}: reads text alone; ask without images")
            prompt = render_text(text, system, self._model.tokenizer, "a request to the judge")
            told = answer_texts(self._model, [prompt], longest)[0]
            return Reply(told, "stop", self._count(prompt, told))
        sample = Sample(id="judged", images=images, question=text, system=system)
        answer = generate(
            self._model,
            sample,
            max_new_tokens=longest,
            temperature=settings.get("temperature") or 0.0,
            seed=settings.get("seed") or 0,
        )
        stop = "max_tokens" if answer.is_truncated(self._model) else "stop"
        told = answer.response.strip()
        return Reply(told, stop, self._count(f"{system or ''}{text}", told))

    def _count(self, *texts: str) -> int:
        """Return the tokens of texts; those of images are not counted."""
        return sum(len(self._model.tokenizer(text)["input_ids"]) for text in texts)
