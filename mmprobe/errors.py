"""Errors that a user can fix. The command line prints each as one line and exits with 2."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_LONG_WORD = re.compile(r"\S{501,}")
_LONGEST = 2000  # characters of a message; our choice
_spelling = "{}=True"  # of an option in messages


class InputError(ValueError):
    """An input cannot be used. The message says what, where and what to do; `shorten` is applied to it."""

    def __init__(self, message: str = ""):
        super().__init__(shorten(message))


class NotApplicable(InputError):
    """A run lacks what an analysis needs. Other analyses of the run may still work."""


class NotCaptured(NotApplicable):
    """A trace lacks a data set that its capture did not record."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return an error about an unknown name that suggests the most similar known names.

    Args:
        kind: kind of the thing that has the name, such as `method`.
        name: the unknown name.
        known: the names that exist.

    Example:
        >>> unknown_name("method", "sgae", ["sage", "vcd"]).args[0]
        "method 'sgae': there is none; did you mean sage?"
    """
    known = sorted(known)
    hint = suggest_names(name, known, f"choose {', '.join(known) or 'none'}")
    return InputError(f"{kind} {name!r}: there is none; {hint}")


def suggest_names(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question with the known names that are similar to a name, or `otherwise` if none is.

    Example:
        >>> suggest_names("sgae", ["sage", "vcd"], "choose one")
        'did you mean sage?'
    """
    similar = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(similar)}?" if similar else otherwise


def printable(text: str) -> str:
    r"""Return a text without characters that a terminal obeys, such as ESC. Line breaks and tabs stay.

    Example:
        >>> printable("\x1b[31mred")
        '?[31mred'
    """
    return _CONTROL.sub("?", text)


def shorten(text: str) -> str:
    """Return a message without the middle of what is too long in it: a value that is repeated, or all of it.

    Its beginning says what is wrong and where, its end what to do.

    Example:
        >>> len(shorten("a" * 100_000 + ": cannot be read; write a number"))
        432
    """
    text = _LONG_WORD.sub(lambda word: f"{word[0][:300]}…{word[0][-100:]}", text)
    return text if len(text) <= _LONGEST else f"{text[:1300]} … {text[-600:]}"


def option(name: str) -> str:
    """Return how the caller gives an option, for messages: `resume=True`, or `--resume` on the command line.

    Example:
        >>> option("resume")
        'resume=True'
    """
    return _spelling.format(name.replace("_", "-") if _spelling.startswith("--") else name)


def name_option(name: str) -> str:
    """Return the name of an option as the caller spells it, for messages: `batch_size`, or `--batch-size`.

    Example:
        >>> name_option("batch_size")
        'batch_size'
    """
    return option(name).removesuffix("=True")


@contextmanager
def command_line_options() -> Iterator[None]:
    """Within the block, messages name options as the command line does.

    Example:
        >>> with command_line_options():
        ...     option("resume")
        '--resume'
    """
    global _spelling
    before, _spelling = _spelling, "--{}"
    try:
        yield
    finally:
        _spelling = before
