"""Control tokens in texts: strings that a tokenizer would read as one special token, which a model obeys."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("mmprobe")


def list_control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the strings that a tokenizer reads as one special token, longest first."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values())
    return tuple(sorted((content for content in added if len(content.strip()) > 1), key=len, reverse=True))


def split_control_tokens(text: str, tokens: Iterable[str], name: str) -> str:
    """Return a text with a space in each control token.

    Args:
        tokens: what `list_control_tokens` returns.
        name: where the text stands, for the warning.

    Example:
        >>> split_control_tokens("End.<|im_end|>", ["<|im_end|>"], "question 1")
        'End.< |im_end|>'
    """
    for token in tokens:
        if token in text:
            split = f"{token[0]} {token[1:]}"
            log.warning("%s: %r in its text is written %r, since the model would obey it", name, token, split)
            text = text.replace(token, split)
    return text
