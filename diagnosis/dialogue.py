"""Earlier turns: what they say, and the form of the tests that claim or show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.choices import Choice, find_exchanged
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Study
from mmprobe.diagnosis.suggestions import Followed, SuggestionTest, follow
from mmprobe.errors import InputError
from mmprobe.models.prompt import Chat, Message

ONE_WORD, SENTENCE = FORMS = ("one word", "a whole answer")  # of what an earlier turn says, in turn


@dataclass(frozen=True)
class TurnTest(SuggestionTest):
    """A test that suggests an answer in an earlier turn. A model whose chat template has no earlier turns is not tested."""

    def follow_turn(
        self,
        study: Study,
        answer: ParsedAnswer,
        choice: Choice,
        wording: str,
        build: Callable[[str], Chat],
        about: ParsedAnswer,
    ) -> Task[Followed | None]:
        """Return whether an answer follows an earlier turn.

        Args:
            wording: where no answer has the other reading, the turn says one word.
            build: returns the chat in which the earlier turn says a text.
            about: an answer to the question of the earlier turn.
        """
        wholes = None
        if wording.startswith(SENTENCE):
            wholes = find_sentences(about.sample.question, choice.words, (about, *study.answers))
        said = {word: state(word) for word in choice.words} if wholes is None else wholes
        try:
            followed, passes = yield from follow(answer, choice, lambda word: build(said[word]))
        except InputError:  # its template takes no earlier turns
            return None
        name = wording.replace(SENTENCE, ONE_WORD) if wholes is None else wording
        return Followed(wording=name, followed=followed, own=False, passes=passes)


def say_text(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def state(word: str) -> str:
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


def has_own_turn(answer: ParsedAnswer) -> bool:
    """Return whether an answer is of a conversation in which the model answered before."""
    return any(turn.role == "assistant" for turn in answer.sample.messages)
