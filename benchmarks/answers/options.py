"""Find the options in the text of a question, and the option that a response chooses."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mmprobe.benchmarks.answers.forms import clean, decide, end_of_statement, is_open
from mmprobe.benchmarks.answers.texts import normalize_words, same_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no

_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_ANY_ROMAN = "|".join(sorted(_ROMAN, key=len, reverse=True))
# Kinds of marks, from the surest on. Each has the options' names in order, and its marks in a text.
_KINDS: tuple[tuple[Sequence[str], re.Pattern[str]], ...] = tuple(
    (names, re.compile(rf"(?:(?<=\s)|(?<=^)|(?<=[;,]))(?:{marks})\s*", re.MULTILINE))
    for names, marks in (
        ("ABCDEFGHIJ", r"\(([A-J])\)|\[([A-J])\]|([A-J])\s?[.):]"),
        ("abcdefghij", r"\(([a-j])\)|\[([a-j])\]|([a-j])\)"),
        ("\u2460\u2461\u2462\u2463\u2464\u2465\u2466\u2467\u2468", r"([\u2460-\u2468])[.):]?"),
        ("123456789", r"\(([1-9])\)|\[([1-9])\]|([1-9])\)"),
        (_ROMAN, rf"\(({_ANY_ROMAN})\)|\[({_ANY_ROMAN})\]|({_ANY_ROMAN})[.)](?=\s)"),
        (
            tuple(name.upper() for name in _ROMAN),
            rf"\(({_ANY_ROMAN.upper()})\)|\[({_ANY_ROMAN.upper()})\]|({_ANY_ROMAN.upper()})[.)](?=\s)",
        ),
        ("123456789", r"([1-9])\.(?=\s)"),
    )
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

    Options are a run of marks in order: `(A)`, `[A]`, `A.`, `A)` or `A:`; `(a)`, `[a]` or `a)`; `①`; `(1)`,
    `[1]` or `1)`; `(i)`, `[i]`, `i.` or `i)`, also in capitals; `1.`, unless a question follows. The kind that has the
    mark of the true `answer` counts, else the first of this order; of several runs the last counts. A heading
    (`Choices:`), a blank for the mark, and a sentence that asks to choose go with them.

    Example:
        >>> split_options("Find x. Choices: (a) 38, (b) 40; (c) 42")
        SplitQuestion(question='Find x.', choices={'a': '38', 'b': '40', 'c': '42'})
    """
    runs = [run for names, pattern in _KINDS if (run := _find_run(question, names, pattern))]
    if not runs:
        return SplitQuestion(question, {})
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


# `B`, `(b)`, `option B`, `B. a blue bus`, `C (120\u00b0)`, `B because ...`
_LETTERED = re.compile(
    r"(?:the )?(?:(?:correct )?(?:option|choice|answer):? )?"
    r"(?:[(\[](?P<bracketed>[A-Za-z])[)\]]|(?P<bare>[A-Za-z])(?![A-Za-z0-9'\u2019]))"
    r"(?:[.,:;)]?\s*(?P<reason>(?:because|since|as|due to|given that)\b.+)|\s*\((?P<beside>[^()]+)\)"
    r"|(?:(?<=[)\]])[.:]?|[.):]|\s?[-\u2013\u2014](?=\s))\s+(?P<text>.+)|[.):])?",
    re.DOTALL | re.IGNORECASE,
)


def read_choice(response: str, options: Mapping[str, str], lettered: bool = True) -> tuple[str | None, bool]:
    """Return the letter of the option that a response chooses, or None; and whether the response refuses.

    The declared answer (`forms.decide`) is the letter, the letter with the text of its option or a reason, or
    the text of one option. Letters count only if the model saw them (`lettered`).

    Example:
        >>> options = {"A": "a cat", "B": "a dog"}
        >>> [read_choice(text, options)[0] for text in ("The answer is (b).", "A dog.", "Not B.", "A or B")]
        ['B', 'B', None, None]
    """
    by_word = {option.strip(" .").casefold(): letter for letter, option in options.items()}
    kinds = ("option", "line") if lettered else ()
    decision = decide(response, lambda text: _choose_within(text, options, lettered), *kinds)
    if decision.value is None and set(by_word) == {"yes", "no"}:
        said = read_yes_no(response)
        return (by_word[said] if said else None), decision.refused
    if decision.value is None and not decision.marked and not decision.refused:
        return _find_stated(response, options), False
    if decision.refused:  # an option may say that one cannot tell
        return _choose(clean(response), options, lettered), True
    return decision.value, False


def _find_stated(response: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option in whose text a response, one plain sentence, ends. It names no other option."""
    sentence, endings = end_of_statement(response)
    named = [letter for letter, option in options.items() if _contains(sentence, option)]
    marks = "|".join(map(re.escape, options))
    if len(named) != 1 or is_open(sentence) or re.search(rf"\b(?:{marks})(?: is\b|[^\w\s]|$)", sentence):
        return None  # `B is red.` names an option by its letter
    return named[0] if any(same_text(ending, options[named[0]]) for ending in endings) else None


def _contains(text: str, option: str) -> bool:
    """Return whether a text has the words of an option side by side."""
    words, wanted = normalize_words(text), normalize_words(option)
    return bool(wanted) and any(
        words[start : start + len(wanted)] == wanted for start in range(len(words) - len(wanted) + 1)
    )


def _choose_within(text: str, options: Mapping[str, str], lettered: bool) -> str | None:
    """Return the letter of the option that a declared answer is, or that it names in a sentence of its own."""
    letter = _choose(text, options, lettered)
    if letter is not None or not lettered:
        return letter
    return decide(text, lambda part: _choose(part, options, True), "option", unmarked=False).value


def _choose(text: str, options: Mapping[str, str], lettered: bool) -> str | None:
    """Return the letter of the option that a declared answer names, by text or by letter; else None."""
    part = text.strip().rstrip(".!").strip()
    match = _LETTERED.fullmatch(part) if lettered else None
    name = (match["bracketed"] or match["bare"]) if match else ""
    letter = {letter.upper(): letter for letter in options}.get(name.upper())
    said = (match["text"] or match["beside"]) if match else None
    if match and letter and said:
        if same_text(said, options[letter]) or not options[letter]:
            return letter
        names_other = any(same_text(said, option) for option in options.values()) or is_open(said)
        if match["beside"]:
            return None if names_other else letter
        own, others = (
            [each for name, each in options.items() if (name == letter) == is_own and _contains(said, each)]
            for is_own in (True, False)
        )
        return letter if own and not others and not is_open(said) else None
    by_text = [letter for letter, option in options.items() if same_text(part, option)]
    if by_text:
        return by_text[0] if len(by_text) == 1 else None
    is_article = match and match["reason"] and match["bare"] and name.islower()
    return None if is_article else letter
