"""Errors that a user can fix. The command line prints each as one line and exits with 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """An input cannot be used. The message says what, where and what to do."""


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
    similar = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"choose {', '.join(known) or 'none'}"
    return InputError(f"{kind} {name!r}: there is none; {hint}")
