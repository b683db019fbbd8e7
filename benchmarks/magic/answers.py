"""Whether a response gives the true answer, by rules; a judge that reads is better, and the paper's was one."""

from __future__ import annotations

from mmprobe.benchmarks.final_answers import final_answer, plain
from mmprobe.benchmarks.magic.steps import split_steps, stated_answer
from mmprobe.benchmarks.yes_no import yes_no

_NOT = {"no", "not", "never", "without", "neither", "nor"}


def states(said: str, truth: str) -> bool:
    """Whether a text holds the words of another in a row, without a word such as `not` right before them.

    Case, punctuation and articles do not count.

    Example:
        >>> states("It is the Red one.", "red"), states("It is not red.", "red"), states("A red star.", "star red")
        (True, False, False)
    """
    words, wanted = plain(said), plain(truth)
    if not wanted:
        return False
    places = range(len(words) - len(wanted) + 1)
    return any(
        words[place : place + len(wanted)] == wanted and not (place and _denies(words[place - 1]))
        for place in places
    )


def _denies(word: str) -> bool:
    return word in _NOT or word.endswith(("n't", "n\u2019t"))


def is_answer(response: str, truth: str) -> bool:
    """Whether a response ends in the true answer; the rules are ours.

    Its answer is what follows the last `Answer:`, or what `final_answer` finds, or else its last sentence. It must
    state the truth. Where the truth is yes or no, the answer's first yes or no must be the same one, or that of
    the last sentence that has one where no answer is marked.

    Example:
        >>> is_answer("R1 is red.\\nAnswer: It is red.", "red"), is_answer("Yes, no cat is here.", "yes")
        (True, True)
    """
    marked = stated_answer(response) or final_answer(response)
    parts = split_steps(response) if marked is None else [marked]
    if truth.strip(" .!").lower() in ("yes", "no"):
        said = [word for part in parts if (word := yes_no(part)) != "unknown"]
        return bool(said) and said[-1] == truth.strip(" .!").lower()
    return bool(parts) and states(parts[-1], truth)
