"""CHI, the collaborative hint inference of Logos (arXiv:2505.24238, section 5.4): hints around the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import yaml

from mmprobe.interventions.prompt_method import (
    AskFunction,
    PromptMethod,
    add_diagnostics,
    add_lines,
    find_last_text,
)
from mmprobe.interventions.registry import choice, text
from mmprobe.models import Model, load_model
from mmprobe.models.finite import watch_finite
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.models.prompt import Chat, build_batch

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer

POLICY = "policy"  # the hinter that is the model itself


@dataclass(frozen=True)
class Chi(PromptMethod):
    """The answer to a question between a hint for its topic and a hint for itself: r = policy([h_topic, x, h_question]).

    A hinter, phi in the paper, names the topic and writes both hints; with `written=paper` the topic's hint is the fixed one of
    figure 19. If it names none of the topics, the topic hint is left out.

    Parameters:
        hints: none, topic, question or both: the rows of table 8. none is the model's own answer.
        topics: the question types, with commas between: MIRAGE's.
        written: who writes the topic's hint: `hinter`, or `paper` for the fixed hints of figure 19.
        hinter: the model that writes the hints, by its name; `policy`, the default, is the model itself (our choice; the paper
            has an auxiliary model, which it does not name).
        classify: the request for the topic, in our words; `{topics}` is filled in.
        approach: the request for the topic's hint, in our words; `{topic}` is filled in.
        advise: the request for the question's hint, in our words.
    """

    name: ClassVar[str] = "chi"
    reference: ClassVar[str] = "MIRAGE (arXiv:2505.24238), section 5.4: collaborative hint inference of Logos"
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"hints": "none"}
    shares_prefix: ClassVar[bool] = True
    asks_again: ClassVar[bool] = True

    hints: str = choice("both", ("none", "topic", "question", "both"))
    topics: str = text("algebra, arithmetic, geometry, logical, scientific, spatial, statistical")
    written: str = choice("hinter", ("hinter", "paper"))
    hinter: str = text(POLICY)
    classify: str = text(
        "To which of these topics does the question belong: {topics}? Do not answer it. Reply with the topic alone."
    )
    approach: str = text(
        "In one sentence: how does one solve a question of the topic {topic}? Do not answer it."
    )
    advise: str = text("In one sentence: give a hint for this question. Do not answer it.")

    @property
    def neutral(self) -> bool:
        return self.hints == "none"

    def answer(
        self, model: Model, chats: Sequence[Chat], ask: AskFunction, seed: int, max_new_tokens: int
    ) -> list[GeneratedAnswer]:
        topics: list[str | None] = [None] * len(chats)
        topic_hints, question_hints = [""] * len(chats), [""] * len(chats)
        if self.hints in ("topic", "both"):
            request = self.classify.replace("{topics}", self.topics)
            replies = self._ask_hinter(chats, [request] * len(chats), ask, max_new_tokens)
            topics = [self._read_topic(reply) for reply in replies]
            named = [number for number, topic in enumerate(topics) if topic]
            if self.written == "paper":
                for number in named:
                    topic_hints[number] = _paper_hints().get(str(topics[number]), "")
            else:
                requests = [self.approach.replace("{topic}", str(topics[number])) for number in named]
                replies = self._ask_hinter([chats[number] for number in named], requests, ask, max_new_tokens)
                for number, reply in zip(named, replies, strict=True):
                    topic_hints[number] = reply
        if self.hints in ("question", "both"):
            question_hints = self._ask_hinter(chats, [self.advise] * len(chats), ask, max_new_tokens)
        answers = ask([_surround(*each) for each in zip(chats, topic_hints, question_hints, strict=True)])
        return [
            add_diagnostics(answer, self, {"topic": topic, "topic_hint": first, "question_hint": last})
            for answer, topic, first, last in zip(answers, topics, topic_hints, question_hints, strict=True)
        ]

    def _ask_hinter(
        self, chats: Sequence[Chat], requests: Sequence[str], ask: AskFunction, max_new_tokens: int
    ) -> list[str]:
        """Return the hinter's reply to each chat with a request after its question."""
        asked = [
            add_lines(chat, request)._replace(prefill="")
            for chat, request in zip(chats, requests, strict=True)
        ]
        if not asked:
            return []
        if self.hinter == POLICY:
            return [answer.text.strip() for answer in ask(asked)]
        hinter = _load_hinter(self.hinter)
        batch = build_batch(hinter, asked)
        with torch.inference_mode(), watch_finite(hinter, batch.inputs):
            ids = hinter.hf.generate(**batch.inputs, **build_generation_kwargs(hinter, max_new_tokens))
        replies = ids[:, batch.inputs["input_ids"].shape[1] :]
        return [reply.strip() for reply in hinter.tokenizer.batch_decode(replies, skip_special_tokens=True)]

    def _read_topic(self, reply: str) -> str | None:
        """Return the one topic that a reply names, or None."""
        words = reply.casefold()
        named = [topic.strip() for topic in self.topics.split(",") if topic.strip().casefold() in words]
        return named[0] if len(named) == 1 else None


@cache
def _paper_hints() -> dict[str, str]:
    """Return the hint of each topic of MIRAGE, as figure 19 prints it.

    Example:
        >>> sorted(_paper_hints())
        ['algebra', 'arithmetic', 'geometry', 'logical', 'scientific', 'spatial', 'statistical']
    """
    file = resources.files("mmprobe.configs") / "prompts" / "mirage" / "paper.yaml"
    return dict(yaml.safe_load(file.read_text(encoding="utf-8"))["topic_hints"])


@lru_cache(maxsize=1)
def _load_hinter(name: str) -> Model:
    """Return the model that writes hints. It stays in memory for the next questions."""
    return load_model(name)


def _surround(chat: Chat, before: str, after: str) -> Chat:
    """Return a chat with one hint before and one after the user's last text; an empty hint adds nothing.

    Example:
        >>> chat = Chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], [], "here")
        >>> _surround(chat, "Think.", "Because").messages[0]["content"][0]["text"]
        'Think.\\n\\nWhy?\\n\\nBecause'
    """
    messages = [message | {"content": list(message["content"])} for message in chat.messages]
    parts = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    last = find_last_text(parts)
    texts = "\n\n".join(text for text in (before, parts[last]["text"], after) if text)
    parts[last] = parts[last] | {"text": texts}
    return chat._replace(messages=messages)
