"""Places exchanged: does an answer change when its images, or the options in its question, change places?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmprobe.benchmarks.answers.options import read_choice, split_options
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.causal_test import CauseScore
from mmprobe.diagnosis.choices import Choice
from mmprobe.diagnosis.effects import AnswerRecord, MeasuredPart, is_surer
from mmprobe.diagnosis.images import ALIKE, IMAGE_NAMES, find_names
from mmprobe.diagnosis.schedule import AnswerReading, Read, Task, read
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.suggestions import NEEDS_CLOSED, Followed, SuggestionTest, list_suggestions
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.samples import Sample

ADDED = (  # wordings that add options to a question
    "{question} Answer with {first} or {last}.",
    "{question} {First} or {last}?",
    "{question} Options: {first}, {last}.",
    "{question} (1) {first} (2) {last}",
)
_PAIRS = (("first", "second"), ("first", "last"), ("one", "two"), ("1", "2"), ("a", "b"), ("left", "right"))
_DIRECTED = re.compile(
    r"\b(?:before|after\w*|chang\w+|mov\w+|remov\w+|add\w*|(?:dis)?appear\w*|missing|new|now|then|earlier|later|next|"
    r"previous\w*|becom\w+|became|order\w*|sequence\w*|happen\w*|begin\w*|end\w*|turn\w*|left|right)\b",
    re.IGNORECASE,
)


class Places(MeasuredPart):
    """Whether an answer changes with places.

    Attributes:
        kind: of what changes places, `options` or `images`.
        moved: whether the answer is that by the place, and not that by the content.
    """

    kind: str
    moved: bool


class OrderRecord(MeasuredPart):
    """What an answer does when places are exchanged, and whether it goes by the place of options that were added to its question."""

    places: Places | None = None
    options: Followed | None = None


class _Exchange(NamedTuple):
    """A question after an exchange of places, and the two words that its answer may begin with.

    Attributes:
        kind: `images` or `options`.
        ids: the answer up to the token at which the words diverge.
        right: id of the token that an answer from the content has there.
        wrong: id of the one that an answer by the place has.
    """

    kind: str
    chat: Chat
    ids: list[int]
    right: int
    wrong: int


@dataclass(frozen=True)
class Order(SuggestionTest):
    """Do answers change when images or options change places?

    Two options exchange their texts, and the letter should move with its text. To a closed question without options, its two answers are
    added as options (*Answer with yes or no.*), in {added} wordings that take turns, each in both orders. An answer goes by the place if it
    says what stands first both times, or what stands last. Where hints or earlier turns are followed as often, an option is followed
    because it is suggested.

    Closed questions about several images get their images in the reverse order, and the names of images in the question follow (*the
    first picture* becomes *the second picture*). Left out are questions about a direction, such as *what changed*, and answers that
    images of the same content change, too.

    If a share *e* of the answers to other questions is false, a share 2*e*(1 - *e*) would change by independent errors. But errors often
    are the same in both orders, and development models without the cause change fewer. So the low end of the interval must be above
    *e*(1 - *e*).
    """

    name = "order"
    about = "the answers change when images or options change places"
    effect = "answers that change when what should not matter changes places"
    needs = f"questions with options, or {NEEDS_CLOSED}"
    wordings = ADDED
    needs_sight = False
    threshold: float = 0.3  # development models without it score 8 % at most, with it 42 % or more

    def ask(self, case: Case) -> Task[OrderRecord]:
        places = yield from measure_places(case)
        answer, choice, options = case.answer, case.choice, None
        if choice is not None and not split_options(answer.sample.question).choices:
            options = yield from self.suggest(case.study, answer, choice, self.choose_wording(case))
        return OrderRecord(places=places, options=options)

    def suggest(self, study: Study, answer: ParsedAnswer, choice: Choice, wording: str) -> Task[Followed]:
        """Return whether an answer is the option in one place, whichever of its two words stands there."""
        ids = answer.ids[: choice.step + 1]
        chats = [add_options(answer, words, wording) for words in (choice.words, choice.words[::-1])]
        readings = yield from read([Read(chat, ids) for chat in chats])
        said = [int(reading.last.argmax()) for reading in readings]
        moved = set(said) == set(choice.tokens)
        return Followed(wording=wording, followed=moved, passes=2)

    def tried(self, record: AnswerRecord) -> list[Followed]:
        options = record.of(OrderRecord).options
        return [] if options is None else [options]

    def score(self, table: Table) -> CauseScore:
        """Return the share of answers that change with places, of the kind of places with which they change most surely.

        A model that errs in a share e of its other answers changes 2e(1 - e) of its answers for no reason, if it errs anew each
        time. But the images and the question are the same in both orders, so errors often are, too: development models without the
        cause change fewer (docs/diagnosis-results.md). So the low end of the interval must be above e(1 - e).
        """
        kinds: dict[str, Scores] = {}
        for number, record in enumerate(table.of(OrderRecord)):
            if (places := record.places) is not None:
                scores = kinds.setdefault(places.kind, [None] * len(table.records))
                scores[number] = float(places.moved)
        effects = {kind: table.mean(self.effect, scores) for kind, scores in kinds.items()}
        most = max(effects, key=lambda kind: (effects[kind].low, effects[kind].value), default="")
        added = self.score_options(table)
        named = self.decide(added.effect, table.limits) and not added.hindrance
        if added.effect.n and (not most or (named and is_surer(added.effect, effects[most]))):
            return added._replace(which="places of added options")
        if not most:
            return self.missing(table)
        answers: Scores = [
            next((scores[number] for scores in kinds.values() if scores[number] is not None), None)
            for number in range(len(table.records))
        ]
        silent, hindrance = np.array([score is None for score in answers], bool), ""
        enough = silent.sum() >= table.limits.least_answers
        others = table.share_false(silent if enough else np.ones_like(silent))
        if others is not None and effects[most].low <= (by_error := others.value * (1 - others.value)):
            hindrance = f"{100 * others.value:.0f} % of the {'other ' if enough else ''}answers are false, so {100 * by_error:.0f} % may change by error alone"
        detail = f"added options are followed by their place in {100 * added.effect.value:.0f} %, but {added.hindrance}"
        return CauseScore(
            effects[most],
            answers,
            detail=detail if added.hindrance else "",
            hindrance=hindrance,
            which=f"places of the {most}",
        )

    def score_options(self, table: Table) -> CauseScore:
        """Return the share of answers that are the option in one place, where options were added to their questions.

        Where hints or earlier turns are followed as often or more often, an option is followed because it is suggested.
        """
        score = self.score_following(table)
        if not self.decide(score.effect, table.limits):
            return score
        for other in list_suggestions(table):
            effect, reached = other.reaches(table)
            if reached and effect.value >= score.effect.value:
                return score._replace(
                    hindrance=f"{other.name} explains it: {100 * effect.value:.0f} % of the answers follow these"
                )
        return score

    def describe(self, record: AnswerRecord) -> list[str]:
        places = record.of(OrderRecord).places
        if places is None:
            return []
        return [f"{'changes' if places.moved else 'does not change'} when {places.kind} change places"]


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


def _exchange_images(answer: ParsedAnswer, choice: Choice) -> _Exchange | None:
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
    return _Exchange("images", chat, answer.ids[: choice.step + 1], right, wrong)


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


def _exchange_options(model: Model, answer: ParsedAnswer) -> _Exchange | None:
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
    return _Exchange("options", build_chat(sample), answer.ids[: step + 1], token, answer.ids[step])


def _replace_letter(model: Model, answer: ParsedAnswer, step: int, letter: str, other: str) -> int | None:
    """Return the token of another letter in the place of an answer's own; None if it is not one token."""
    names = [model.tokenizer.convert_ids_to_tokens(answer.ids[step]), answer.tokens[step]]
    for name in names:
        token = model.tokenizer.convert_tokens_to_ids(str(name).replace(letter, other))
        if token is not None and token != model.tokenizer.unk_token_id and token != answer.ids[step]:
            return int(token)
    return None


def measure_places(case: Case) -> Task[Places | None]:
    """Return whether an answer changes when what should not matter changes places.

    Two options exchange their texts; without options, the images of a closed question come in the reverse order. None where
    neither applies, and for an answer that even images of the same content change: that it changes says nothing of places.
    """
    answer, choice = case.answer, case.choice
    found = _exchange_options(case.study.model, answer)
    if found is None and choice is not None and not split_options(answer.sample.question).choices:
        found = _exchange_images(answer, choice)
    if found is None or not _is_steady(case.readings, len(found.ids) - 1):
        return None
    (reading,) = yield from read([Read(found.chat, found.ids)])
    return Places(kind=found.kind, moved=bool(reading.last[found.wrong] > reading.last[found.right]))


def add_options(answer: ParsedAnswer, words: Sequence[str], wording: str) -> Chat:
    """Return a chat with two words as options after its question, in their order."""
    first, last = words
    sample = answer.sample
    question = wording.format(
        question=sample.question, first=first, last=last, First=first[:1].upper() + first[1:]
    )
    return build_chat(sample.model_copy(update={"question": question}))


def _is_steady(readings: Mapping[str, AnswerReading], step: int) -> bool:
    """Return whether the model says a token, also with images of the same content."""
    return all(readings[kind].margins[step] > 0 for kind in ("own", ALIKE) if kind in readings)
