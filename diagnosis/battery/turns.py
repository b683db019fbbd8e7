"""Earlier turns: does the answer follow one that is claimed to have been given before, or that of an example?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.hints import (
    EXAMPLE,
    TAKE_TURNS,
    Choice,
    find_exchanged,
    find_followed,
    gets_options,
    suggest,
)
from mmprobe.diagnosis.effects import IN_QUESTION
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, Message, build_chat
from mmprobe.samples import Sample

AGAIN = (  # what is asked after a claimed answer
    "{question}",
    "Are you sure? {question}",
    "Look again. {question}",
    "What do you say now? {question}",
    "Please check your answer. {question}",
    "Once more: {question}",
)
QUESTIONS = (  # claims without an earlier turn
    "You answered {answer} before. {question}",
    "{question} Earlier you said {answer}.",
    "Your previous answer was {Answer}. {question}",
)

CLAIMED = "claimed"  # an earlier answer to the same question
COPIED = "copied"  # the answer of another turn or an example
ONE_WORD, SENTENCE = FORMS = ("one word", "a whole answer")  # of what an earlier turn says, in turn
_THEN = ", then: "
CLAIMS = [f"{form}{_THEN}{again}" for again in AGAIN for form in FORMS]  # all wordings of a claim
CLAIMS += [f"{IN_QUESTION}{_THEN}{words}" for words in QUESTIONS]
_SAME = ", to the same question"
COPIES = [f"{form}{same}" for same in ("", _SAME) for form in FORMS]  # all wordings of an example


def _say(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _state(word: str) -> str:
    """Return an answer as a sentence: `no` is `No.`"""
    text = word[:1].upper() + word[1:]
    return text if text[-1:] in ".!?" else f"{text}."


def find_sentences(
    question: str, words: Iterable[str], answers: Iterable[ParsedAnswer]
) -> dict[str, str] | None:
    """Return for each word a whole answer to a question that reads so, in the model's own form; None if one has none.

    Answers to a question that differs in one word are taken, too, with the question's own word in its place.

    Args:
        answers: those that come first are preferred.

    Example:
        >>> from mmprobe.samples import Sample
        >>> said = {"star": "No, there is no star.", "ring": "Yes, the ring is at C4."}
        >>> answers = [ParsedAnswer(Sample(id="a", question=f"Is there a {name}?"), [], text, []) for name, text in said.items()]
        >>> find_sentences("Is there a star?", ("yes", "no"), answers)
        {'no': 'No, there is no star.', 'yes': 'Yes, the star is at C4.'}
    """
    found: dict[str, str] = {}
    wanted = list(words)
    for answer in answers:
        exchanged = find_exchanged(answer.sample.question, question)
        read = [word for word in wanted if word not in found and _reads(answer.text, word)]
        if exchanged is not None and read:
            there, here = exchanged
            text = answer.text.strip()
            found[read[0]] = re.sub(rf"\b{there}\b", here, text) if there else text
        if len(found) == len(wanted):
            return found
    return None


def _reads(text: str, word: str) -> bool:
    """Return whether an answer says a word of a choice: it begins with yes or no, holds the word, or is the whole answer."""
    if word in ("yes", "no"):
        return first_word(text) == word
    bare = text.strip(" .,;:!?\n")
    return word in re.findall(r"\w+", text) or bare[:1].lower() + bare[1:] == word


def choose_wording(kind: str, number: int) -> str:
    """Return the wording that an answer gets: the form of the earlier turn's answer, and for a claim how the model is asked.

    Args:
        kind: `claimed` or `copied`.
        number: of the answer.

    Example:
        >>> choose_wording("copied", 3), choose_wording("claimed", 7)
        ('a whole answer', 'one word, then: Are you sure? {question}')
    """
    wordings = CLAIMS if kind == CLAIMED else COPIES
    return wordings[number // len(TAKE_TURNS) % len(wordings)]


def claim_answer(answer: ParsedAnswer, said: str, again: str) -> Chat:
    """Return a chat in which the model has answered already, and is asked again.

    Args:
        said: what it answered.
        again: how it is asked again, one of `AGAIN`.
    """
    chat = build_chat(answer.sample)
    asked = again.format(question=answer.sample.question)
    return chat._replace(messages=[*chat.messages, _say("assistant", said), _say("user", asked)])


def show_example(answer: ParsedAnswer, other: Sample | None, said: str) -> Chat | None:
    """Return a chat with an earlier turn that has another answer: the last one of a conversation, else an example.

    Args:
        other: a question about other images, which is the example; None if there is none.
        said: what the earlier turn answers.
    """
    chat = build_chat(answer.sample)
    earlier = [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if earlier:
        messages = list(chat.messages)
        messages[earlier[-1]] = {**messages[earlier[-1]], **_say("assistant", said)}
        return chat._replace(messages=messages)
    if other is None:
        return None
    example = build_chat(other)
    system = [message for message in chat.messages if message["role"] == "system"]
    turns = [[each for each in part.messages if each["role"] != "system"] for part in (example, chat)]
    return chat._replace(
        messages=[*system, *turns[0], _say("assistant", said), *turns[1]],
        images=[*example.images, *chat.images],
    )


def measure_turns(
    model: Model,
    answers: Sequence[ParsedAnswer],
    choices: Sequence[Choice | None],
    others: Sequence[ParsedAnswer | None],
    numbers: Sequence[int],
    given: Sequence[ParsedAnswer] = (),
    either: bool = False,
) -> list[dict[str, Any]]:
    """Return for each closed answer whether it is the one that an earlier turn has, whichever that is.

    One to two forward passes for each of `claimed` (the model's own answer is claimed to have been another) and `copied`
    (another turn or an example has it). A model whose chat template has no earlier turns is not tested.

    - wording: the form of the earlier turn's answer, one of `FORMS`: one word such as `No.`, or a whole answer of the model's
      own to such a question; of a claim also how the model is asked again, one of `AGAIN`. Some claims have no earlier turn, and
      the question makes them (`QUESTIONS`). An example is another question or the same one, about other images. Wordings take
      turns; where no answer has the other reading, it is one word.
    - followed: whether both answers were given as in the earlier turn
    - own: whether the earlier turn is one of the conversation, and not added; passes: the number of forward passes

    Args:
        others: answers to other samples, for the examples.
        numbers: of the answers; they choose the wordings, and which answers get an example.
        given: all answers of the model, for whole earlier ones.
        either: whether an answer gets one of an example, a claim and options, which saves passes where there are many.
    """
    results: list[dict[str, Any]] = [{} for _ in answers]
    rows = [row for row, choice in enumerate(choices) if choice is not None]
    shown = [
        row
        for row in rows
        if _has_own_turn(answers[row])
        or (others[row] is not None and numbers[row] % len(TAKE_TURNS) == EXAMPLE)
    ]
    asked = [
        row
        for row in rows
        if not either
        or _has_own_turn(answers[row])
        or (row not in shown and not gets_options(answers[row], numbers[row]))
    ]
    for kind, chosen in ((CLAIMED, asked), (COPIED, shown)):
        for n_images in sorted({len(answers[row].sample.images) for row in chosen}):
            same = [row for row in chosen if len(answers[row].sample.images) == n_images]
            closed = [(answers[row], choice) for row in same if (choice := choices[row]) is not None]
            wordings = [choose_wording(kind, numbers[row]) for row in same]
            found = ask_turns(model, kind, closed, [others[row] for row in same], wordings, given)
            for row, each in zip(same, found, strict=True):
                if each is not None:
                    results[row][kind] = each
    return results


def ask_turns(
    model: Model,
    kind: str,
    closed: Sequence[tuple[ParsedAnswer, Choice]],
    others: Sequence[ParsedAnswer | None],
    wordings: Sequence[str],
    given: Sequence[ParsedAnswer],
) -> list[dict[str, Any] | None]:
    """Return whether closed answers follow an earlier turn, as `measure_turns` does; None where the template has no such turn.

    Args:
        kind: `claimed` or `copied`.
        closed: answers with their choices, all with equally many images.
        others: of each, as in `measure_turns`.
        wordings: of each, as from `choose_wording`.
    """
    parts = [re.fullmatch(rf"(.*?)({_SAME})?({_THEN}(.*))?", wording).groups("") for wording in wordings]  # type: ignore[union-attr]
    own = [kind == COPIED and _has_own_turn(answer) for answer, _ in closed]
    # A conversation keeps its own question, whose texts need not follow another one.
    same = [
        bool(words) and other is not None and not other.sample.messages
        for other, (_, words, *_) in zip(others, parts, strict=True)
    ]
    said: list[dict[str, str] | None] = []
    for (answer, choice), other, is_own, is_same, (form, *_) in zip(
        closed, others, own, same, parts, strict=True
    ):
        about = other if kind == COPIED and other is not None and not is_own and not is_same else answer
        whole = form == SENTENCE
        said.append(find_sentences(about.sample.question, choice.words, (about, *given)) if whole else None)

    def build(place: int, word: str) -> Chat:
        answer, wholes = closed[place][0], said[place]
        form, _, _, asked = parts[place]
        if form == IN_QUESTION:
            question = suggest(answer.sample.question, word, asked)
            return build_chat(answer.sample.model_copy(update={"question": question}))
        text = _state(word) if wholes is None else wholes[word]
        if kind == CLAIMED:
            return claim_answer(answer, text, asked)
        other = others[place]
        example = None if other is None else other.sample
        if example is not None and same[place]:
            example = example.model_copy(update={"question": answer.sample.question})
        chat = show_example(answer, example, text)
        assert chat is not None
        return chat

    try:
        found = find_followed(model, closed, build)
    except InputError:  # its template takes no earlier turns
        return [None] * len(closed)
    return [
        {
            "wording": wording.replace(SENTENCE, ONE_WORD) if wholes is None else wording,
            "followed": followed,
            "own": is_own,
            "passes": passes,
        }
        for wording, wholes, is_own, (followed, passes) in zip(wordings, said, own, found, strict=True)
    ]


def _has_own_turn(answer: ParsedAnswer) -> bool:
    return any(turn.role == "assistant" for turn in answer.sample.messages)
