"""How commands tell their results."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def say(result: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(result) if as_json else text)
