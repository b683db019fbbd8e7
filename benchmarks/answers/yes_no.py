"""Read yes or no."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from mmprobe.benchmarks.answers.assertions import LITTLE, is_denied, split_clauses, stem, stems
from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.colours import compare_colours
from mmprobe.benchmarks.answers.forms import Decision, clean, decide
from mmprobe.benchmarks.answers.places import find_places
from mmprobe.benchmarks.answers.refusals import is_notice
from mmprobe.benchmarks.answers.texts import COLOUR
from mmprobe.benchmarks.answers.words import DENIALS, corrected, has_denial

_YES = r"yes|yeah|yep|yup|that is correct|true|correct|indeed|certainly|definitely|absolutely|\u662f\u7684?|\u5bf9\u7684?|\u6709\u7684?"
_NO = r"no|nope|(?:absolutely |definitely |certainly |of course )not|not at all|false|incorrect|\u4e0d\u662f\u7684?|\u4e0d\u5bf9|\u6ca1\u6709\u7684?|\u5426|\u4e0d"
_WORD = rf"(?:(?P<no>{_NO})|(?P<yes>{_YES}))"
_LEAD = (
    r"(?:(?:so|therefore|thus|hence|then|and|but|i(?:'d| would) say|=>|\u2192|answer|(?:so )?the (?:answer|statement|claim) (?:to [^,.:]{1,60} )?is|(?:so |thus )?(?:it is|it's|this is|that is))"
    r"[,:]?\s+|(?:based on|from|in|according to|looking at|judging by) [^,.!?\n]{1,60}, )*"
)
# A sentence that begins with the word, or ends with it after a conclusion.
_SAID = re.compile(
    rf"\W*+(?P<lead>{_LEAD})\W*+{_WORD}(?:[*_'\"]*(?:,|[.!;:)\u3002](?!\s*\d)|\s[-\u2013\u2014]\s|\u2014|\s*$|\s(?=because|since|as\b))\s*(?P<rest>.*)|(?=\W*$))",
    re.IGNORECASE | re.DOTALL,
)
_CONCLUDED = re.compile(
    rf"(?:\b(?:so|therefore|thus|hence|answer is|i(?:'d| would) say)|=>|\u2192|\n|:)[,:]?\s+(?:the answer is |it is |it's )?{_WORD}(?:\W*$|,)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?\u3002])[*_'\")]*\s+|\n+")
# A doubt about the word itself; what else its sentence describes may seem or be unclear.
_UNSURE = re.compile(
    r"^(?:if|unless|when|depend\w*|i(?:'m| am)? (?:not sure|unsure|guess|think|believe|suppose|assume)|it (?:seems|appears|depends)|maybe|perhaps|probabl[ye]"
    r"|possibly|presumabl[ye]|sort of|kind of|but (?:it is |it's )?(?:hard|difficult|not sure|i)|and no\b)",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"(?:^|[,.:\n]\s*)(?:is|are|was|were|does|do|did|has|have|can|could|will)\b(?P<rest>[^?]*)\?",
    re.IGNORECASE,
)
# "He does.", "They aren't.", "Not that I can see.": what is left of the question.
_SHORT = re.compile(
    r"\W*(?:(?:it|they|he|she|there|this|that|(?P<neither>neither|none)(?: of (?:them|these|those|the \w+))?|the \w+(?: \w+)?|i|we) (?:\w+ly )?(?:is|are|was|were|does|do|did|has|have|had|can|could|will)"
    r"(?P<denied>n't| not)?(?: see)?(?: (?:one|any|some|several|both|two|three|four|five|\d+)(?: of (?:them|these|those))?)?|it (?:seems|looks|appears)(?: so| like it| that way)"
    r"|(?P<none>none that i can see|(?:that|this)(?:'s| is) not (?:the case|so)|not (?:yet|that i can (?:see|tell)|really|at all|visible|present|here|seen|exactly|quite)))(?:\W*(?::.*)?|,.*)",
    re.IGNORECASE | re.DOTALL,
)
_SAME = re.compile(r"\b(?:same|identical|equal|alike)\b", re.IGNORECASE)
_DIFFERENT = re.compile(r"\b(?:differ\w*|changed?|changes)\b", re.IGNORECASE)
_OPPOSITES = """on/off open/closed left/right day/night full/empty asleep/awake sleeping/awake sitting/standing wet/dry
indoors/outdoors inside/outside top/bottom above/below over/under front/back front/behind up/down young/old clean/dirty
male/female long/short bigger/smaller larger/smaller taller/shorter more/fewer more/less older/younger higher/lower"""
_EXCLUDING = [{stem(word) for word in pair.split("/")} for pair in _OPPOSITES.split()]
_RELATIONS = set(stems("left right above below over under behind front than on in inside"))
_PHRASE = (
    r"(?i:\s(?:on|in|at|of|to|against|near|next to|under|behind|along|beside|by|with)(?: top of| front of| the (?:left|right) of)?"
    r" (?:the|a|an|his|her|its|their|this) )"
)
_SOMEBODY = re.compile(r"\b(?:(?:any|some) ?(?:one|body)|people)\b", re.IGNORECASE)
_BUT_ONE = rf"(?i:\bonly\b|\b(?:{DENIALS})\b)"
_BEFORE_IT = re.compile(
    r"^\W*(?:of (?:them|these|those|which) |(?:sign|evidence|indication|trace)s? of |(?!left|right|above|below|over|under|behind|near|beside)\w+ (?=any\b|an?\b|the\b))",
    re.IGNORECASE,
)  # what stands before the thing that is denied: `not wearing a hat`
_SEEN = re.compile(r"\b(?:there|visible|seen|see|shows?|present|appears?)\b", re.IGNORECASE)
_NOBODY = re.compile(r"\b(?:nobody|no one)\b", re.IGNORECASE)
_ABOUT = LITTLE | set(
    stems("visible present presence here both between contain appear look clearly also its one")
)

Said = Literal["yes", "no"]


def read_yes_no(response: str, question: str = "") -> Said | None:
    """Return the yes or no of a response; None for a refusal and where it is unread.

    The word in the declared answer (`forms.decide`), or with which a sentence begins or concludes. No doubt is about it, and nothing
    takes it back. Without the word, a clause that states or denies what the `question` asks decides.

    Example:
        >>> [read_yes_no(text) for text in ("**No**", "Answer: Yes, it is red.", "There is no image.", "No. I can't see it.")]
        ['no', 'yes', None, 'no']
        >>> [read_yes_no(text, "Is the car red?") for text in ("The car is red.", "It is blue.", "It is not red.")]
        ['yes', 'no', 'no']
    """
    response = re.sub(r"^\W*no\.\s*(?=\d)", "Number ", corrected(response), flags=re.IGNORECASE)
    text = clean(response)
    first = _SAID.match(_SENTENCE.split(text.strip(), maxsplit=1)[0])
    if first and not (first["rest"] or "").strip(" .!"):  # whatever follows: "No. I can't see it."
        return _say(first.group() if "answer" in first["lead"].lower() else text, question)
    decision: Decision[Said] = decide(response, lambda part: _say(part, question))
    if decision.refused and first and not is_notice(text):
        return _say(text, question)  # "No, it cannot be read."
    if decision.value or decision.marked or decision.refused or not question or (first and first["rest"]):
        return decision.value
    words = set(re.findall(r"\byes\b|\bno\b(?=[^\w\s]|\s*$)", text.lower()))  # not `no cat`
    return _find_stated(text, question) or (words.pop() if len(words) == 1 else None)


def _say(text: str, question: str) -> Said | None:
    """Return the yes or no that sentences of a text begin or conclude with; None for both, and for a doubtful one."""
    said: list[Said] = []
    for sentence in _SENTENCE.split(text.strip()):
        found = _SAID.match(sentence) or _CONCLUDED.search(sentence)
        if found is None or sentence.endswith("?"):
            continue
        word: Said = "yes" if found["yes"] else "no"
        rest = (found.groupdict().get("rest") or "").strip()
        if _UNSURE.search(rest) or re.match(r"no\b" if word == "yes" else r"yes\b", rest, re.IGNORECASE):
            return None
        if (
            word == "yes"
            and not has_denial(question)
            and (_find_stated(rest.partition(",")[0], question) == "no" if question else has_denial(rest))
        ):
            return None  # one contradicts the other, as in "Yes, there is no dog."
        if word == "no" and not re.search(_BUT_ONE, rest) and _find_stated(rest, question) == "yes":
            return None  # "No, the shoe is orange.", asked whether it is
        said.append(word)
    return said[-1] if len(set(said)) == 1 else None


def _find_stated(text: str, question: str) -> Said | None:
    """Return what the first sentence says to a question, or else all others that say something."""
    for word, same in (("shut", "closed"), ("ajar", "open")):
        text, question = (re.sub(rf"\b{word}\b", same, each) for each in (text, question))
    asked = _ASKED.search(question)
    if asked is None or re.search(r"\bor\b", asked["rest"].replace("country or region", "country")):
        return None
    said: list[tuple[int, Said, bool]] = []
    for clause in split_clauses(re.sub(r"^[^.!?\n]*\?\s+", "", text)):  # the question again
        if (
            not clause.is_open
            and not re.search(r"\b(?:nearly|almost)\b", clause.text)
            and (stated := _state(clause.text, asked["rest"]))
        ):
            said.append((clause.sentence, stated, clause.concludes))
    concluded = [entry for entry in said if entry[2]]
    said = concluded or [entry for entry in said if entry[0] == 0] or said
    whole = len({word for word in stems(asked["rest"]) if word not in _ABOUT}) > 1
    return said[0][1] if len({word for _, word, _ in said}) == 1 and (whole or said[0][0] == 0) else None


def _state(clause: str, asked: str) -> Said | None:
    """Return what a clause says to what is asked: it states it, denies it, or states what excludes it."""
    if short := _SHORT.fullmatch(clause):
        return "no" if short["denied"] or short["none"] or short["neither"] else "yes"
    denied = has_denial(clause)
    for own, opposite in ((_SAME, _DIFFERENT), (_DIFFERENT, _SAME)):  # of two images
        if own.search(asked) and not opposite.search(asked):
            if own.search(clause) and not opposite.search(clause):
                return "no" if denied else "yes"
            if opposite.search(clause) and not own.search(clause):
                return "yes" if denied else "no"
    wanted = [word for word in stems(_SOMEBODY.sub("person", asked)) if word not in _ABOUT or word == "on"]
    if not wanted:
        return None
    said = stems(_NOBODY.sub("no person", _SOMEBODY.sub("person", clause)))
    kinds = {find_category(word) for word in said}
    said += [
        word for word in wanted if (kind := find_category(word)) and kind == word and kind in kinds
    ]  # a man is a person
    missing = [word for word in wanted if word not in said]
    about_it = re.match(r"\W*(?:it|they|he|she|it's|this|that)\b", clause, re.IGNORECASE) is not None
    # Without a phrase to its end, or before its last word: `the plate (to the right of the fork) empty`.
    cores = [
        [word for word in stems(re.sub(f"{_PHRASE}{rest}", "", asked)) if word not in _ABOUT]
        for rest in (r"[^?\d]*$", r"\w+(?= \w+$)")
    ]
    place = re.search(f"{_PHRASE}[^?]*$", clause)
    elsewhere = place and not find_places(place.group()) and set(stems(place.group())) - _ABOUT - set(wanted)
    if not denied and any(
        word in pair and (pair - {word}) & set(said) for word in missing for pair in _EXCLUDING
    ):
        return "yes" if _is_turned(asked, clause) else "no"
    exists = re.match(r"\s*there\b", asked) is not None
    kind = (
        rf"\b{wanted[0]}\w* (?!\w+(?:ing|ed)\b|(?:on|in|at|under|behind|near|beside|above|below|by|with)\b)"
    )
    named = len(wanted) > 2 and missing == wanted[:1] and re.search(kind, asked, re.I)
    is_told = (
        not missing
        or named  # the (traffic) light is green
        or (exists and cores[0] and set(cores[0]) <= set(said) and not elsewhere and _SEEN.search(clause))
        or (about_it and wanted[-1] in said and not exists)
        or any(len(core) > 1 and set(core) <= set(said) for core in cores)
        and not elsewhere
    )
    if is_told:
        spans = {
            word: [m.span() for m in re.finditer(r"[A-Za-z]+", clause) if stem(m.group()) == word]
            for word in wanted
        }
        if not missing and _is_turned(asked, clause):
            return None if denied else "no"
        if spans[wanted[-1]]:
            clause = clause.replace(" than ", " with ")  # denies nothing here
            each = any(all(is_denied(clause, *span) for span in found) for found in spans.values() if found)
            denied = each or has_denial(clause[: spans[wanted[-1]][0][0]])
        if denied and _denies_other(clause, wanted):
            return None
        return "no" if denied else "yes"
    if denied and len(missing) < len(wanted) and not _denies_other(clause, wanted):
        return "no"
    missing = min(missing, [word for word in cores[1] if word not in said] or missing, key=len)
    if denied or not missing or len(missing) > 1 and not about_it:
        return None
    last = wanted[-1] if about_it else missing[0]
    if last.isdigit() and last == wanted[-1] and any(map(str.isdigit, said)):
        return "no"
    (hue, *more), others = (re.findall(COLOUR, text, re.IGNORECASE) or [""] for text in (asked, clause))
    is_another = (
        not more
        and stems(hue)[-1:] == [last]
        and all(compare_colours(other, hue) is False for other in others)
    )
    return "no" if is_another else None


def _denies_other(clause: str, wanted: Sequence[str]) -> bool:
    """Return whether each denial of a clause is of something else than is asked, by the first word after it that says something.

    Example:
        >>> [_denies_other(text, ["man", "wear", "hat"]) for text in ("The man is not smiling", "The man has no hat")]
        [True, False]
    """
    clause = _SOMEBODY.sub("person", clause)
    denied = [
        next((word for word in stems(_BEFORE_IT.sub("", clause[mark.end() :])) if word not in _ABOUT), None)
        for mark in re.finditer(rf"\b(?:{DENIALS})\b", clause, re.IGNORECASE)
    ]
    return bool(denied) and all(word is not None and word not in wanted for word in denied)


def _is_turned(asked: str, clause: str) -> bool:
    """Return whether a clause turns a relation round: `the dog is behind the cat`, asked whether the cat is behind the dog."""
    wanted, said = stems(asked), stems(clause)
    return any(
        (said[j] == wanted[i] or {said[j], wanted[i]} in _EXCLUDING)
        and set(wanted[:i]) & set(said[j:]) - _ABOUT
        and set(wanted[i + 1 :]) & set(said[:j]) - _ABOUT
        for i in range(len(wanted))
        if wanted[i] in _RELATIONS
        for j in range(len(said))
    )


def first_word(response: str) -> Literal["yes", "no", "unknown"]:
    """Return the first word of a response if it is yes or no, in any case and with any punctuation.

    Example:
        >>> [first_word(text) for text in ("**No**, I see nothing.", "There is no dog.")]
        ['no', 'unknown']
    """
    word = re.match(r"[\W_]*([^\W_]+)", response)
    said = word[1].lower() if word else ""
    return "yes" if said == "yes" else "no" if said == "no" else "unknown"
