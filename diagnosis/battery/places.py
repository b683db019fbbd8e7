"""Places exchanged: does an answer change when its images, or the options in its question, change places?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.options import read_choice, split_options
from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.hints import TAKE_TURNS, Choice, ask_questions, gets_options
from mmprobe.diagnosis.battery.images import ALIKE, IMAGE_NAMES, find_names
from mmprobe.diagnosis.battery.reading import AnswerReading, read_answers
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.samples import Sample

OPTIONS = "options"  # in records, the options that were added to a closed question
_FIRST, _LAST = "the first, of: ", "the last, of: "
ADDED = [  # wordings that add options to a question, with the place of the one that is followed
    f"{place}{words}"
    for words in (
        "{question} Answer with {first} or {last}.",
        "{question} {First} or {last}?",
        "{question} Options: {first}, {last}.",
        "{question} Is it {first} or {last}?",
        "{question} (1) {first} (2) {last}",
        "{question} Choose one: {first} / {last}.",
    )
    for place in (_FIRST, _LAST)
]
_PAIRS = (("first", "second"), ("first", "last"), ("one", "two"), ("1", "2"), ("a", "b"), ("left", "right"))
_DIRECTED = re.compile(
    r"\b(?:before|after\w*|chang\w+|mov\w+|remov\w+|add\w*|(?:dis)?appear\w*|missing|new|now|then|earlier|later|next|"
    r"previous\w*|becom\w+|became|order\w*|sequence\w*|happen\w*|begin\w*|end\w*|turn\w*|left|right)\b",
    re.IGNORECASE,
)


class _Exchange(NamedTuple):
    """An answer after an exchange of places, and the two words that it may begin with.

    Attributes:
        row: of the answer in its batch.
        kind: `images` or `options`.
        ids: the answer up to the token at which the words diverge.
        right: id of the token that an answer from the content has there.
        wrong: id of the one that an answer by the place has.
    """

    row: int
    kind: str
    chat: Chat
    ids: list[int]
    right: int
    wrong: int


def exchange_names(text: str) -> str | None:
    """Return a text that names each of two images where it named the other one; None if it names a third.

    Example:
        >>> exchange_names("Is Picture one darker than the second image?")
        'Is Picture two darker than the first image?'
    """
    other = {word: pair[1 - place] for pair in reversed(_PAIRS) for place, word in enumerate(pair)}
    if any(name not in other for name in find_names(text)):
        return None

    def exchange(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        word = other[name.lower()]
        spelled = word.upper() if len(name) == 1 else word.capitalize() if name[0].isupper() else word
        return match[0].replace(name, spelled)

    return IMAGE_NAMES.sub(exchange, text)


def _exchange_images(answer: ParsedAnswer, choice: Choice, row: int) -> _Exchange | None:
    """Return a closed question with its images in the reverse order; None where the true answer may be another one.

    So it is where the question is about a direction, such as what changed. Where it names images, or the answers do, the names
    are exchanged, too.
    """
    sample = answer.sample
    if len(sample.images) < 2 or _DIRECTED.search(IMAGE_NAMES.sub("", sample.question)):
        return None
    question = exchange_names(sample.question)
    named = bool(find_names(sample.question))
    words = tuple(word.lower() for word in choice.words)
    names_image = any(set(words) == {f"{before}{word}" for word in pair}
                      for pair in _PAIRS for before in ("", "the ", "image ", "picture "))  # fmt: skip
    if question is None or ((named or names_image) and len(sample.images) > 2):
        return None
    try:
        other = sample.model_copy(update={"images": sample.images[::-1], "question": question})
    except InputError:  # a conversation whose last turn cannot be rewritten
        return None
    chat = build_chat(other)
    if all(a.tobytes() == b.tobytes() for a, b in zip(chat.images, reversed(chat.images), strict=True)):
        return None
    right, wrong = choice.tokens[::-1] if names_image else choice.tokens
    return _Exchange(row, "images", chat, answer.ids[: choice.step + 1], right, wrong)


def exchange_options(question: str, letter: str) -> tuple[str, str] | None:
    """Return a question in which the text of an option has changed places with another one, and the other letter.

    None without options, or where a text cannot be found.

    Example:
        >>> exchange_options("What is it? A. a cat B. a dog", "A")
        ('What is it? A. a dog B. a cat', 'B')
    """
    choices = split_options(question).choices
    if letter not in choices or not all(choices.values()):
        return None
    letters, spans, end = list(choices), {}, len(question)
    for name in reversed(letters):
        start = question.rfind(choices[name], 0, end)
        if start < 0:
            return None
        spans[name], end = (start, start + len(choices[name])), start
    other = letters[(letters.index(letter) + 1) % len(letters)]
    if choices[letter] == choices[other]:
        return None
    (a, b), (c, d) = sorted((spans[letter], spans[other]))
    return question[:a] + question[c:d] + question[b:c] + question[a:b] + question[d:], other


def _exchange_options(model: Model, answer: ParsedAnswer, row: int) -> _Exchange | None:
    """Return a question with two options in each other's places, for an answer that names one by its letter."""
    choices = split_options(answer.sample.question).choices
    letter = read_choice(answer.text, choices)[0] if choices else None
    if letter is None:
        return None
    step = next((n for n, token in enumerate(answer.tokens) if token.strip(" ().:*") == letter), None)
    exchanged = exchange_options(answer.sample.question, letter)
    if step is None or exchanged is None:
        return None
    question, other = exchanged
    token = _replace_letter(model, answer, step, letter, other)
    if token is None:
        return None
    try:
        sample: Sample = answer.sample.model_copy(update={"question": question})
    except InputError:
        return None
    return _Exchange(row, "options", build_chat(sample), answer.ids[: step + 1], token, answer.ids[step])


def _replace_letter(model: Model, answer: ParsedAnswer, step: int, letter: str, other: str) -> int | None:
    """Return the token of another letter in the place of an answer's own; None if it is not one token."""
    names = [model.tokenizer.convert_ids_to_tokens(answer.ids[step]), answer.tokens[step]]
    for name in names:
        token = model.tokenizer.convert_tokens_to_ids(str(name).replace(letter, other))
        if token is not None and token != model.tokenizer.unk_token_id and token != answer.ids[step]:
            return int(token)
    return None


def measure_places(
    model: Model,
    answers: Sequence[ParsedAnswer],
    readings: Sequence[dict[str, AnswerReading]],
    choices: Sequence[Choice | None],
) -> list[dict[str, Any] | None]:
    """Return whether each answer changes when what should not matter changes places, in one forward pass.

    Two options exchange their texts; without options, the images of a closed question come in the reverse order. None where
    neither applies, and for an answer that even images of the same content change: that it changes says nothing of places.

    - kind: `options` or `images`; moved: whether the answer is that by the place, and not that by the content
    """
    exchanges = []
    for row, (answer, choice) in enumerate(zip(answers, choices, strict=True)):
        found = _exchange_options(model, answer, row)
        if found is None and choice is not None and not split_options(answer.sample.question).choices:
            found = _exchange_images(answer, choice, row)
        if found is not None and _is_steady(readings[row], len(found.ids) - 1):
            exchanges.append(found)
    results: list[dict[str, Any] | None] = [None] * len(answers)
    if exchanges:
        read = read_answers(model, [each.chat for each in exchanges], [each.ids for each in exchanges])
        for each, reading in zip(exchanges, read, strict=True):
            moved = bool(reading.last[each.wrong] > reading.last[each.right])
            results[each.row] = {"kind": each.kind, "moved": moved}
    return results


def measure_options(
    model: Model,
    answers: Sequence[ParsedAnswer],
    choices: Sequence[Choice | None],
    numbers: Sequence[int],
) -> list[dict[str, Any] | None]:
    """Return for closed answers whether they are the option in one place, whichever of their two words stands there.

    The two words are added to the question as options. None for an answer that another test has, by its number, and where the
    question has options itself.

    - wording: one of `ADDED`; followed: whether both words were said in this place; passes: the number of forward passes

    Args:
        numbers: of the answers; they choose the wordings, and which answers get options.
    """
    results: list[dict[str, Any] | None] = [None] * len(answers)
    rows = [
        row
        for row, choice in enumerate(choices)
        if choice is not None and gets_options(answers[row], numbers[row])
    ]
    closed = [(answers[row], choice) for row in rows if (choice := choices[row]) is not None]
    wordings = [ADDED[numbers[row] // len(TAKE_TURNS) % len(ADDED)] for row in rows]
    for row, found in zip(rows, add_options(model, closed, wordings), strict=True):
        results[row] = found
    return results


def add_options(
    model: Model, closed: Sequence[tuple[ParsedAnswer, Choice]], wordings: Sequence[str]
) -> list[dict[str, Any]]:
    """Return whether closed answers are the option in one place, as `measure_options` does.

    Args:
        closed: answers with their choices, all with equally many images.
        wordings: of each, one of `ADDED`.
    """

    questions = []
    for (answer, choice), wording in zip(closed, wordings, strict=True):
        words, orders = wording.removeprefix(_FIRST).removeprefix(_LAST), (choice.words, choice.words[::-1])
        said = {first if wording.startswith(_FIRST) else last: (first, last) for first, last in orders}
        questions.append(
            {
                word: words.format(
                    question=answer.sample.question,
                    first=first,
                    last=last,
                    First=first[:1].upper() + first[1:],
                )
                for word, (first, last) in said.items()
            }
        )
    found = ask_questions(model, closed, questions)
    return [{"wording": wording, **each} for wording, each in zip(wordings, found, strict=True)]


def _is_steady(readings: dict[str, AnswerReading], step: int) -> bool:
    """Return whether the model says a token, also with images of the same content."""
    return all(readings[kind].margins[step] > 0 for kind in ("own", ALIKE) if kind in readings)
