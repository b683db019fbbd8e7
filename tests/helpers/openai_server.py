"""A server on this machine that speaks the OpenAI protocol and answers what a function says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def serve_openai(answer: Callable[[str, int], str | None]) -> Iterator[str]:
    """Yield the address of a server, as its clients' base URL.

    Args:
        answer: returns the answer to a text and a number of images; None to refuse the question.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(200, {"object": "list", "data": [{"id": "served", "object": "model"}]})

        def do_POST(self) -> None:
            if not self.path.endswith("/chat/completions"):
                self._reply(
                    404, {"error": {"message": self.path, "type": "invalid_request_error", "code": None}}
                )
                return
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            parts = [part for message in asked["messages"] for part in _parts(message["content"])]
            text = " ".join(part["text"] for part in parts if part["type"] == "text")
            images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
            assert all(url.startswith("data:image/png;base64,") for url in images)
            said = answer(text, len(images))
            if said is None:
                self._reply(400, {"error": {"message": "no", "type": "invalid_request_error", "code": None}})
                return
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "1", "object": "chat.completion", "created": 1, "model": asked["model"]}
            self._reply(200, reply | {"choices": [choice], "usage": usage})

        def _reply(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
