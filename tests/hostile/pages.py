"""A night of hostile ids and pages, and all that it leaves for people to read: the report, the lines in Prefect, the texts in
MLflow, the lines in a terminal. None has a tag, a link or a table of a log's making, nor a character that moves a cursor.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

from surf2vec.flows.cli.command import print_result
from surf2vec.flows.cli.show import show_result
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night import night
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.queries.explain import explain_user
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.root.run import Root, Run
from tests.faults.power_loss.registry import NIGHT
from tests.hostile.words import MARKUP, WORDS
from tests.infra.browser import PROGRAM, Browser
from tests.roots.ingest import write_log

MOVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
OWN_ICON = ("link", [("rel", "icon"), ("href", "data:,")])  # ours: the browser fetches no icon
LIVE = {"script", "img", "iframe", "object", "embed", "link", "base", "form"}

LIVE_ELEMENTS = """
[...document.querySelectorAll('*')].filter(one => ['SCRIPT', 'IMG', 'IFRAME', 'OBJECT', 'EMBED', 'BASE'].includes(one.tagName)
  || [...one.attributes].some(a => a.name.startsWith('on'))).map(one => one.outerHTML.slice(0, 99))
"""


@dataclass
class Found:
    """texts: what was looked at; seen: in how many of them a hostile page stands; browsed: pages that a browser opened."""

    texts: int = 0
    seen: int = 0
    browsed: int = 0
    faults: list[str] = field(default_factory=list)


class Tags(HTMLParser):
    """The names of all tags of a page, and of all attributes that run code or lead away."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.live: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if (tag, attrs) == OWN_ICON:
            return
        if tag in LIVE:
            self.live.append(tag)
        for name, value in attrs:
            if name.startswith("on") or re.match(r"\s*(javascript|data|https?):", value or "", re.IGNORECASE):
                self.live.append(f"{tag} {name}={value}")


def make_night(folder: Path) -> Root:
    """A night of users with hostile ids who visit hostile pages; each page is of several users, and in the vocabulary."""
    users, pages = [f"{word}{number}" for number, word in enumerate(WORDS)], [f"/{word}" for word in WORDS] + WORDS
    lines = []
    for number, user in enumerate(users):
        for n in range(12):
            page = pages[(number * 7 + n * n) % len(pages)]
            lines.append(",".join([quote(user), quote(page), f"2026-01-01T00:{n:02d}:{number:02d}Z"]))
    write_log(folder / "logs" / "a.csv", *lines)
    night.make_night(folder / "root", [f"{folder}/logs/*.csv"], config=load_config(None, NIGHT))
    return Root(folder / "root")


def quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def list_texts(root: Root) -> Iterator[tuple[str, str]]:
    """(where, text) of all that is not a table of vectors or JSON, which escapes by itself."""
    from surf2vec.flows.report import describe_night

    for path in sorted(root.path.rglob("*")):
        if path.suffix in (".html", ".md", ".txt", ".csv", ".yaml", ".log") or path.name == "MLmodel":
            yield str(path.relative_to(root.path)), path.read_text(encoding="utf-8")
    with sqlite3.connect(f"file:{root.path / 'mlflow.db'}?mode=ro", uri=True) as con:
        tables = [name for (name,) in con.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for row in con.execute(f'select * from "{table}"'):
                for value in row:
                    if isinstance(value, str):
                        yield f"mlflow.db {table}", value
    for run_id in list_runs(root):
        yield f"Prefect: {run_id}", describe_night(Run(root, run_id), PublishConfig())


def list_runs(root: Root) -> list[str]:
    return sorted(path.parent.name for path in root.path.glob("runs/*/run.json"))


def check_texts(root: Root, found: Found) -> None:
    words = [word for word in MARKUP if "<" in word]
    for where, text in list_texts(root):
        found.texts += 1
        found.seen += any(word in text or re.sub("<", "&lt;", word)[:12] in text for word in MARKUP)
        if match := MOVES.search(text):
            found.faults.append(f"{where}: {match[0]!r} at {match.start()}")
        if where.endswith(".html"):
            found.faults += [f"{where}: <{live}>" for live in Tags(text).live]
        elif any(word in text for word in words):
            found.faults.append(f"{where}: {text[:200]!r}")


def check_terminal(root: Root, found: Found) -> None:
    """`similar` and `explain` of hostile users, as a terminal gets them."""
    run = Run(root, list_runs(root)[-1])
    export = root.export(run.record().steps.export.release)  # type: ignore[union-attr,arg-type]
    for number, word in list(enumerate(WORDS))[::3]:
        user = f"{word}{number}"
        with redirect_stdout(StringIO()) as out:
            print_result(similar_users(root, export, user, 5), False, show_result)
            print_result(explain_user(root, PublishConfig(), user), False, show_result)
        found.texts += 1
        found.seen += any(word in out.getvalue() for word in MARKUP)
        if match := MOVES.search(out.getvalue()):
            found.faults.append(f"terminal, user {user!r}: {match[0]!r}")


def check_browser(root: Root, folder: Path, found: Found) -> None:
    """The reports as Chromium reads them: no element that runs or loads anything, and no dialog."""
    if PROGRAM is None:
        return
    with Browser(folder) as browser:
        for path in sorted(root.path.rglob("*.html")):
            browser.open(path.as_uri())
            browser.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")
            live = browser.ask(LIVE_ELEMENTS)
            found.browsed += 1
            found.faults += [f"{path.name} in a browser: {one}" for one in live]


def check_pages(folder: Path) -> Found:
    found, root = Found(), make_night(folder)
    check_texts(root, found)
    check_terminal(root, found)
    check_browser(root, folder / "browser", found)
    if not found.seen:
        found.faults.append("no hostile page is shown anywhere: nothing was looked at")
    return found
