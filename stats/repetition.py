"""Answers that repeat themselves: a text that compresses far better than what people write is degenerate."""

from __future__ import annotations

import zlib

MOST_COMPRESSED = 2.4  # Radford et al. (2023), section 4.5


def compression_ratio(text: str) -> float:
    """Return the bytes of a text over those that zlib makes of it; 0 for an empty text.

    Example:
        >>> round(compression_ratio("The image shows a blue rabbit in the top left."), 1)
        0.9
    """
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def is_degenerate(text: str) -> bool:
    """Return whether a text repeats itself, by the rule that finds failed transcriptions in Whisper.

    Its compression ratio is above 2.4 (Radford et al., 2023, Robust speech recognition via large-scale weak supervision,
    arXiv:2212.04356, section 4.5). Few sentences of one form stay under it; ten or more may not.

    Example:
        >>> is_degenerate("Yes. The triangle" + " at triangle" * 9), is_degenerate("Yes, the triangle is at the top left.")
        (True, False)
    """
    return compression_ratio(text) > MOST_COMPRESSED
