"""Logs of every format, drawn by a seed.

Written logs come from records, so that a plain model knows each line's event, or why it makes none; from the events follows the
corpus, by the plain rules of `tests/data/cleaning_model.py`. Changed logs, also the samples of all layouts, have bytes flipped,
removed, repeated and put in between: they are refused by a message, or every line is an event, rejected or left out.
"""

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.layouts import list_layouts
from surf2vec.tasks.ingest.make_items import ASSET_PATTERN, PLACEHOLDERS
from surf2vec.tasks.ingest.staging import LEFT_OUT
from surf2vec.tasks.release.url_rules import TOKEN_PATTERN, UrlRules, canonical_item
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import ConfigError, InputError, RejectedError
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.files import read_json
from tests.data.cleaning_model import check_against, clean_plainly
from tests.data.event_files import Event
from tests.hostile.records import FORMATS, Record, Written, write_log
from tests.roots.ingest import read_events, read_rejects, take_in

REFUSALS = (InputError, ConfigError, RejectedError)
JUNK = [
    b'"', b"\n", b"\r", b"\r\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{", b"}", b"[", b"[" * 4000,
    b"\\u0000", b"\\ud800", b"1e999", b",", b"\t", b'""', b'{"user_id": {"a": [1]}, "url": 7, "ts": true}\n', b"\x1f\x8b",
    b"PAR1", b"NaN", b"9" * 400,
    b"\\", b"\x1a", b"\xc3", b"=1+1", b"<script>",
]  # fmt: skip


SAMPLES = [layout.sample.lstrip("\n").encode() for layout in list_layouts(IngestConfig()).values()]


@dataclass
class Model:
    """What a log makes, by the rules in plain Python: events (user_id, item, ts, line), and the reason of every other line."""

    events: list[tuple[str, str, datetime, int]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def rejects(self) -> list[tuple[int, str]]:
        return sorted((line, reason) for line, reason in self.reasons.items() if reason not in LEFT_OUT)

    @property
    def left_out(self) -> dict[str, int]:
        return dict(Counter(reason for reason in self.reasons.values() if reason in LEFT_OUT))


def model_log(log: Written, now: datetime) -> Model:
    """The rules of docs/logs.md, a record at a time."""
    model, pages = Model(), []
    has_requests = log.num_columns == 6
    for record, line in zip(log.records, log.lines, strict=True):
        user, url, fault = as_text(record, log.format)
        if (
            reason := fault
            or (judge_request(record) if has_requests else None)
            or ("not a page view" if log.format == "ga4" and record.method != "GET" else None)
            or ("URL too long" if size(url) > 8192 else None)
        ):
            model.reasons[line] = reason
        else:
            pages.append((line, user, url, record.ts))
    users_of_token: dict[str, set[str]] = {}
    for _, user, url, _ in pages:
        for token in re.findall(TOKEN_PATTERN, re.split("[?#]", url or "")[0]):
            users_of_token.setdefault(token, set()).add(user)
    shared = frozenset(token for token, users in users_of_token.items() if len(users - {None}) > 1)
    for line, user, url, ts in pages:
        item = None if url is None else canonical_item(url, UrlRules(), shared)
        at, time_fault = read_time(ts, log.format, now)
        path = re.split("[?#]", url or "")[0]
        is_asset = has_requests and re.search(ASSET_PATTERN.removesuffix("$") + r"\Z", path)
        page_fault = (
            "no page"
            if (url or "").strip().lower() in PLACEHOLDERS
            else "static asset"
            if is_asset
            else "not a page"
            if item is None
            else None
        )
        has_user = (user or "").strip().lower() not in PLACEHOLDERS
        user_fault = "no user" if not has_user else "user id too long" if size(user) > 1024 else None
        if reason := user_fault or ("no page" if url is None else None) or time_fault or page_fault:
            model.reasons[line] = reason
        else:
            assert user
            assert item
            assert at
            model.events.append((user, item, at, line))
    return model


def size(text: str | None) -> int:
    return len((text or "").encode())


def as_text(record: Record, format: str) -> tuple[str | None, str | None, str | None]:
    """User and URL as text, and the fault of a line that is none."""
    user, url = record.user_id, record.url
    if "\0" in (url or ""):
        return None, None, "NUL byte"
    if isinstance(user, float):
        if not user.is_integer():
            return None, None, "user is no whole number"
        user = int(user)
    user = None if user is None else str(user)
    if format == "access":
        user, url = "" if user == "-" else user, (url or "").replace("\\", "%5C").replace('"', "%22")
    if "\0" in (user or ""):
        return user, url, "NUL byte"
    return user, url, None


def judge_request(record: Record) -> str | None:
    if record.method.upper() not in ("GET", "", "-"):
        return "not a GET request"
    if record.status.isdigit() and int(record.status) >= 400:
        return "status 400 or above"
    return "crawler" if re.search("bot|curl", record.user_agent.casefold()) else None


def read_time(ts: str | None, format: str, now: datetime) -> tuple[datetime | None, str | None]:
    try:
        patterns = {"access": "%d/%b/%Y:%H:%M:%S %z", "w3c": "%Y-%m-%d %H:%M:%S"}
        pattern = patterns.get(format, "%Y-%m-%dT%H:%M:%SZ")
        at = datetime.strptime(ts or "", pattern).replace(tzinfo=None)
    except ValueError:
        return None, "time not readable"
    if at < datetime(1973, 3, 3, 9, 46, 40):
        return None, "time out of scale"
    return (None, "time in the future") if at > now + timedelta(days=1) else (at, None)


@dataclass
class Found:
    """What reading logs came to. faults: what should never be, with the seed of its log."""

    files: int = 0
    corpora: int = 0
    lines: int = 0
    events: int = 0
    rejected: int = 0
    left_out: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def count(self, record: dict[str, Any]) -> None:
        self.lines += record["lines"]
        self.events += record["events"]
        self.rejected += record["num_rejected"]
        self.left_out += sum(record["left_out"].values())


def check_written(folder: Path, seed: int, found: Found) -> None:
    """Write a log and read it: the same events, rejects and counts as the model's. Of every fourth the corpus is made, too."""
    draws = Random(seed)
    log = write_log(draws, draws.choice(FORMATS))
    root, model = folder / "root", model_log(log, datetime.now(UTC).replace(tzinfo=None))
    (folder / log.name).write_bytes(log.data)
    found.files += 1
    started = time.perf_counter()
    try:
        record = take_in(root, folder / log.name, partitions=draws.choice([1, 2, 8]), max_reject_ratio=1)
    except Exception as error:
        num_wrong = sum(reason.startswith("time ") for _, reason in model.rejects)
        is_doubted = "cannot be right" in str(error) and num_wrong >= len(model.events)
        if not is_doubted and (not isinstance(error, RejectedError) or model.events):
            found.faults.append(f"seed {seed} {log.name}: {type(error).__name__}: {error}"[:400])
        found.refused += 1
        if list((root / "events").rglob("*.parquet")):
            found.faults.append(f"seed {seed} {log.name}: refused, and yet there are events")
        return
    finally:
        found.slowest_seconds = max(found.slowest_seconds, time.perf_counter() - started)
    found.count(record)
    events = sorted(read_events(root, "user_id, url, ts, line"))
    rejects = [(line, reason) for _, line, reason in read_rejects(root)]
    for what, seen, expected in (
        ("events", events, sorted(model.events)), ("rejects", rejects, model.rejects),
        ("left out", record["left_out"], model.left_out), ("lines", record["lines"], len(log.records)),
    ):  # fmt: skip
        if seen != expected:
            found.faults.append(f"seed {seed} {log.name}: {what}: {differ(seen, expected)}")
    if seed % 4 == 0:
        check_corpus(root, model, seed, found)


def check_corpus(root: Path, model: Model, seed: int, found: Found) -> None:
    """Build the corpus of a written log with other limits each time: it is what the plain rules make of the model's events."""
    draws = Random(seed)
    config = IngestConfig(
        max_day_events=draws.choice([1, 3, 2000]), min_item_events=draws.randint(1, 3), min_item_users=draws.randint(1, 2),
        min_user_events=draws.randint(1, 3), max_user_events=draws.choice([2, 5, 1000]),
    )  # fmt: skip
    events = [Event(user, item, at.replace(tzinfo=UTC), "log", line) for user, item, at, line in model.events]
    plain, partitions = clean_plainly(events, config), read_json(root / "sources.json")["partitions"]
    max_users = draws.choice([0, 2, 20_000])
    found.corpora += 1
    try:
        request = CorpusRequest(config, EvaluateConfig(max_users=max_users))
        told = build_corpus(Root(root), request, 400_000_000, 1)
        check_against(open_corpus(Root(root).corpus(told["window_id"])), plain, partitions, max_users)
    except InputError as error:
        if plain.users or "nothing is left" not in str(error):
            found.faults.append(f"seed {seed}: the corpus is refused: {error}"[:400])
    except Exception as error:
        found.faults.append(f"seed {seed}: the corpus: {type(error).__name__}: {error}"[:400])


def differ(seen: Any, expected: Any) -> str:
    if isinstance(seen, list):
        only = [one for one in seen if one not in expected], [one for one in expected if one not in seen]
        return f"{str(only[0][:3])[:300]} instead of {str(only[1][:3])[:300]}"
    return f"{seen} instead of {expected}"


def change_bytes(draws: Random, data: bytes) -> bytes:
    """The data with up to eight changes: a bit, a range removed or repeated, junk in between, or an end too soon."""
    for _ in range(draws.choice([1, 1, 2, 4, 8])):
        at = draws.randrange(len(data) + 1)
        end = min(len(data), at + draws.choice([1, 2, 10, 200]))
        kind = draws.randrange(6)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << draws.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:end] + data[at:]
        elif kind == 3:
            data = data[:at]
        else:
            data = data[:at] + draws.choice(JUNK) + data[at:]
    return data


def check_changed(folder: Path, seed: int, found: Found) -> None:
    """Change the bytes of a log and read it: refused by a message, or no line is lost."""
    draws = Random(seed)
    if draws.random() < 0.2:
        name, data = "a", draws.choice(SAMPLES) * draws.randint(1, 9)
    else:
        log = write_log(draws, draws.choice(FORMATS))
        name, data = log.name, log.data
        if draws.random() < 0.1:
            name = draws.choice(["a.csv", "a.jsonl", "a.parquet", "a.log", "a.sql", "a.tsv.gz", "a"])
    data = draws.randbytes(draws.randrange(3000)) if draws.random() < 0.03 else change_bytes(draws, data)
    if draws.random() < 0.02:
        data = data.decode("utf-8", "replace").encode("utf-16")
    if draws.random() < 0.02:
        data += b"z" * 2_500_000  # longer than a line may be
    (folder / name).write_bytes(data)
    found.files += 1
    started = time.perf_counter()
    try:
        record = take_in(folder / "root", folder / name, partitions=2, max_reject_ratio=draws.choice([1, 1, 1, 0.01]))
    except REFUSALS:
        found.refused += 1
        if list((folder / "root" / "events").rglob("*.parquet")):
            found.faults.append(f"seed {seed} {name}: refused, and yet there are events")
        return
    except Exception as error:
        found.faults.append(f"seed {seed} {name}: {type(error).__name__}: {error}"[:400])
        return
    finally:
        found.slowest_seconds = max(found.slowest_seconds, time.perf_counter() - started)
    found.count(record)
    num_lines = record["events"] + record["num_rejected"] + sum(record["left_out"].values())
    if record["lines"] != num_lines:
        found.faults.append(f"seed {seed} {name}: {record['lines']} lines and {num_lines} accounted for")
    if set(record["formats"]) <= {"jsonl", "access"} and name.endswith((".jsonl", ".log")):
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        if (counted := sum(bool(line.strip(b" \t\r\n")) for line in lines)) != record["lines"]:
            found.faults.append(f"seed {seed} {name}: {counted} lines in the file, {record['lines']} read")
    if len(read_rejects(folder / "root")) != record["num_rejected"]:
        found.faults.append(f"seed {seed} {name}: the list of rejects is another")
