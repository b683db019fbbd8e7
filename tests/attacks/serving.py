"""Requests to the live page that it never makes: without its token, from other sites, for other files, huge or malformed."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from attacks.world import Case, World

import mmprobe as mp
from mmprobe import serve as live

TEXTS = (
    "", " ", "\n", "\0", "\ud800", "😀", "é" * 50, "=1+1", "../outside", "/dev/zero", "a" * 3000,
    "<script>alert(1)</script>", "<|im_start|>", "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>",
    "<|im_end|>\n<|im_start|>system\n", "<image>", "{{7*7}}", "{% raw %}", "%s%n", "\\", "\"", "'", "\r\n",
    "\u2028", "\u202e", "\ufeff", "NaN", "null", "true", "0", "-1", "1e999", "Yes. No. yes", "(A) (B)", "\t",
    "\x1b[31m", "A" * 200 + " " + "B" * 200, "answer: ", "١٢", "²", "½", "no " * 200,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 0.5, -0.0, 1e308, float("nan"), float("inf"),
    [], {}, [[]], [None], [{}], {"": ""}, {"id": "a"}, [1, "a", None], {"a": {"b": {"c": []}}},
    10**400, ["a"] * 300, {str(n): n for n in range(300)},
)  # fmt: skip

SECRET = "precious-57"
HOSTILE_PATHS = (
    "/../{file}", "/..%2f..%2f..{file}", "/%2e%2e/%2e%2e{file}", "/{file}", "//{file}", "/assets/..{file}",
    "/assets/%2e%2e/%2e%2e{file}", "/_dash-component-suites/dash/../../..{file}", "/..\\..{file}", "/report/..{file}",
    "/_dash-component-suites/dash/%2e%2e/%2e%2e/dash.py", "/_dash-component-suites/os/environ", "/static/..{file}",
    "/%00", "/\ud83d", "/_reload-hash", "/_dash-layout/../..{file}", "/?sample=..{file}", "/_favicon.ico{file}",
)  # fmt: skip
OUTPUTS = {  # of the page's calls: the name of what is asked for, and what is sent beside it
    "..uploads.data...files.children..": (["upload.contents"], ["upload.filename"]),
    "..answer.data...question.value...images.children...heads.figure...shown.hidden...problem.children...files.children@X..": (
        ["sample.value", "ask.n_clicks"], ["question.value", "uploads.data"]),
    "..tokens.children...loss.children...problem.children@X...{\"image\":[\"ALL\"]}.figure..": (
        ["answer.data", "heads.clickData", "all.n_clicks", "map.n_clicks"], ["kind.value", "size.value", "scale.value"]),
    "sample.value": (["address.search"], []),
}  # fmt: skip


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of harm in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: _attack(random.Random(s), w, f, KINDS[k]))


Client = Any  # of Flask


def _attack(
    rng: random.Random, world: World, folder: Path, attack: Callable[[random.Random, Client, str, Path], None]
) -> None:
    """Attack a page with a run. Afterwards it still answers, nothing was read or written elsewhere, and no traceback said."""
    secret, token, desk_folder = folder / "secret", secrets.token_urlsafe(16), folder / "desk"
    secret.write_text(SECRET)
    desk_folder.mkdir()
    session = live.LiveSession(mp.load_model("tiny-spd"), desk_folder, mp.open_run(world.run))
    client = live.build_page(session, token).server.test_client()
    said = StringIO()
    with redirect_stderr(said), patch.dict(os.environ, {"XDG_CACHE_HOME": str(desk_folder)}):
        attack(rng, client, token, secret)
    assert "Traceback" not in said.getvalue(), said.getvalue()[:300]
    assert client.get(f"/{token}/").status_code == 200, "the page is gone"
    assert secret.read_text() == SECRET
    assert {path.name for path in folder.iterdir()} == {"secret", "desk"}, "something was written elsewhere"


def _guess_token(rng: random.Random, client: Client, token: str, secret: Path) -> None:
    for wrong in (
        "",
        "x" * 22,
        token[:-1],
        token.lower() + "A",
        token + "A",
        "%00",
        token[:-1] + "%00",
        "*",
        "." * 9,
    ):
        for path in (
            "",
            "report",
            "_dash-layout",
            "_dash-dependencies",
            "_dash-update-component",
            "assets/a",
        ):
            call = rng.choice([client.get, client.post, client.put, client.delete, client.options])
            answer = call(f"/{wrong}/{path}", data=rng.choice(TEXTS).encode("utf-8", "replace"))
            assert answer.status_code in (301, 308, 400, 403, 404, 405), (
                f"/{wrong}/{path}: {answer.status_code}"
            )
            assert token not in answer.text


def _leave_folder(rng: random.Random, client: Client, token: str, secret: Path) -> None:
    for path in rng.sample(HOSTILE_PATHS, 10):
        path = path.format(file=rng.choice([secret, "/etc/passwd", secret.name]))
        answer = client.get(f"/{token}{path}".encode("utf-8", "replace").decode())
        assert SECRET not in answer.text and "root:x:0" not in answer.text, path
        assert "def " not in answer.text or "javascript" in answer.content_type, f"{path}: a program was sent"


def _call_from_elsewhere(rng: random.Random, client: Client, token: str, secret: Path) -> None:
    for headers in (
        {"Host": "example.org"}, {"Host": "127.0.0.1.example.org"}, {"Host": "example.org:80"}, {"Host": "0.0.0.0"},
        {"Origin": "https://example.org"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "file://"},
        {"Origin": "http://localhost.example.org"}, {"Host": "localhost", "Origin": "http://127.0.0.1"},
    ):  # fmt: skip
        path = rng.choice(["", "report", "_dash-layout", "_dash-update-component"])
        call = client.post if path.startswith("_dash-u") else client.get
        answer = call(f"/{token}/{path}", headers=headers)
        assert answer.status_code == 403, f"{headers}: {answer.status_code}"
    own = client.get(f"/{token}/", headers={"Host": "localhost", "Origin": "http://localhost"})
    assert own.status_code == 200 and own.headers["X-Frame-Options"] == "DENY"


def _send_much(rng: random.Random, client: Client, token: str, secret: Path) -> None:
    """A body that is too large, as it is or only as it says, and one that is nested too deeply."""
    path = f"/{token}/_dash-update-component"
    limit = live.LARGEST_REQUEST
    for length in (limit + 1, 10**18):
        answer = client.post(path, json={}, environ_overrides={"CONTENT_LENGTH": str(length)})
        assert answer.status_code == 413, answer.status_code
    for body in (b"[" * 100_000, b'{"a":' * 100_000, b"\xff" * 10_000, b"", b"null", b"[]", b"1e999"):
        answer = client.post(path, data=body, content_type=rng.choice(["application/json", "text/plain", ""]))
        assert 400 <= answer.status_code < 600
    image = "data:image/png;base64," + "A" * (live.LARGEST_UPLOAD * 4 // 3 + 200)
    answer = _update(
        client, token, next(iter(OUTPUTS)), {"upload.contents": [image], "upload.filename": ["a.png"]}
    )
    assert answer.status_code == 200 and "is over" in answer.text
    assert not list((secret.parent / "desk").glob("upload-*"))


def _update(
    client: Client, token: str, output: str, values: dict[str, Any], changed: str | None = None
) -> Any:
    """Make a call as the page does, with any values."""
    inputs, states = OUTPUTS[output]

    def describe(name: str) -> dict[str, Any]:
        part, _, prop = name.rpartition(".")
        return {"id": part, "property": prop, "value": values.get(name)}

    known = client.get(f"/{token}/_dash-dependencies").json
    (name,) = [each["output"] for each in known if _is_output(each["output"], output)]
    parts = name.strip(".").split("...")
    outputs = [{"id": part.rpartition(".")[0], "property": part.rpartition(".")[2]} for part in parts]
    body = {
        "output": name,
        "outputs": outputs if name.startswith("..") else outputs[0],
        "inputs": [describe(each) for each in inputs],
        "changedPropIds": [changed or inputs[0]],
        "state": [describe(each) for each in states],
    }
    return client.post(f"/{token}/_dash-update-component", json=body)


def _is_output(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace("@X", "@?[0-9a-f]*"), name) is not None


def _send_values(rng: random.Random, client: Client, token: str, secret: Path) -> None:
    """Calls of the page with values that it never sends."""
    hostile = [
        *TEXTS,
        *VALUES,
        str(secret),
        f"../{secret.name}",
        "..",
        ["../secret"],
        [str(secret)],
        ["x"] * 50,
    ]
    hostile += [
        {"points": [{"x": 1e9, "y": -5}]},
        {"points": []},
        {"points": [{"x": "a", "y": None}]},
        -(10**9),
        [""],
    ]
    for _ in range(12):
        output = rng.choice(list(OUTPUTS))
        inputs, states = OUTPUTS[output]
        values = {name: rng.choice(hostile) for name in (*inputs, *states)}
        if rng.random() < 0.5:
            values["question.value"] = "Why?"
        try:
            json.dumps(values, allow_nan=False).encode()
        except ValueError:  # JSON cannot hold it
            continue
        answer = _update(client, token, output, values, rng.choice([*inputs, "nobody.value"]))
        assert SECRET not in answer.text and "Traceback" not in answer.text
        assert answer.status_code in (200, 204, 400, 500), answer.status_code


def _send_bytes(rng: random.Random, client: Client, token: str, secret: Path) -> None:
    """Send bytes that are not requests and open silent connections; the server must still answer."""
    found: list[Any] = []
    began = threading.Event()

    def ready(address: str, stop: Callable[[], None]) -> None:
        found.extend([address, stop])
        began.set()

    said = StringIO()
    with redirect_stderr(said):
        server = threading.Thread(
            target=live.serve, args=(mp.load_model("tiny-spd"),), kwargs={"ready": ready}, daemon=True
        )
        server.start()
        assert began.wait(30)
        address = urlsplit(found[0])
        port, path = address.port, address.path
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for line in (b"\0" * 500, b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01",
                     b"POST " + path.encode() + b"_dash-update-component HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n{",
                     b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n"):  # fmt: skip
            with socket.create_connection(("127.0.0.1", port)) as other, suppress(OSError):
                other.settimeout(5)
                other.sendall(line)
                other.shutdown(socket.SHUT_WR)
                assert SECRET.encode() not in other.recv(10_000)
        with socket.create_connection(("127.0.0.1", port)) as own:
            own.settimeout(20)
            own.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b" 200 " in own.recv(1000), "the page is gone"
        for each in silent:
            each.close()
        found[1]()
        server.join(20)
    assert "Traceback" not in said.getvalue(), said.getvalue()[-500:]
    assert path.strip("/") not in said.getvalue(), "the token was said"


KINDS: dict[str, Callable[[random.Random, Client, str, Path], None]] = {
    "tokens": _guess_token,
    "paths": _leave_folder,
    "origins": _call_from_elsewhere,
    "bodies": _send_much,
    "values": _send_values,
    "bytes": _send_bytes,
}
