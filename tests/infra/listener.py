"""A webhook on loopback that keeps what it is sent."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SECRET_PATH = "/hook-7f3a9c51d2e84b60"


class Listener:
    """Messages as they came; `url` is a secret, as real webhooks' are."""

    def __init__(self, wait_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.messages: list[dict[str, Any]] = []
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(wait_seconds())
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == SECRET_PATH:
                    messages.append(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}{SECRET_PATH}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def wait_for(self, alarm: str, word: str, seconds: float = 60) -> dict[str, Any]:
        """The message of this alarm that has the word in its text."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for message in list(self.messages):
                if message["alarm"] == alarm and word in message["text"]:
                    return message
            time.sleep(0.2)
        raise AssertionError(f"no {alarm} of {word} within {seconds} s; there were {self.messages}")
