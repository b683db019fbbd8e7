"""Find the options in the text of a question, and the option that a response chooses."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from mmprobe.benchmarks.answers.assertions import choose, find_words, stems
from mmprobe.benchmarks.answers.forms import clean, decide
from mmprobe.benchmarks.answers.numbers import parse_quantity, read_quantity, same_quantity, write_digits
from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.benchmarks.answers.texts import normalize_words, same_text
from mmprobe.benchmarks.answers.words import corrected, is_open
from mmprobe.benchmarks.answers.yes_no import read_yes_no

_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_ANY_ROMAN = "|".join(sorted(_ROMAN, key=len, reverse=True))
# Kinds of marks, from the surest on. Each has the options' names in order, and its marks in a text.
_KINDS: tuple[tuple[Sequence[str], re.Pattern[str]], ...] = tuple(
    (names, re.compile(rf"(?:(?<=\s)|(?<=^)|(?<=[;,]))(?:{marks})\s*", re.MULTILINE))
    for names, marks in (
        ("ABCDEFGHIJ", r"\(([A-J])\)|\[([A-J])\]|([A-J])\s?[.):]"),
        ("abcdefghij", r"\(([a-j])\)|\[([a-j])\]|([a-j])\)|([a-j])[.:](?=\s)"),
        ("\u2460\u2461\u2462\u2463\u2464\u2465\u2466\u2467\u2468", r"([\u2460-\u2468])[.):]?"),
        ("123456789", r"\(([1-9])\)|\[([1-9])\]|([1-9])\)"),
        (_ROMAN, rf"\(({_ANY_ROMAN})\)|\[({_ANY_ROMAN})\]|({_ANY_ROMAN})[.)](?=\s)"),
        (
            tuple(name.upper() for name in _ROMAN),
            rf"\(({_ANY_ROMAN.upper()})\)|\[({_ANY_ROMAN.upper()})\]|({_ANY_ROMAN.upper()})[.)](?=\s)",
        ),
        ("ABCDEFGHIJ", r"(?<=\n)([A-J])(?=[ \t])"),
        ("123456789", r"([1-9])\.(?=\s)"),
    )
)
# Marks as Markdown, TeX and other languages print them, which become `(A)`.
_PRINTED = re.compile(
    r"[\uff08\u3010]\s?([A-Ja-j])\s?[\uff09\u3011]|(?:\*\*|__)\s*\(?([A-Ja-j])\)?[.:)]?\s*(?:\*\*|__)[.:)]?"
    r"|\\text\w*\{\s*\(?([A-Ja-j])\)?[.:)]?\s*\}[.:)]?|(?:^|(?<=\s))(?:<([A-Ja-j])>|([A-Ja-j])[\u3001\uff0e\uff1a])"
    r"|^[ \t]*(?:[Oo]ption|[Cc]hoice)\s+([A-Ja-j])\s*[:.)-]|^[ \t]*([A-Ja-j])\s+[-\u2013\u2014](?=\s)"
    r"|(?<![\w\\])\{([A-J])\}(?=\s)|\$\(?([A-J])\)?\$[.:)]?(?=\s)",
    re.MULTILINE,
)
# A list or a dict, as Python and JSON print them, of texts.
_LITERAL = re.compile(r"[\[{]\s*['\"][^\[\]{}]{1,2000}['\"]\s*[\]}]")
_BULLETS = re.compile(r"(?:^[ \t]*(?:[-*+\u2022]|\\item)[ \t]+\S.*(?:\n|\Z)){2,}", re.MULTILINE)
_LIST_MARK = re.compile(
    r"^[ \t]*[-*+\u2022][ \t]+(?=\W{0,9}(?:(?:option|choice|text\w*)\W*)?[(\[<\uff08]?[A-Ja-j][^A-Za-z])",
    re.MULTILINE | re.IGNORECASE,
)
_LISTS = _KINDS[-1][1]  # `1. 2. 3.` also numbers the steps of a task; then a question follows
_HEADING = re.compile(r"[\s,;]*\b(?:answer\s+)?(?:choices|options)\b\s*[:.]?\s*$", re.IGNORECASE)
_BLANK = re.compile(r"\s*\(\s*\)\s*[.?]?\s*$|\s*_{2,}\s*[.?]?\s*$")
_INSTRUCTION = re.compile(
    r"\s*(?:please\s+)?\b(?:select|choose|pick|answer with)\b"
    r"(?=[^.?!\n]*\b(?:correct|right|best|following|given|letters?|of the)\b)"
    r"[^.?!\n]*\b(?:options?|choices?|letters?|answers?)\b[^.?!\n]*[.!:]?",
    re.IGNORECASE,
)


class SplitQuestion(NamedTuple):
    """A question without its options, and the text of each option by its bare mark (`A`, `b`, `3`)."""

    question: str
    choices: dict[str, str]


def split_options(question: str, answer: str = "") -> SplitQuestion:
    """Return a question without the options in its text, and these options.

    Options are a run of marks in order: `(A)`, `[A]`, `A.`, `A)` or `A:`, also in bold, after a list mark or `Option`, as
    `A - `, `<A>`, `{A}`, a letter that begins a line, or with full-width signs; a list or dict of texts, as Python prints
    it, and lines after list marks, one of which is the true answer; the same of `a`; `①`; `(1)`,
    `[1]` or `1)`; `(i)`, `[i]`, `i.` or `i)`, also in capitals; `1.`, unless a question follows. The kind that has the
    mark of the true `answer` counts, else the first of this order; of several runs the last counts. A heading
    (`Choices:`), a blank for the mark, and a sentence that asks to choose go with them.

    Example:
        >>> split_options("Find x. Choices: (a) 38, (b) 40; (c) 42")
        SplitQuestion(question='Find x.', choices={'a': '38', 'b': '40', 'c': '42'})
    """
    asked = question
    question = _PRINTED.sub(
        lambda match: f"({next(filter(None, match.groups()))}) ",
        _LIST_MARK.sub("", _write_lists(question, answer)),
    )
    runs = [run for names, pattern in _KINDS if (run := _find_run(question, names, pattern))]
    if not runs:
        return SplitQuestion(asked, {})
    named = [run for run in runs if find_mark(answer, [bare_mark(_name(mark)) for mark in run])]
    marks = (named or runs)[0]
    ends = [mark.start() for mark in marks[1:]]
    paragraph_end = question.find("\n\n", marks[-1].end())
    ends.append(len(question) if paragraph_end < 0 else paragraph_end)
    choices = {
        bare_mark(_name(mark)): question[mark.end() : end].strip(" \t\r\n,;")
        for mark, end in zip(marks, ends, strict=True)
    }
    last = bare_mark(_name(marks[-1]))
    choices[last] = _INSTRUCTION.sub("", choices[last]).strip()
    head = _HEADING.sub("", question[: marks[0].start()].rstrip())
    head = _BLANK.sub("", _INSTRUCTION.sub("", head).strip()).rstrip(" \t\r\n,;")
    tail = _INSTRUCTION.sub("", question[ends[-1] :].strip()).strip()
    return SplitQuestion("\n\n".join(part for part in (head, tail) if part), choices)


def _write_lists(question: str, answer: str) -> str:
    """Return a question in which a list of texts, and a list of lines one of which is the true answer, have letters."""

    def write(texts: Mapping[str, str]) -> str:
        return "\n" + "\n".join(f"({letter}) {text}" for letter, text in texts.items()) + "\n"

    def read(match: re.Match[str]) -> str:
        try:
            given = ast.literal_eval(match.group())  # a literal: nothing is run
        except (ValueError, SyntaxError):
            return match.group()
        texts = dict(zip("ABCDEFGHIJ", given, strict=False)) if isinstance(given, list) else given
        is_texts = (
            isinstance(texts, dict)
            and len(texts) > 1
            and all(isinstance(each, str) for each in texts.values())
        )
        return write(texts) if is_texts and list(texts) == list("ABCDEFGHIJ"[: len(texts)]) else match.group()

    question = _LITERAL.sub(read, question)
    blocks = list(_BULLETS.finditer(question))
    texts = [line.split(None, 1)[1].strip() for line in blocks[-1].group().splitlines()] if blocks else []
    if not answer or answer.strip().casefold() not in map(str.casefold, texts):
        return question
    return (
        question[: blocks[-1].start()]
        + write(dict(zip("ABCDEFGHIJ", texts, strict=False)))
        + question[blocks[-1].end() :]
    )


def _name(mark: re.Match[str]) -> str:
    return next(group for group in mark.groups() if group)


def _find_run(question: str, names: Sequence[str], pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the last run of two or more marks in order. An earlier `(A)` may name a point of the figure."""
    best: list[re.Match[str]] = []
    current: list[re.Match[str]] = []
    for mark in pattern.finditer(question):
        place = names.index(_name(mark))
        if place == 0:
            current = [mark]
        elif place == len(current) and current:
            current.append(mark)
        if len(current) > 1:
            best = current
    if pattern is _LISTS and best and "?" in question[best[-1].end() :]:
        return []
    return list(best)


def bare_mark(mark: str) -> str:
    """Return a mark without brackets, stops and circles: `(b)` is `b`, and `②` is `2`.

    Example:
        >>> [bare_mark(mark) for mark in ("(b)", "[C]", "D.", "②")]
        ['b', 'C', 'D', '2']
    """
    return unicodedata.normalize("NFKC", mark.strip()).strip("()[].: ")


def find_mark(answer: str, choices: Collection[str]) -> str | None:
    """Return the mark that a true answer such as `b`, `(B)` or `②` names among the choices, or None.

    Example:
        >>> find_mark("(B)", {"a": "38", "b": "40"}), find_mark("40", {"a": "38", "b": "40"})
        ('b', None)
    """
    bare = bare_mark(answer)
    if bare in choices:
        return bare
    marks = [mark for mark in choices if mark.casefold() == bare.casefold()]
    return marks[0] if len(marks) == 1 else None


# `B`, `(b)`, `option B.`, `B. a blue bus`; the letter was shown beside the text, so it wins over a text that is a letter
_LETTERED = re.compile(
    r"(?:the )?(?:(?:correct )?(?:option|choice|answer):? )?[(\[]?([A-Za-z])[)\].:]*(?:(?<=[)\].:])\s+(.+))?",
    re.IGNORECASE | re.DOTALL,
)


def read_choice(
    response: str, options: Mapping[str, str], lettered: bool = True, question: str = ""
) -> tuple[str | None, bool]:
    """Return the letter of the option that a response chooses, or None; and whether the response refuses.

    A declared answer (`forms.decide`) is read alone, else the whole response. It is an option, or it asserts one
    (`assertions.choose`), by its letter or by its text. Letters count only if the model saw them (`lettered`).

    Example:
        >>> options = {"A": "a cat", "B": "a dog"}
        >>> [read_choice(text, options)[0] for text in ("The answer is (b).", "A dog.", "Not B.", "A or B")]
        ['B', 'B', None, None]
    """
    response = corrected(response)
    letters = _letters(options, lettered)
    by_word = {option.strip(" .").casefold(): letter for letter, option in options.items()}
    closed = set(by_word) == {"yes", "no"}  # the word no in "There are no differences." answers nothing

    def read(text: str) -> str | None:
        letter = _choose(text, options, lettered)
        if letter is None and len(text) > 2:
            letter = _assert(text, dict.fromkeys(options, "") if closed else options, lettered, question)
        return letter or (None if any(_find_letters(text, letters)) else _find_number(text, options))

    decision = decide(response, read)
    if decision.value is None and closed:
        said = read_yes_no(response, question)
        return (by_word[said] if said else None), decision.refused
    if decision.refused:  # an option may say that one cannot tell
        own = [
            letter for letter, option in options.items() if is_refusal(option) and _contains(response, option)
        ]
        return _choose(clean(response), options, lettered) or (own[0] if len(own) == 1 else None), True
    return decision.value, False


_LETTER = re.compile(
    r"(?<![A-Za-z0-9'-])(?:[(\[]([A-Ja-j])[)\]]|([A-J])(?![A-Za-z0-9'\u2019-])(?:(?!\. [a-z])|(?<=^.)))"
)
_ARTICLE = re.compile(
    r" (?!(?:is|was|has|would|must|and|or|ou|because|since|as|matches|shows|seems|looks|in|by|for|but|to|the)\b)[a-z]"
)
# A letter that names something else than an option: "point C", "C is for circle".
_THING_BEFORE = re.compile(
    r"\b(?:point|angle|vertex|line|side|segment|edge|node|letter|vitamin|gate|room) $", re.IGNORECASE
)
_THING_AFTER = re.compile(r" (?:is|stands) for\b| (?:denotes|represents)\b", re.IGNORECASE)


def _letters(options: Mapping[str, str], lettered: bool) -> dict[str, str]:
    """Return the letters that a response may name, by their capitals."""
    return {letter.upper(): letter for letter in options} if lettered else {}


def _find_letters(text: str, letters: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Yield where a text names an option by its letter; `letters` are those of the options, by their capitals."""
    for match in _LETTER.finditer(text):
        name = (match[1] or match[2]).upper()
        article = match[2] in ("A", "I") and _ARTICLE.match(text[match.end() :])
        thing = _THING_BEFORE.search(text[max(0, match.start() - 20) : match.start()]) or _THING_AFTER.match(
            text[match.end() :]
        )
        if name in letters and not article and not thing:
            yield letters[name], match.start(), match.end()


def _assert(text: str, options: Mapping[str, str], lettered: bool, question: str) -> str | None:
    """Return the letter of the option that a text asserts; by words that only its text has, if the text is a few words."""
    text = write_digits(clean(text))
    texts = {
        letter: stems(re.sub("^(?:It|They|He|She) ", "", write_digits(option)))
        for letter, option in options.items()
    }
    letters = _letters(options, lettered)
    for letter, option in options.items() if lettered else ():  # a mark before its text ends no sentence
        text = re.sub(rf"\b({re.escape(letter)})[.:]\s+(?={re.escape(write_digits(option))})", r"\1 ", text)

    def find(clause: str) -> Iterator[tuple[str, int, int]]:
        yield from _find_letters(clause, letters)
        last, furthest = (0, 0), 0
        for letter, start, end in sorted(find_words(clause, texts), key=lambda each: (each[1], -each[2])):
            if end > furthest or (start, end) == last:  # else it is inside another, as a bus in a school bus
                yield letter, start, end
                last, furthest = (start, end), end

    chosen = choose(text, find, question, frozenset(options))
    if chosen is not None or len(text.split()) > _FEW or any(True for _ in find(text)) or is_open(text):
        return chosen
    asked = set(stems(question))
    own = {
        word: [letter for letter in texts if word in texts[letter]]
        for word in stems(text)
        if word not in asked
    }
    named = {letter for letters in own.values() for letter in letters if len(letters) == 1}
    return named.pop() if len(named) == 1 else None


_FEW = 3  # words of an answer that may name an option in part; our choice


def _find_number(response: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that is the number of a response, where all options are numbers."""
    numbers = {letter: parse_quantity(option) for letter, option in options.items()}
    said = (
        read_quantity(response)
        if all(numbers.values()) and any(map(str.isdigit, write_digits(response)))
        else None
    )
    equal = [letter for letter, number in numbers.items() if said and number and same_quantity(said, number)]
    return equal[0] if len(equal) == 1 else None


def _contains(text: str, option: str) -> bool:
    """Return whether a text has the words of an option side by side."""
    words, wanted = normalize_words(text), normalize_words(option)
    return bool(wanted) and any(
        words[start : start + len(wanted)] == wanted for start in range(len(words) - len(wanted) + 1)
    )


def _choose(text: str, options: Mapping[str, str], lettered: bool) -> str | None:
    """Return the letter of the option that an answer is, by its letter or its text; else None."""
    part = text.strip().rstrip(".!").strip()
    if lettered and (match := _LETTERED.fullmatch(part)):
        letter = {letter.upper(): letter for letter in options}.get(match[1].upper())
        return letter if letter and (not match[2] or same_text(match[2], options[letter])) else None
    if (len(part) == 1 and part.upper() in options) or any(_find_letters(part, _letters(options, lettered))):
        return None  # the text of an option, or the letter of another
    by_text = [letter for letter, option in options.items() if same_text(part, option)]
    return by_text[0] if len(by_text) == 1 else None
