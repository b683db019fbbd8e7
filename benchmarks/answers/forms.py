r"""Find the answer that a response declares: the one mechanism under all readers.

`FORMS` is the table of the declared forms, each with an example; a new form is a line in it. A rule decides only
where the answer has one of these forms. Everything else is unread.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from mmprobe.benchmarks.answers.refusals import is_notice, is_refusal
from mmprobe.benchmarks.answers.words import TAKES_BACK, has_denial, is_open
from mmprobe.thoughts import drop_thoughts, find_opened

Verdict = Literal["right", "wrong", "other", "refused", "unread"]
"""Of an answer. `other` says something else in words that a judge may find to be the same; `unread` holds no answer."""
VALUES: dict[Verdict, bool | None] = {
    "right": True,
    "wrong": False,
    "other": False,
    "refused": False,
    "unread": None,
}
Value = TypeVar("Value")


def is_right(verdict: Verdict, judged: bool = False) -> bool | None:
    """Return whether an answer is right; None if it is unread, and for other words if a judge decides them (`judged`).

    Example:
        >>> is_right("other"), is_right("other", judged=True)
        (False, None)
    """
    return None if judged and verdict == "other" else VALUES[verdict]


class Form(NamedTuple):
    """A form that declares an answer: its kind, its pattern, and a response with the answer that it declares.

    The group `answer` of the pattern is the answer. The kinds differ in what else must hold:

    - mark: encloses the answer. Its content is read like a response.
    - braces: as `mark`, to the brace that closes.
    - lead: precedes the answer, which ends with its sentence; only "so" may precede it.
    """

    kind: Literal["mark", "braces", "lead"]
    pattern: re.Pattern[str]
    example: str
    declares: str


def _form(kind: Any, pattern: str, example: str, declares: str) -> Form:
    return Form(kind, re.compile(pattern, re.IGNORECASE | re.DOTALL), example, declares)


FORMS: tuple[Form, ...] = (
    _form("mark", r"<answer>(?P<answer>(?:(?!</?answer>).){0,2000})</answer>", "<answer>B</answer>", "B"),
    _form("mark", r"<\|begin_of_box\|>(?P<answer>.{0,2000}?)(?:<\|end_of_box\|>|\Z)", "<|begin_of_box|>B<|end_of_box|>", "B"),
    _form("mark", r"<conclusion>(?P<answer>(?:(?!</?conclusion>).){0,2000})(?:</conclusion>|\Z)", "<CONCLUSION> C", "C"),
    _form("mark", r"\[\[(?P<answer>[^\[\]]{1,500})\]\]", "So it is [[B]].", "B"),
    _form("braces", r"\\f?boxed\s*\{", r"The area is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
    _form(
        "lead",
        r"\b(?:(?:the|my) )?(?:(?:final|correct|right|best|short|long|most (?:likely|plausible|accurate)) )?(?:answer|(?<=correct )option|(?<=correct )choice)"
        r"(?: (?:to (?:the|this|your) question))?(?:\s*:\s*|\s+is\b\s*:?\s*|\s*=\s*|\s*\n+\s*)(?=\S|$)",
        "So the answer is 12 cm.",
        "12 cm",
    ),
    _form("lead", r"(?:\u7b54\u6848|\u9009\u9879)(?:\u5e94\u8be5?)?(?:\u662f|\u4e3a|\s*:)\s*:?\s*", "\u7b54\u6848\uff1aB", "B"),
)  # fmt: skip


class DeclaredAnswer(NamedTuple):
    """The answer of a response: its own words, whether a mark declares it, and whether the response refuses.

    `text` is None if the response declares no answer, or several. Without a mark it is the whole response.
    """

    text: str | None
    marked: bool = False
    refused: bool = False


class Decision(NamedTuple, Generic[Value]):
    """What a reader read: the value, or None; whether a mark declares an answer; whether the response refuses."""

    value: Value | None
    marked: bool = False
    refused: bool = False


class _Span(NamedTuple):
    start: int
    end: int
    text: str  # empty in an unclear sentence
    encloses: bool


_KEYS = ("answer", "final_answer", "final answer", "choice", "option")
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|[\u3002\uff01\uff1f\uff1b]|\n")
_CONNECTED = re.compile(
    r"(?:^|[,:;]\s*|\band\s+)(?:so|therefore|thus|hence|then|finally|and|in conclusion|this means(?: "
    r"that)?|here is|\u56e0\u6b64|\u6240\u4ee5|\u6545|\u7531\u6b64|\u7efc\u4e0a|\u5219)?[\s,:]*(?:\u6700\u7ec8|\u6b63\u786e|\u6807\u51c6)?\u7684?$",
    re.IGNORECASE,
)
_SHOWN = re.compile(
    r".*\b(?:(?:clear|evident|obvious|follows|shows?|means?|implies|conclude|indicates?|tells(?: us)?) that|(?<!not )(?:confident|sure|certain)(?: that)?) $",
    re.IGNORECASE,
)  # what is before it is a reason
_TAKEN_BACK = re.compile(
    rf"(?:^|[.!?;\n\u2026]\s*|\.\.\.\s*|, )(?:no\b[, ]|sorry|or\b|alternatively|(?:this|that) is not|{TAKES_BACK})",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"(?<![\w)*])\*+|\*+(?![\w(*])|`+|^[ \t]*(?:#{1,6}|>)[ \t]+|(?<!\w)__?(?=\w)|(?<=\w)__?(?!\w)",
    re.MULTILINE,
)
# Where a thing is, in tokens of a model: `<box>[[10,20,30,40]]</box>`, `[[10, 20, 30, 40]]`, `<point x="3" y="4">`.
_COORDINATES = re.compile(
    r"<\|?(?:box|quad)[^>]{0,80}>[\d\s.,()\[\]]*<\W{0,2}(?:box|quad)[^>]{0,80}>|\[\[\d+(?:\.\d+)?(?:,\s*\d+(?:\.\d+)?){3}\]\]|<points?\b[^>]{0,200}>",
    re.IGNORECASE,
)
# "I cannot tell exactly, but there are 3": after a refusal that is not about the image, an answer.
_YET = re.compile(
    r"(?:[.;]\s|\n)\s*(?:but|however|that said|nevertheless|so|therefore|thus)\b|, but (?=it|the)",
    re.IGNORECASE,
)
_LONGEST = 20_000  # characters of a response that are read, from its end; our choice
_MOST_MARKS = 100  # marks of a form that are read; our choice
_WINDOW = 300  # characters before and after a lead, and of a last sentence, that are read; our choice
_DEEPEST = 3  # marks in marks; our choice
_MIN_CHAIN_WORDS = 3  # between two answers of which the last decides; our choice
_ENDS = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb_ \t\n"


def clean(text: str) -> str:
    """Return a response without thoughts between tags, Markdown, TeX brackets and full-width characters."""
    text = _COORDINATES.sub("", drop_thoughts(text.replace("\x00", "")))
    text = re.sub(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])", " ", text)  # 2\u00bd
    text = (
        unicodedata.normalize("NFKC", text)
        .replace("\u2212", "-")
        .replace("\u2044", "/")
        .replace("\u2019", "'")
    )
    return _MARKUP.sub("", re.sub(r"\\[()\[\]]", "", text)).strip()


def last_part(response: str) -> str:
    """Return a response without thoughts between tags; of stages between tags the last one alone.

    Example:
        >>> last_part("<REASONING> It was there. </REASONING> <CONCLUSION> The dog is gone. </CONCLUSION>")
        'The dog is gone.'
    """
    text = drop_thoughts(response)
    stages = re.split(r"<conclusion>", text, flags=re.IGNORECASE)
    return re.split(r"</conclusion>", stages[-1], flags=re.IGNORECASE)[0].strip() if len(stages) > 1 else text


def find_answer(response: str) -> DeclaredAnswer:
    r"""Return the answer that a response declares, as text.

    Nothing after the last mark may take it back. A response that refuses, or has no letter and no digit, has no
    answer, whatever else it says.

    Example:
        >>> find_answer("3 x 4 = 12, so the answer is **12 cm**.").text
        '12 cm'
        >>> find_answer("Answer: A\nAnswer: B").text is None, find_answer("I cannot see the image.").refused
        (True, True)
    """
    texts: dict[str, str] = {}

    def read(text: str) -> str | None:
        squashed = _squash(text)
        texts[squashed] = text
        return squashed or None

    value, marked, refused = decide(response, read)
    return DeclaredAnswer(None if value is None else texts[value], marked, refused)


def decide(response: str, read: Callable[[str], Value | None]) -> Decision[Value]:
    r"""Return what a reader reads of a response; `read` turns a declared text into a value, or None.

    The last mark or lead that the reader reads decides. Earlier ones that say something else must be steps of
    a chain: sentences separate them. Without one that it reads, it reads the whole response.

    Example:
        >>> letters = lambda text: text if text in ("B", "C") else None
        >>> decide("The answer is 120 degrees. Therefore the answer is C.", letters).value
        'C'
        >>> decide("Answer: B\nAnswer: C", letters).value is None
        True
    """
    declared = _read_json(drop_thoughts(response).strip())
    if declared is not None:
        refused = is_refusal(declared)
        return Decision(None if refused or not declared else read(declared), True, refused)
    text = clean(response)[-_LONGEST:]
    spans = _find_marked(text)
    if is_refusal(text) and not is_notice(text) and (but := _YET.search(text)):
        return decide(text[but.end() :], read)
    if is_refusal(text) or not any(letter.isalnum() for letter in text):
        was_cut_off = bool(
            find_opened("", before=response)
        )  # while it was thinking: nobody knows what it would say
        return Decision(None, bool(spans), refused=not spans and not was_cut_off)
    values = [read(span.text) if span.text else None for span in spans]
    last = next((i for i in reversed(range(len(spans))) if values[i] is not None), None)
    if last is not None:
        unclear = any(not spans[i].text or is_open(spans[i].text) for i in range(last + 1, len(spans)))
        conflicts = any(
            values[i] != values[last]
            and (values[i] is not None or not spans[i].text)
            and not _is_chain(text[spans[i].end : spans[last].start])
            for i in range(last)
        )
        taken_back = _TAKEN_BACK.search(text[max(span.end for span in spans) :])
        return Decision(None if unclear or conflicts or taken_back else values[last], True)
    if any(not span.text or is_open(span.text) for span in spans):
        return Decision(read(text) if spans and has_denial(spans[-1].text) else None, True)
    found = read(_strip(text)) if not spans and _strip(text) else None
    return Decision(found, bool(spans))


def _is_chain(between: str) -> bool:
    """Return whether whole sentences separate two answers, so that the first was a step to the last."""
    words = re.findall(r"[^\W\d_]+|\d+", between)
    return len(words) >= _MIN_CHAIN_WORDS and _SENTENCE_END.search(between) is not None


def _find_marked(text: str, depth: int = 0) -> list[_Span]:
    """Return every answer that a mark or a lead declares, in order. One in an unclear sentence is empty."""
    enclosed = sorted(
        span for form in FORMS if form.kind in ("mark", "braces") for span in _enclosed(form, text)
    )
    outer: list[_Span] = []
    for span in enclosed:
        if not outer or span.start >= outer[-1].end:
            inner = _find_marked(span.text, depth + 1) if depth < _DEEPEST else []
            texts = {_squash(each.text): each.text for each in inner}
            content = span.text if not inner else next(iter(texts.values())) if len(texts) == 1 else ""
            outer.append(span._replace(text=content))
    leads = [
        span
        for form in FORMS
        if form.kind == "lead"
        for span in _led(form, text, outer)
        if not any(each.start < span.start < each.end for each in outer)
    ]
    return [span._replace(text=_strip(span.text)) for span in sorted([*outer, *leads])]


def _enclosed(form: Form, text: str) -> Iterator[_Span]:
    for match in itertools.islice(form.pattern.finditer(text), _MOST_MARKS):
        if form.kind == "mark":
            yield _Span(match.start(), match.end(), match["answer"], True)
            continue
        depth, end = 1, match.end()
        while end < min(len(text), match.end() + 2000) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if not depth:
            yield _Span(match.start(), end, text[match.end() : end - 1], True)


def _led(form: Form, text: str, enclosed: list[_Span]) -> Iterator[_Span]:
    for match in itertools.islice(form.pattern.finditer(text), _MOST_MARKS):
        start = match.end()
        end = _SENTENCE_END.search(text, start)
        stop = end.start() if end else len(text)
        within = [span.text for span in enclosed if start <= span.start < max(stop, start + 1)]
        before = re.split(r"[.!?;]\s|[\n\u3002]", text[max(0, match.start() - _WINDOW) : match.start()])[-1]
        before = _SHOWN.sub("", before)
        after = within[0] if within else text[start:stop]
        if end is not None and text[end.start()] == "?":
            after = ""
        if len(after) > _WINDOW or (
            before.strip() and (not _CONNECTED.search(before) or is_open(re.sub(r"\S+/\S+", " ", before)))
        ):
            after = ""  # `I doubt that the answer is B`
        yield _Span(match.start(), stop, after, False)


def _strip(text: str) -> str:
    r"""Return an answer without quotes, dollars, a full stop, and `\text{…}`."""
    text = re.sub(r"\\(?:text\w{0,2}|math\w{2}|operatorname|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = text.strip(_ENDS)
    if text.startswith("$") and text.endswith("$"):
        text = text.strip("$")
    return text.strip(_ENDS).rstrip(".!,:;\u3002").strip(_ENDS)


def _squash(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold() if re.search(r"\w", text) else ""


def _read_json(text: str) -> str | None:
    """Return the answer of the one JSON object in a text; empty if its value is not a single answer.

    None for a text without an object that has a key for the answer, other than a text that is an object.
    """
    objects = list(itertools.islice(json_objects(text), 2))
    answers = [_values(each) for each in objects]
    if len(objects) != 1 or not answers[0]:
        return "" if sum(bool(each) for each in answers) > 1 else None
    values = answers[0]
    if len(values) != 1 or not isinstance(values[0], str | int | float):
        return ""
    return {True: "yes", False: "no"}[values[0]] if isinstance(values[0], bool) else _strip(str(values[0]))


def _values(data: dict[str, Any]) -> list[Any]:
    return [value for key, value in data.items() if key.casefold() in _KEYS]


_DECODER = json.JSONDecoder()
_MOST_BRACES = 50  # opening braces of a text at which an object is looked for; our choice


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text, with or without prose around them.

    Example:
        >>> list(json_objects('Here: {"answer": "B"}. Good luck {not this}!'))
        [{'answer': 'B'}]
    """
    start = text.find("{")
    for _ in range(_MOST_BRACES):
        if start < 0:
            return
        try:
            data, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if isinstance(data, dict):
                yield data
        start = text.find("{", end)
