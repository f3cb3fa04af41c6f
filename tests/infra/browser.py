"""Debian's Chromium without a window, driven over its DevTools protocol: what a test does with a page as a person would."""

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--window-size=1180,900",
)
WAIT_SECONDS = 30.0


class Browser:
    """One page. `js` in these methods is an expression of JavaScript."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM
        self.process = subprocess.Popen(
            [PROGRAM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.socket = self._connect(folder)
        self.last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)

    def _connect(self, folder: Path) -> ClientConnection:
        import httpx

        end = time.monotonic() + WAIT_SECONDS
        while not (told := folder / "DevToolsActivePort").exists() or not told.read_text().strip():
            assert time.monotonic() < end, "chromium did not open its port"
            time.sleep(0.1)
        port = told.read_text().split()[0]
        pages = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=WAIT_SECONDS).json()
        page = next(page for page in pages if page["type"] == "page")
        return connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=WAIT_SECONDS)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer; events in between are passed over."""
        self.last_id += 1
        self.socket.send(json.dumps({"id": self.last_id, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=WAIT_SECONDS))
            if answer.get("id") == self.last_id:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def ask(self, js: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=js, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (js, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, js: str, seconds: float = WAIT_SECONDS) -> Any:
        """The first true value of an expression; fails with what the page says when there is none."""
        end = time.monotonic() + seconds
        while not (value := self.ask(js)):
            assert time.monotonic() < end, f"{js}\nis not true of the page, which says:\n{self.text()[:3000]}"
            time.sleep(0.2)
        return value

    def text(self) -> str:
        return str(self.ask("document.body?.innerText ?? ''"))

    def wait_for_text(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        self.wait_for(f"(document.body?.innerText ?? '').includes({json.dumps(text)})", seconds)

    def click(self, js: str) -> None:
        """Click, with the mouse, on the element that the expression finds, once it stands still."""
        self.wait_for(f"!!({js})")
        place = (
            f"(() => {{ const e = {js}; if (!e) return [-1, -1]; e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        before, at = None, self.ask(place)
        while before != at:
            time.sleep(0.3)
            before, at = at, self.ask(place)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def fill(self, js: str, text: str) -> None:
        """Replace the text of the input that the expression finds, by typing."""
        self.click(js)
        self.ask(f"{js}.select()")
        self.call("Input.insertText", text=text)
        self.wait_for(f"{js}.value == {json.dumps(text)}")

    def screenshot(self, file: Path) -> None:
        """What a person sees, once it stands still."""
        time.sleep(3)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def saying(text: str) -> str:
    """The innermost element that says this and nothing else."""
    return f"[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() == {json.dumps(text)}).pop()"


def field(title: str) -> str:
    """The input of the form's field with this title."""
    names = json.dumps([title, f"{title} (Optional)"])
    return (
        "(() => { const has = e => e.querySelector('input, textarea');"
        f" let e = [...document.querySelectorAll('*')].filter(e => {names}.includes(e.innerText?.trim()) && !has(e)).pop();"
        " while (e && !has(e)) e = e.parentElement; return e && has(e) })()"
    )
