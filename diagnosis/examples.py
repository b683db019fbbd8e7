"""Examples of a named cause: an answer on which it acts, what a test changes in its prompt, and what the model answers then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.causal_test import CausalTest
from mmprobe.diagnosis.images import read_kinds
from mmprobe.diagnosis.schedule import Say, Task, run, say
from mmprobe.diagnosis.study import Case, Study
from mmprobe.ledger import Ledger
from mmprobe.models.likelihood import share_prefixes
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.thoughts import drop_thoughts

EXAMPLES = "examples.jsonl"
MOST_EXAMPLES = 3  # of a cause


class Example(NamedTuple):
    """One answer on which a cause acts.

    Attributes:
        cause, id: the cause, and the answer's sample.
        question, images, truth, answer: of the sample.
        changed: what is changed in the prompt, in words; "" where the test changes nothing in the prompt of a single answer.
        then: what the model answers to the changed prompt.
        passes: the number of forward passes.
    """

    cause: str
    id: str
    question: str
    images: list[str]
    truth: str
    answer: str
    changed: str = ""
    then: str = ""
    passes: int = 0


def choose_examples(causes: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return for each cause the ids of some answers on which it acts, those with the highest score first.

    Args:
        answers: those of a `Diagnosis`.

    Example:
        >>> choose_examples(["blind"], [{"id": "a", "causes": ["blind"], "scores": {"blind": 0.9}}, {"id": "b", "causes": []}])
        [('blind', 'a')]
    """
    chosen = []
    for cause in causes:
        acting = [answer for answer in answers if cause in answer["causes"]]
        acting.sort(key=lambda answer: -answer["scores"][cause])
        chosen += [(cause, str(answer["id"])) for answer in acting[:MOST_EXAMPLES]]
    return chosen


def ask_examples(
    study: Study,
    chosen: Sequence[tuple[str, str]],
    tests: Mapping[str, CausalTest],
    ledger: Ledger,
    size: int,
) -> list[Example]:
    """Return an example of each cause and answer. What an earlier call asked is not asked again.

    Args:
        chosen: causes with ids, as from `choose_examples`.
        size: how many prompts are read together.
    """
    done = {(line["cause"], line["id"]): line for line in ledger.lines(EXAMPLES)}
    left = [each for each in chosen if each not in done]
    tasks = [ask_example(tests[cause], study, study.by_id[name]) for cause, name in left]
    for asked in run(study.model, tasks, size, share_prefixes(study.model, [])):
        line = asked.value._replace(passes=asked.passes)._asdict()
        ledger.append(EXAMPLES, [line])
        done[line["cause"], line["id"]] = line
    return [Example(**done[each]) for each in chosen]


def ask_example(test: CausalTest, study: Study, answer: ParsedAnswer) -> Task[Example]:
    """Ask a changed question again, and return the example."""
    sample, own = answer.sample, build_chat(answer.sample)
    images = [str(path) for path in sample.images]
    example = Example(test.name, sample.id, sample.question, images, sample.answer or "", answer.text.strip())
    readings = yield from read_kinds(answer, {"own": None})
    chat = yield from test.show(Case(study, answer, readings))
    if chat is None:
        return example
    (ids,) = yield from say([Say(chat, study.max_new_tokens)])
    then = drop_thoughts(study.model.tokenizer.decode(ids, skip_special_tokens=True)).strip()
    return example._replace(changed=describe_change(own, chat), then=then)


def describe_change(own: Chat, other: Chat) -> str:
    """Return in words how a chat differs from another one.

    Example:
        >>> turns = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in ("Red?", "Red? Yes.")]
        >>> describe_change(Chat(turns[0], [], "a"), Chat(turns[1], [], "a"))
        'User: Red? Yes.'
    """
    words = []
    pixels = [[image.tobytes() for image in chat.images] for chat in (own, other)]
    if not other.images and own.images:
        words.append("Without images")
    elif sorted(pixels[0]) == sorted(pixels[1]) and pixels[0] != pixels[1]:
        words.append("Images in another order")
    elif pixels[0] != pixels[1]:
        added = other.images[: len(other.images) - len(own.images)]
        changed = [place for place, (a, b) in enumerate(zip(*pixels, strict=False), 1) if a != b]
        if added:
            words.append("After another image")
        elif all(_is_plain(image) for image in other.images):
            words.append("Grey images")
        elif len(changed) == len(own.images):
            words.append("Other images" if len(own.images) > 1 else "Another image")
        else:
            words.append(f"Another image {', '.join(map(str, changed))}")
    turns = [
        [f"{'Model' if message['role'] == 'assistant' else 'User'}: {_read_text(message)}"
         for message in chat.messages if message["role"] != "system"]
        for chat in (own, other)
    ]  # fmt: skip
    if turns[0] != turns[1]:
        words += turns[1]
    return "\n".join(words)


def _is_plain(image: Image.Image) -> bool:
    low, high = zip(*image.convert("RGB").getextrema(), strict=True)
    return low == high


def _read_text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    parts: Iterable[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return " ".join(str(part["text"]) for part in parts if part.get("type") == "text").strip()
