"""Recognise answers that refuse, or that say that the image is missing.

We chose the list of sentence forms. What a sign says does not count. `is_notice` is about the image alone.
"""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.words import IMAGE

_PICTURE = rf"(?!frame|panel){IMAGE}"  # a frame may be missing in an image
_IMAGE = (
    r"(?:(?:actual|attached|uploaded|medical|chest|brain|second|first|two|other|\d+) ){0,4}"
    rf"(?:{_PICTURE}s?|pics?|x-?rays?|radiographs?|scans?|slides?|ecgs?|mris?"
    r"|attachments?|"
    r"visual (?:input|content|information)|files?)(?: images?)?"
)
_A = r"(?:(?:the|any|an?|your|this|that|these|those|both|me|it|them|of|to|access|contents?) ){0,6}"
_I = r"\b(?:i|we)(?: am|'m| are)?(?: sorry,?)?(?: but)?(?: i(?: am|'m)?)?"
_NOT = (
    r"(?: still| currently| actually)?(?: cannot| can't| can not| could not| couldn't| do not| don't| did "
    r"not| didn't|(?: do not| don't) have the ability to|"
    r" am unable to| unable to| am not able to| not able to| have no| lack)(?: actually| currently| "
    r"directly| yet)?"
)
_SENDING = r"(?:attach|includ|provid|upload|shar|suppl|sen[dt]|giv|receiv|post)\w*"
_NOTICES = (
    rf"{_I}{_NOT} (?:see|view|access|open|find|have|receive|load|look at|process|analy[sz]e)? ?{_A}{_IMAGE}"
    r"(?= (?:you|that|here|in your|in this|attached|provided|itself|to|from|directly|or)\b|\W*$|[.,;:!?])",
    rf"\bthere(?: is| was|'s| are| were) no {_IMAGE}(?: (?:{_SENDING}|here|available|in your|for me)\b"
    rf"|[.,;:!?]|$)",
    rf"(?:^|[.,;:!?] |\bbut |\bas |\bsince |\bbecause )no {_IMAGE}"
    rf"(?: (?:is|was|were|are|has been|have been|seems to be|appears to be))?(?: {_SENDING}|[.,;:!?]|$| "
    rf"available| found)",
    rf"\byou (?:have not|haven't|did not|didn't|forgot to) {_SENDING} {_A}{_IMAGE}",
    rf"(?:^|[.,;:!?] |\b(?:but|so|then) )(?:please|kindly|could you|can you|would you)(?: please| "
    rf"kindly)?(?: just)? "
    rf"(?:re-?)?(?:{_SENDING}) {_A}(?:{_IMAGE}|it|them)\b",
    rf"\b(?:just )?(?:send|share|upload|attach)(?: me)? (?:the|your|an?) {_IMAGE} (?:and|so)\b",
    rf"\bi need (?:to see )?{_A}(?:\d+ )?(?:more )?{_IMAGE}\b|\b{_IMAGE} (?:is|are) needed\b",
    rf"(?:^|[.,;:!?] )(?:the |your )?{_IMAGE} (?:is |are |was |were |did |does |has |could |can |seems to "
    rf"be |appears to be )?"
    r"(?:not (?:been )?(?:load|attach|provid|includ|upload|found|available|visible|open|come)\w*|cannot "
    r"be (?:seen|opened|loaded)|"
    r"missing|unavailable|failed to load|blank|corrupted|not found)(?=\W*$|[.,;:!?]|,? so\b)",
    rf"\b(?:i|we) can (?:only see|see only) (?:one|1)(?: of the (?:two|2))? {_IMAGE}|\bonly one (?:{_IMAGE} )?was "
    rf"(?:{_SENDING})",
    rf"{_I}{_NOT} (?:see|view|open) (?:it|them|anything|this|that)(?: here)?(?=\W*$|[.,;!])",
    rf"^unable to view\b|^no {_IMAGE}$",
)
_REFUSALS = (
    rf"{_I}{_NOT} (?:answer|tell|determine|say|help|assist|identify|compare|count|choose|give|provide"
    rf"|diagnose|comment|recogni[sz]e|"
    r"know|read|pick|do that|make|describe|be sure|confirm)\b",
    r"^(?:(?:i'm|i am|we are) )?sorry\b|^(?:i )?apologi[sz]e",
    r"^(?:unable|not able|impossible|cannot|can't|hard|difficult)(?: to)? (?:answer|tell|determine|say"
    r"|view|see|give|be)\b",
    r"\b(?:cannot|can't|can not) be (?:determined|answered|known|seen|read|identified|recogni[sz]ed|made out)\b",
    r"\b(?:not legible|illegible|unreadable|too (?:small|blurry|blurred|dark|low|far)(?: \w+)? (?:for \w+ )?to (?:read|tell|see|make out))\b",
    r"\bnot enough (?:information|context)\b|\binsufficient (?:information|data)\b|\benough information\b",
    r"^no (?:idea|comment|answer|way to tell|information)\b|^(?:n/?a|unknown|not sure|unclear|undetermined)$",
    r"\bit is (?:impossible|not possible|hard|difficult) to (?:say|tell|know|determine)\b",
)
_NOTICE = re.compile("|".join(_NOTICES), re.IGNORECASE)
_REFUSAL = re.compile("|".join(_REFUSALS), re.IGNORECASE)
_SAID = re.compile(r"\b(?:says|said|asks|asked|reads|labelled|error)\b[^.\n]*", re.IGNORECASE)


def _prepare(text: str) -> str:
    text = text.replace("\u2019", "'").replace("*", "")
    return " ".join(_SAID.sub(" ", text).split()).strip(" .")


def is_notice(text: str) -> bool:
    """Return whether an answer says that the image is missing or cannot be seen, or asks for it.

    Example:
        >>> is_notice("I don't see an image attached."), is_notice("I don't see a fracture on the X-ray.")
        (True, False)
    """
    return bool(_NOTICE.search(_prepare(text)))


def is_refusal(text: str) -> bool:
    """Return whether an answer gives no answer: a notice, or words such as "I cannot tell".

    Example:
        >>> is_refusal("I'm sorry, I can't help with that."), is_refusal("The man is sorry.")
        (True, False)
    """
    prepared = _prepare(text)
    return bool(_NOTICE.search(prepared) or _REFUSAL.search(prepared))
