"""Read the replies of a judge. A reply that does not have exactly the requested form is unusable."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

_CODE_BLOCK = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


class UnusableReply(Exception):
    """The reason why a reply is unusable. The judge sees the message; it quotes nothing of the reply."""


class StrictReply(BaseModel):
    """The base of every reply form: no further fields, and no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


_Form = TypeVar("_Form", bound=StrictReply)


def read_reply(reply: str, form: type[_Form]) -> _Form:
    """Read one JSON object of a form, bare or in a code block.

    Raises:
        UnusableReply: the reply is not one JSON object of this form.
    """
    code = _CODE_BLOCK.fullmatch(reply.strip())
    try:
        return form.model_validate_json(code[1] if code else reply)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise UnusableReply("it is not one JSON object") from None
        place = ".".join(str(part) for part in first["loc"][:3] if first["type"] != "extra_forbidden")
        raise UnusableReply(f"it does not have the form asked for{place and f', at {place}'}") from None


def field_reader(name: str, kind: Any) -> Callable[[str], tuple[Any]]:
    """Return a reader of replies with one field, whose value is the only label.

    Example:
        >>> field_reader("correct", bool)('{"correct": true}')
        (True,)
    """
    fields: dict[str, Any] = {name: (kind, ...)}
    form: Any = create_model("Reply", __base__=StrictReply, **fields)
    return lambda reply: (getattr(read_reply(reply, form), name),)


def squash_spaces(text: str) -> str:
    """Fold the case of a text, and join its words with single spaces."""
    return " ".join(text.split()).casefold()
