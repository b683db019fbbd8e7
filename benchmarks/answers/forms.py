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

from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.thoughts import drop_thoughts, find_opened

Verdict = Literal["right", "wrong", "refused", "unread"]
"""Of an answer: a refusal is never right; an unread answer is neither right nor wrong."""
VALUES: dict[Verdict, bool | None] = {"right": True, "wrong": False, "refused": False, "unread": None}
Value = TypeVar("Value")


class Form(NamedTuple):
    """A form that declares an answer: its kind, its pattern, and a response with the answer that it declares.

    The group `answer` of the pattern is the answer. The kinds differ in what else must hold:

    - mark: encloses the answer. Its content is read like a response.
    - braces: as `mark`, to the brace that closes.
    - lead: precedes the answer, which ends with its sentence; only "so" may precede it.
    - option: names an option by its letter, in a sentence without negation, hedge or alternatives.
    - line: a first or last line that is nothing but the answer to a question with options.
    - number: the last sentence of a response to a question for a number.
    - words: what a sentence ends in, for an open question; right if it is the true answer, never wrong.

    Marks and leads decide before the other kinds, which only readers of options, numbers and words use.
    """

    kind: Literal["mark", "braces", "lead", "option", "line", "number", "words"]
    pattern: re.Pattern[str]
    example: str
    declares: str


# An option's letter: `(b)`, `[B]` or a capital alone. A number with its unit. The words of a thing that is counted.
_L = r"(?P<answer>[(\[][A-Za-z][)\]]|[A-Z](?![A-Za-z0-9'\u2019]))"
_N = (
    r"(?P<answer>[$\u20ac\u00a3]?[-+]?\d[\d,. /]*(?:e[-+]?\d+|\s?(?:x|\u00d7|\\times)\s?10\s?\^\{?-?\d+\}?)?"
    r"(?:\s*[a-zA-Z\u00b5\u03bc\u03a9\u00b0%\u4e00-\u9fff][\w\u00b0%^/\u00b7-]*(?: [a-z]+)?)?)"
)
_TENS = r"(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)"
_COUNT = (
    rf"(?P<answer>\d{{1,6}}|(?:{_TENS}[- ])?(?:one|two|three|four|five|six|seven|eight|nine)|ten|eleven|twelve"
    rf"|(?:thir|four|fif|six|seven|eigh|nine)teen|{_TENS})"
)
_COUNT_ZH = (
    r"(?P<answer>\d{1,6}|[\u4e00\u4e8c\u4e24\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341])\s*"
    r"[\u4e2a\u53ea\u6761\u5f20\u8f86\u628a\u6735\u68f5\u5339\u5934\u4ef6\u5757\u4f4d\u540d\u53cc\u5ea7\u53f0\u6839\u652f\u67b6\u672c\u540d\u4eba\u53ef]"
    r"[\u4e00-\u9fff]{0,6}"
)  # a number, a measure word, and what is counted
_COUNTED = r"(?:(?!(?:and|or|of|to|by|out|times|more|less|fewer|in|on|at)\b)[a-z-]+ ?){1,3}"
_PLACE = (
    r"(?:(?:visible|shown|present)? ?(?:in front of|next to|to the (?:left|right) of|in|on|at|around|near|behind|beside|under"
    r"|above|outside|inside) (?:the|this) [a-z ]{1,40})?"
)
_BEST = r"(?:(?:therefore|thus|most likely|clearly) )?(?:the )?(?:correct|right|best|most accurate)"
_SO = r"(?:(?:so|thus|therefore|hence|then|finally|in total|\u56e0\u6b64|\u6240\u4ee5|\u6545)[,:]? )?"


def _form(kind: Any, pattern: str, example: str, declares: str, flags: re.RegexFlag = re.IGNORECASE) -> Form:
    return Form(kind, re.compile(pattern, flags | re.DOTALL), example, declares)


_CASE = re.RegexFlag(0)  # a letter alone must be a capital; `(?i:…)` marks what may have any case
FORMS: tuple[Form, ...] = (
    _form("mark", r"<answer>(?P<answer>(?:(?!</?answer>).){0,2000})</answer>", "<answer>B</answer>", "B"),
    _form("mark", r"<conclusion>(?P<answer>(?:(?!</?conclusion>).){0,2000})(?:</conclusion>|\Z)", "<CONCLUSION> C", "C"),
    _form("mark", r"\[\[(?P<answer>[^\[\]]{1,500})\]\]", "So it is [[B]].", "B"),
    _form("braces", r"\\f?boxed\s*\{", r"The area is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
    _form(
        "lead",
        r"\b(?:(?:the|my) )?(?:(?:final|correct|right|best) )?(?:answer|(?<=correct )option|(?<=correct )choice)"
        r"(?: (?:to (?:the|this|your) question))?(?:\s*:\s*|\s+is\b\s*:?\s*|\s*=\s*|\s*\n+\s*)(?=\S|$)",
        "So the answer is 12 cm.",
        "12 cm",
    ),
    _form("lead", r"(?:\u7b54\u6848|\u9009\u9879)(?:\u5e94\u8be5?)?(?:\u662f|\u4e3a|\s*:)\s*:?\s*", "\u7b54\u6848\uff1aB", "B"),
    _form("option", rf"(?i:option|choice|answer) {_L}(?:[.:)] [^.!?\n]{{1,80}}?)? (?i:is|would be|must be) (?i:{_BEST})", "Option A is correct.", "A", _CASE),
    _form("option", rf"(?:^|[.:,]\s|\n|(?i:so|thus|therefore|hence),? ){_L} (?i:is) (?i:{_BEST})", "Hence B is correct.", "B", _CASE),
    _form(
        "option",
        r"(?i:corresponds? to|match(?:es)?|consistent with|choose|select|pick|go with|is|be)(?i: the)?(?i: correct)?"
        rf"(?i: option| choice| answer| letter):? {_L}",
        "That corresponds to choice C.",
        "C",
        _CASE,
    ),
    _form(
        "option",
        rf"(?i:corresponds? to|match(?:es)?|consistent with|choose|select|pick|go with) {_L}(?=[.,:;)]|\s*$|\s*\n|\s\()",
        "This is most consistent with C. Pleural effusion.",
        "C",
        _CASE,
    ),
    _form("option", rf"(?:\u9009\u62e9?|\u9009\u9879)\u9879?\s*:?\s*{_L}(?!\s*(?:\u4e0d|\u662f\u9519|\u9519))", "\u56e0\u6b64\u9009\u62e9 A\u3002", "A", _CASE),
    _form("option", rf"(?i:most likely|best|correct) (?i:(?:final )?(?:answer|option|choice|diagnosis|explanation|interpretation|finding|cause|conclusion|fit|match)) (?i:is):? {_L}(?=[.:)] |[.:)]?\s*$)(?!.{{0,80}}\b(?:or|and) [(\[]?[A-Z][.)\]])", "The most likely diagnosis is B. Epidural hematoma.", "B", _CASE),
    _form("option", rf"(?:^|[.!?]\s|\n|, )(?i:so|thus|therefore|hence|(?:so |thus |therefore |hence )?(?:it|this|that|the answer)(?:'s| is| must be| has to be)|that leaves|leaving|leaves)(?i: option| choice| answer)?,? {_L}(?=[.!]?\s*$|[.!] +[A-Z]|[.!]?\n|,? (?i:since|because|as)\b)", "The pencil ends at 12, so it must be C.", "C", _CASE),
    _form("option", rf"\((?i:option|choice|answer) {_L}\)", "The tree is a maple (option B).", "B", _CASE),
    _form("line", r"\A\s*(?P<answer>[^\n]{1,200}?)[ \t]*\n", "B\n\nThe chart shows the most sales in 2019.", "B"),
    _form("line", r"\n[ \t]*(?P<answer>[^\n]{1,200}?)\s*\Z", "The bus is blue.\n\n(B)", "(B)"),
    _form("number", rf"(?!.*(?:=|\b(?:is|are|was))\s*[-\d.]+\s*\w*\s*(?:,|;|and\b))(?:.{{0,160}}?(?:\bis|\bare|\bwas|\bequals|\bmeasures|\bbe|=|\u2248|\u662f|\u4e3a|\btotal:|\bsum:))(?: approximately| about| exactly)?\s*{_N}", "Therefore, x = 24.", "24"),
    _form("number", rf".{{0,200}}[,;] (?:so|thus|hence|therefore|giving|making|which (?:gives|makes|is)|that is|for)(?: (?:there are|we have|we get|it is|that is|that makes))?(?: a total of)? {_COUNT}(?: [a-z]+)?(?: in total| altogether| in all)", "There are 3 rows of 8 chairs, so 24 in total.", "24"),
    _form("number", rf"{_SO}(?:i (?:can )?(?:count|counted)|(?:a|the) total of|in total,?|altogether,?)(?: exactly)? {_COUNT}(?: in total| altogether)?", "I count 23.", "23"),
    _form("number", rf"{_SO}(?:there (?:is|are)|i (?:can )?(?:see|count|found|find|counted)|(?:the|this) (?:image|picture|photo) (?:shows|contains|has))(?: exactly)? {_COUNT} {_COUNTED}{_PLACE}", "There are 5 people in the image.", "5"),
    _form("number", rf"(?!.*(?:\u53ef\u80fd|\u4e5f\u8bb8|\u6216|\u81f3\u5c11|\u8d85\u8fc7|\u4ee5\u4e0a|\u5de6\u53f3|\u4e0d|\u6ca1|\u9009\u9879|\u7b54\u6848|\u6b65))[^\d]{{0,20}}?(?:\u6709|\u5171)\s*{_COUNT_ZH}", "\u56fe\u4e2d\u6709\u4e09\u53ea\u7f8a\u3002", "3"),
    _form("words", r"(?:\b(?:is|are|was|were|says|reads|shows|in|on|at|\w+ing)|'s)\s+(?=(?P<answer>.{1,80}))", "It is a couch.", "a couch"),
)  # fmt: skip
_STRONG = ("mark", "braces", "lead")


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
_TAKEN_BACK = re.compile(
    r"(?:^|[.!?;\n\u2026]\s*|\.\.\.\s*|, )(?:no\b[, ]|wait|actually|correction|sorry|oops|hmm|however"
    r"|but\b|or\b|alternatively|"
    r"on second thought|on the contrary|just kidding|(?:this|that) is (?:wrong|incorrect|false|not))",
    re.IGNORECASE,
)
_CONNECTORS = re.compile(
    r"\b(?:so|therefore|thus|hence|then|finally|and|or|wait|no|hmm|actually|in conclusion)\b", re.I
)
_MARKUP = re.compile(
    r"(?<![\w)*])\*+|\*+(?![\w(*])|`+|^[ \t]*(?:#{1,6}|>)[ \t]+|(?<!\w)__?(?=\w)|(?<=\w)__?(?!\w)",
    re.MULTILINE,
)
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_LONGEST = 20_000  # characters of a response that are read, from its end; our choice
_MOST_MARKS = 100  # marks of a form that are read; our choice
_WINDOW = 300  # characters before and after a lead, and of a last sentence, that are read; our choice
_DEEPEST = 3  # marks in marks; our choice
_MIN_CHAIN_WORDS = 3  # between two answers of which the last decides; our choice
_ENDS = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb_ \t\n"

# A negation, alternatives, a hedge or a condition in the deciding sentence makes an answer unread.
_LIKELIEST = re.compile(r"\bmost likely\b", re.IGNORECASE)  # of options: it names one
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
    r"|unknown|sure|certain|doubt\w*|"
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
    text = drop_thoughts(text.replace("\x00", ""))
    text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match.group()), text)
    text = unicodedata.normalize("NFKC", text).replace("\u2212", "-").replace("\u2019", "'")
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


def decide(
    response: str, read: Callable[[str], Value | None], *kinds: str, unmarked: bool = True
) -> Decision[Value]:
    r"""Return what a reader reads of a response; `read` turns a declared text into a value, or None.

    The last mark or lead that the reader reads decides. Earlier ones that say something else must be steps of
    a chain: sentences separate them. Without one that it reads, it reads the whole response (`unmarked`), then
    the other forms of the given kinds, which must agree.

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
        return Decision(None, True)
    found = read(_strip(text)) if unmarked and not spans and _strip(text) else None
    if found is None and kinds:
        others = {value for each in _find_others(text, kinds) if (value := read(each)) is not None}
        found = others.pop() if len(others) == 1 else None
    return Decision(found, bool(spans))


def _is_chain(between: str) -> bool:
    """Return whether whole sentences separate two answers, so that the first was a step to the last."""
    words = re.findall(r"[^\W\d_]+|\d+", _CONNECTORS.sub(" ", between))
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
        after = within[0] if within else text[start:stop]
        if end is not None and text[end.start()] == "?":
            after = ""
        if len(after) > _WINDOW or (
            before.strip() and (not _CONNECTED.search(before) or is_open(re.sub(r"\S+/\S+", " ", before)))
        ):
            after = ""  # `I doubt that the answer is B`
        yield _Span(match.start(), stop, after, False)


def _find_others(text: str, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yield the answers of the other forms, in sentences without negation, hedge and alternatives."""
    sentences = [part.strip() for part in re.split(r"(?<=[.!?;])\s+|(?<=[\u3002])|\n+", text) if part.strip()]
    last = sentences[-1].rstrip(".!\u3002 ") if sentences else ""
    for form in FORMS:
        if form.kind not in kinds:
            continue
        if form.kind == "number":
            match = form.pattern.fullmatch(last) if len(last) <= _WINDOW else None
            if match and not is_open(last[: match.start("answer")].replace("I can ", "I ")):
                yield match["answer"]
        elif form.kind == "line":
            match = form.pattern.search(text)
            if match and not _TAKEN_BACK.search(text[match.end() :]):
                yield match["answer"]
        else:
            for match in itertools.islice(form.pattern.finditer(text), _MOST_MARKS):
                sentence = _LIKELIEST.sub("", _sentence_around(text, match))
                if not is_open(sentence) and not _TAKEN_BACK.search(text[match.end() :]):
                    yield _strip(match["answer"])


def _sentence_around(text: str, match: re.Match[str]) -> str:
    start = match.start("answer")
    before = re.split(r"[.!?]\s|[\n\u3002]", text[max(0, start - _WINDOW) : start])[-1]
    end = re.compile(r"[.!?](?=\s|$)|[\n\u3002]").search(text, match.end())
    return before + text[start : end.start() + 1 if end else len(text)]


def end_of_statement(text: str) -> tuple[str, list[str]]:
    """Return a response's one sentence without its reason, and the texts that its verbs are followed by.

    Example:
        >>> end_of_statement("The cat is in a box, as one sees.")
        ('The cat is in a box', ['in a box', 'a box'])
    """
    text = re.split(r",? (?:as|because|since|given) ", clean(text), maxsplit=1)[0].strip().rstrip(".!\u3002 ")
    if not text or _SENTENCE_END.search(text):
        return "", []
    words = [form for form in FORMS if form.kind == "words"]
    return text, [match["answer"] for form in words for match in form.pattern.finditer(text)]


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
    whole = text.startswith("{") or text.startswith("```")
    objects = list(itertools.islice(json_objects(text), 2))
    answers = [_values(each) for each in objects]
    if len(objects) != 1 or not (answers[0] or whole):
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
