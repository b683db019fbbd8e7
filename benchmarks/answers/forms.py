r"""Find the answer that a response declares: the one mechanism under all readers.

A rule decides only where the answer stands in a declared form: JSON with a key `answer`;
`<answer>…</answer>`;
`[[…]]`; `\boxed{…}`; `Answer:` or "the answer is" with the answer alone behind it; or a response that is
nothing but the answer. Everything else is unread.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from typing import Any, Literal, NamedTuple

from mmprobe.benchmarks.answers.refusals import is_refusal

Verdict = Literal["right", "wrong", "refused", "unread"]
"""Of an answer: a refusal is never right; an unread answer is neither right nor wrong."""
VALUES: dict[Verdict, bool | None] = {"right": True, "wrong": False, "refused": False, "unread": None}


class Answer(NamedTuple):
    """The answer of a response: its own words, whether a mark declares it, and whether the response refuses.

    `text` is None if the response declares no answer, or several. Without a mark it is the whole response.
    """

    text: str | None
    marked: bool = False
    refused: bool = False


_THOUGHT = re.compile(r"<think>.*?</think>|^.*?</think>", re.DOTALL | re.IGNORECASE)
_OPEN_THOUGHT = re.compile(r"<think>.*", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```\w*[ \t]*\n?(.*?)```", re.DOTALL)
_KEYS = ("answer", "final_answer", "final answer", "choice", "option")
_TAGS = (
    re.compile(r"<answer>([^<]{0,2000})</answer>", re.DOTALL | re.IGNORECASE),
    re.compile(r"\[\[([^\[\]]{1,500})\]\]", re.DOTALL),
)
_LEAD = re.compile(
    r"\b(?:(?:the|my) )?(?:(?:final|correct|right|best) )?(?:answer|(?<=correct )option|(?<=correct )choice)"
    r"(?: (?:to (?:the|this) question))?(?:\s*:\s*|\s+is\b\s*:?\s*|\s*=\s*|\s*\n+\s*)(?=\S|$)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|[\u3002\uff01\uff1f\uff1b]|\n")
_CONNECTED = re.compile(
    r"(?:^|[,:;]\s*|\band\s+)(?:so|therefore|thus|hence|then|finally|and|in conclusion|this means(?: "
    r"that)?)?[\s,:]*$",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"(?:^|[.!?;\n\u2026]\s*|\.\.\.\s*|, )(?:no\b[, ]|wait|actually|correction|sorry|oops|hmm|however"
    r"|but\b|or\b|alternatively|"
    r"on second thought|on the contrary|just kidding|(?:this|that) is (?:wrong|incorrect|false|not))",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"(?<![\w)*])\*+|\*+(?![\w(*])|`+|^[ \t]*(?:#{1,6}|>)[ \t]+|(?<!\w)__?(?=\w)|(?<=\w)__?(?!\w)",
    re.MULTILINE,
)
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_LONGEST = 20_000  # characters of a response that are read, from its end; ours
_MOST_MARKS = 100  # marks of a kind that are read; ours
_WINDOW = 300  # characters before a mark that are read; ours
_ENDS = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb_ \t\n"

# A negation, alternatives, a hedge or a condition in the deciding sentence makes an answer unread.
NEGATION = re.compile(
    r"\b(?:no|not|never|neither|nor|none|nothing|cannot|without|hardly|except|but|excluded?|negative"
    r"|unlikely|"
    r"wrong|incorrect|false|rather|instead|other than|non)\b|n't\b|\bnot?-|\bnon-",
    re.IGNORECASE,
)
ALTERNATIVES = re.compile(r"\b(?:or|either|both|and/or|versus|vs)\b|/", re.IGNORECASE)
HEDGE = re.compile(
    r"\b(?:maybe|perhaps|probabl[ye]|possibl[ye]|likely|might|may|could|would|should|can|seems?|seemingly"
    r"|appears?|"
    r"apparently|guess|think|believe|suppose|assum\w+|presumabl[ye]|potentially|uncertain|unsure|unclear"
    r"|unknown|sure|certain|"
    r"if|unless|whether|depend\w*|almost|nearly|partial(?:ly)?|partly|sort of|kind of|more or less"
    r"|somewhat|rather|roughly|around|suspected|rule out|"
    r"undetermined|unspecified|insufficient|impossible|difficult|n/a)\b|\?|\.\.\.|\u2026",
    re.IGNORECASE,
)


def is_open(text: str) -> bool:
    """Return whether a sentence negates, hedges, or names alternatives.

    Example:
        >>> is_open("not C"), is_open("a red car")
        (True, False)
    """
    return bool(NEGATION.search(text) or ALTERNATIVES.search(text) or HEDGE.search(text))


def clean(text: str) -> str:
    """Return a response without thoughts between tags, Markdown, TeX brackets and full-width characters."""
    text = _OPEN_THOUGHT.sub("", _THOUGHT.sub("", text.replace("\x00", "")))
    text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match.group()), text)
    text = unicodedata.normalize("NFKC", text).replace("\u2212", "-").replace("\u2019", "'")
    return _MARKUP.sub("", re.sub(r"\\[()\[\]]", "", text)).strip()


def find_answer(response: str) -> Answer:
    r"""Return the answer that a response declares.

    Several marks must declare the same answer, and nothing behind the last one may take it back. A response
    that refuses, or has no letter and no digit, has no answer, whatever else it says.

    Example:
        >>> find_answer("3 x 4 = 12, so the answer is **12 cm**.").text
        '12 cm'
        >>> find_answer("Answer: A\nAnswer: B").text is None, find_answer("I cannot see the image.").refused
        (True, True)
    """
    value = _read_json(_OPEN_THOUGHT.sub("", _THOUGHT.sub("", response)).strip())
    if value is not None:
        return Answer(value or None, True, is_refusal(value))
    text = clean(response)[-_LONGEST:]
    found, last_end = _find_marked(text)
    if is_refusal(text) or not any(letter.isalnum() for letter in text):
        return Answer(None, bool(found), refused=not found)
    if not found:
        return Answer(_strip(text) or None)
    distinct = {_squash(item) for item in found}
    taken_back = _TAKEN_BACK.search(text[last_end:])
    if len(distinct) > 1 or "" in distinct or taken_back:
        return Answer(None, True)
    return Answer(found[-1], True)


def _find_marked(text: str) -> tuple[list[str], int]:
    """Return every marked answer, and where the last one ends. One in an unclear sentence is empty."""
    spans: list[tuple[int, int, str]] = []
    for pattern in _TAGS:
        found = itertools.islice(pattern.finditer(text), _MOST_MARKS)
        spans += [(match.start(), match.end(), match[1]) for match in found]
    spans += _find_boxed(text)
    inside = list(spans)
    for match in itertools.islice(_LEAD.finditer(text), _MOST_MARKS):
        start = match.end()
        end = _SENTENCE_END.search(text, start)
        stop = end.start() if end else len(text)
        within = [
            content for low, high, content in inside if start <= low < max(stop, start + 1) + 200 and high
        ]
        before = re.split(r"[.!?;]\s|\n", text[max(0, match.start() - _WINDOW) : match.start()])[-1]
        behind = text[start:stop]
        if end is not None and text[end.start()] == "?":
            behind = ""
        elif within and any(mark in behind for mark in ("\\boxed", "[[", "<answer>")):
            behind = within[0]
        if before.strip() and (not _CONNECTED.search(before) or is_open(before)):
            behind = ""  # `I doubt that the answer is B`
        spans.append((match.start(), stop, behind))
    return [_strip(content) for _, _, content in spans], max((end for _, end, _ in spans), default=0)


def _find_boxed(text: str) -> list[tuple[int, int, str]]:
    spans = []
    for match in itertools.islice(re.finditer(r"\\f?boxed\s*\{", text), _MOST_MARKS):
        depth, end = 1, match.end()
        while end < min(len(text), match.end() + 2000) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if not depth:
            spans.append((match.start(), end, text[match.end() : end - 1]))
    return spans


def _strip(text: str) -> str:
    r"""Return an answer without quotes, dollars, a full stop, and `\text{…}`."""
    text = re.sub(r"\\(?:text\w{0,2}|math\w{2}|operatorname|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = text.strip(_ENDS)
    if text.startswith("$") and text.endswith("$"):
        text = text.strip("$")
    return text.strip(_ENDS).rstrip(".!,:;").strip(_ENDS)


def _squash(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold() if re.search(r"\w", text) else ""


def _read_json(text: str) -> str | None:
    """Return the answer of a JSON object; empty if its value is no single answer; None for other texts."""
    fenced = _FENCED.findall(text)
    body = fenced[0].strip() if len(fenced) == 1 else text
    if not body.startswith("{"):
        return None
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    values = [value for key, value in data.items() if key.casefold() in _KEYS]
    if len(values) != 1 or not isinstance(values[0], str | int | float):
        return ""
    return {True: "yes", False: "no"}[values[0]] if isinstance(values[0], bool) else _strip(str(values[0]))
