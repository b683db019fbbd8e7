"""Earlier turns: does the answer follow one that is claimed to have been given before, or that of an example?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.hints import Choice, find_followed
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, Message, build_chat

AGAIN = ("Are you sure? {question}", "{question}")  # what is asked after the claimed answer, in turn
EXAMPLES = 2  # one of so many closed answers is read with an example, which doubles the images
MANY = 40  # answers, from which on a closed one gets either an example or a claim, and not both


def _say(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _state(word: str) -> str:
    """Return an answer as a sentence: `no` is `No.`"""
    text = word[:1].upper() + word[1:]
    return text if text[-1:] in ".!?" else f"{text}."


def claim_answer(answer: ParsedAnswer, word: str, number: int) -> Chat:
    """Return a chat in which the model has answered already, and is asked again."""
    chat = build_chat(answer.sample)
    again = AGAIN[number % len(AGAIN)].format(question=answer.sample.question)
    return chat._replace(messages=[*chat.messages, _say("assistant", _state(word)), _say("user", again)])


def show_example(answer: ParsedAnswer, other: ParsedAnswer | None, word: str) -> Chat | None:
    """Return a chat with an earlier turn that has another answer: the last one of a conversation, else an example.

    Args:
        other: an answer about other images, whose question is the example; None if there is none.
    """
    chat = build_chat(answer.sample)
    earlier = [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if earlier:
        messages = list(chat.messages)
        messages[earlier[-1]] = {**messages[earlier[-1]], **_say("assistant", _state(word))}
        return chat._replace(messages=messages)
    if other is None:
        return None
    example = build_chat(other.sample)
    system = [message for message in chat.messages if message["role"] == "system"]
    turns = [[each for each in part.messages if each["role"] != "system"] for part in (example, chat)]
    return chat._replace(
        messages=[*system, *turns[0], _say("assistant", _state(word)), *turns[1]],
        images=[*example.images, *chat.images],
    )


def measure_turns(
    model: Model,
    answers: Sequence[ParsedAnswer],
    choices: Sequence[Choice | None],
    others: Sequence[ParsedAnswer | None],
    numbers: Sequence[int],
    either: bool = False,
) -> list[dict[str, Any]]:
    """Return for each closed answer whether it is the one that an earlier turn has, whichever that is.

    One to two forward passes for each of `claimed` (the model's own answer is claimed to have been another) and `copied`
    (another turn or an example has it). A model whose chat template has no earlier turns is not tested.

    - followed: whether both answers were given as in the earlier turn
    - own: whether the earlier turn is one of the conversation, and not added; passes: the number of forward passes

    Args:
        others: answers to other samples, for the examples.
        numbers: of the answers; they choose the wordings, and which answers get an example.
        either: whether an answer with an added example is not tested for `claimed`, which saves passes where there are many.
    """
    results: list[dict[str, Any]] = [{} for _ in answers]
    rows = [row for row, choice in enumerate(choices) if choice is not None]
    shown = [
        row
        for row in rows
        if (others[row] is not None and numbers[row] % EXAMPLES == 0)
        or any(turn.role == "assistant" for turn in answers[row].sample.messages)
    ]
    own_turn = {
        row for row in shown if any(turn.role == "assistant" for turn in answers[row].sample.messages)
    }
    asked = [row for row in rows if not either or row not in shown or row in own_turn]
    for kind, chosen in (("claimed", asked), ("copied", shown)):
        for n_images in sorted({len(answers[row].sample.images) for row in chosen}):
            same = [row for row in chosen if len(answers[row].sample.images) == n_images]
            closed = [(answers[row], choice) for row in same if (choice := choices[row]) is not None]

            def build(place: int, word: str, kind: str = kind, same: list[int] = same) -> Chat:
                row = same[place]
                if kind == "claimed":
                    return claim_answer(answers[row], word, numbers[row] // EXAMPLES)
                chat = show_example(answers[row], others[row], word)
                assert chat is not None
                return chat

            try:
                found = find_followed(model, closed, build)
            except InputError:  # its template takes no earlier turns
                continue
            for row, (followed, passes) in zip(same, found, strict=True):
                own = kind == "copied" and row in own_turn
                results[row][kind] = {"followed": followed, "own": own, "passes": passes}
    return results
