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
    """Read one JSON object of a form, bare or in a code block. Raises UnusableReply for anything else."""
    code = _CODE_BLOCK.fullmatch(reply.strip())
    try:
        return form.model_validate_json(code[1] if code else reply)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise UnusableReply("it is not one JSON object") from None
        place = ".".join(str(part) for part in first["loc"][:3] if first["type"] != "extra_forbidden")
        raise UnusableReply(f"it does not have the form asked for{place and f', at {place}'}") from None


def reader(**kinds: Any) -> Callable[[str], tuple[Any, ...]]:
    """Return a reader of replies with these fields of these types. Their values are the labels, in this order.

    Example:
        >>> reader(correct=bool)('{"correct": true}')
        (True,)
    """
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
    form = create_model("Reply", __base__=StrictReply, **fields)
    return lambda reply: tuple(getattr(read_reply(reply, form), name) for name in kinds)


def list_reader(kind: Any, count: int, items: str) -> Callable[[str], tuple[Any, ...]]:
    """Return a reader of replies whose field `labels` holds a label of a type for each of `count` items."""
    read = reader(labels=list[kind])

    def read_labels(reply: str) -> tuple[Any, ...]:
        (labels,) = read(reply)
        if len(labels) != count:
            raise UnusableReply(f"it holds {len(labels)} labels for {count} {items}")
        return tuple(labels)

    return read_labels
