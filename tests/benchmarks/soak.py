"""Nights of a small root, one after another, on a clock that a night sets forward by a day: what grows, and what stays?

Each night there is a log of about a thousand lines more, of users of whom a third return a day; a few users and pages a day
are new, and as many never come again. `surf2vec run`, and `surf2vec gc` once a week, run in processes of their own, with the
stack's servers (`--on stack`: PostgreSQL, Prefect, MLflow and a worker stay up all nights) or with the root's own files
(`--on root`). A small preloaded library (soak_clock.c, needs gcc) is the clock of all servers and
commands, so that Prefect's removal of old records happens as it does in a year. After each night the bytes, files, memory, open
files and seconds are noted in OUT/nights.jsonl. From the 30th night on each quantity has its slope a night (Theil and Sen, with
its 95 % interval). One is flat if 100 nights add no more than 2 % of it, by the lower end of the interval. What is said to grow
has no mark.

Then as many first nights of different roots as `--stack_roots` says run at the same time on one stack (soak_together.py).

    python -m tests.benchmarks.soak [--nights 300] [--stack_roots 30] [--on root|stack] [--minutes 0: no limit] [--out DIR]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.stats import theilslopes

from surf2vec.infra.stack import Stack
from surf2vec.trainer.errors import HeldBackError
from tests.benchmarks.harness import make_case, run_benchmark

CLOCK, LIBRARY = "clock", "clock.so"
DAY_SECONDS = 86_400
FIRST_DAYS, SETTLED, HORIZON, MOST_GROWTH = 14, 30, 100, 0.02
GC_DAYS = 7
USERS, NEW_USERS, PAGES, NEW_PAGES, TOPICS, RETURNING = 600, 5, 400, 2, 10, 1 / 3
SETTINGS: dict[str, Any] = {
    "window_days": FIRST_DAYS, "nightly.retain_days": 20,  # so that users and pages are as many after 30 nights as after 300
    "train.threads": 1, "train.vector_size": 16, "gate.newest_day_events": 0.3, "resources.host_memory": "1GB",
}  # fmt: skip
SAID = (
    {"events bytes": "the log", "events files": "the log", "sources.json bytes": "the log's files"}
    | {"runs bytes": "a record and a report a night", "runs files": "a record and a report a night"}
    | {"mlflow bytes": "a run a night", "artifacts bytes": "a report a night"}
    | {"artifacts files": "a report a night", "root bytes": "log, records, reports"}
    | {"root files": "log, records, reports", "postgres server MB": "shared buffers, up to 128 MB"}
    | {"postgres server files": "each connection keeps its tables open"}
)
LATER = {"prefect bytes": 100}
"""The night from which what grows at first is judged: the stack's Prefect keeps runs for 90 days."""
ELSEWHERE = "a release a night: copies in a registry that is not the root's stay"


@dataclass(frozen=True)
class Place:
    """A root, its logs, and the servers that it uses; none: its own."""

    folder: Path
    stack: Stack | None = None

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def call(self, *arguments: str, settings: dict[str, Any] = SETTINGS) -> dict[str, Any]:
        """What a command prints, and what it took. Raises SystemExit when it fails; a held release is no failure."""
        options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "surf2vec.flows.cli", *arguments, "--root", str(self.root), *options, "--json"]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = time.monotonic()
            process = subprocess.Popen(command, stdout=out, stderr=err)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - started
            for file in (out, err):
                file.seek(0)
            if process.returncode not in (0, HeldBackError.exit_code):
                raise SystemExit(f"{command} ended with {process.returncode}: {err.read().decode()[-3000:]}")
            told = dict(json.loads(out.read()))
        cost = {"seconds": seconds, "processor seconds": used.ru_utime + used.ru_stime, "MB": used.ru_maxrss / 1024}
        return {"told": told, "cost": cost, "held": process.returncode != 0}


@contextmanager
def open_place(folder: Path, has_stack: bool) -> Iterator[Place]:
    """A place whose processes have the clock of `set_clock`."""
    before = dict(os.environ)
    folder.chmod(0o711)  # PostgreSQL has an account of its own
    source, library = Path(__file__).with_name("soak_clock.c"), folder / LIBRARY
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    set_clock(folder, 0)
    os.environ |= {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(folder / CLOCK), "OMP_NUM_THREADS": "1"}
    try:
        if not has_stack:
            yield Place(folder)
            return
        with Stack(folder / "stack").running() as stack:
            os.environ |= stack.client_environment
            yield Place(folder, stack)
    finally:
        os.environ.clear()
        os.environ.update(before)


def set_clock(folder: Path, days: int) -> None:
    """Set the clock of all processes of this place, by days from now; at once, as they have mapped the file."""
    with open(folder / CLOCK, "r+b" if (folder / CLOCK).exists() else "wb") as file:
        file.write((days * DAY_SECONDS).to_bytes(8, "little"))


def write_day(folder: Path, day: date, number: int, owner: str = "a") -> None:
    """The log of a day: sessions of a third of the users, most of them within a user's topic, from a page to the next."""
    rng = np.random.default_rng([number, *owner.encode()])
    lines = []
    for user in (number * NEW_USERS + np.flatnonzero(rng.random(USERS) < RETURNING)).tolist():
        second = int(rng.integers(0, 86_000))
        topic = user % TOPICS if rng.random() < 0.8 else int(rng.integers(TOPICS))
        place = int(rng.integers(PAGES // TOPICS))
        for step in range(int(rng.integers(2, 9))):
            page = number * NEW_PAGES // TOPICS * TOPICS + topic + TOPICS * (place % (PAGES // TOPICS))
            at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=second + 20 * step)
            lines.append((at, f"{owner}-{user},https://{owner}.org/s{topic}/{page},{at:%Y-%m-%dT%H:%M:%SZ}\n"))
            place += 1 if rng.random() < 0.7 else int(rng.integers(PAGES))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{day}.csv").write_text("user_id,url,ts\n" + "".join(line for _, line in sorted(lines)))


def run_nights(place: Place, nights: int, minutes: int, notes: Path) -> list[dict[str, Any]]:
    """All nights, or as many as the minutes allow; what was seen of each, also a line each in the file `notes`."""
    seen: list[dict[str, Any]] = []
    end, today = time.monotonic() + (minutes or 10**6) * 60, datetime.now(UTC).date()
    for number in range(FIRST_DAYS - 1):
        write_day(place.folder / "logs", today + timedelta(number - FIRST_DAYS), number)
    with open(notes, "w", encoding="utf-8") as file:
        for night in range(nights):
            if time.monotonic() > end:
                break
            write_day(place.folder / "logs", today + timedelta(night - 1), FIRST_DAYS - 1 + night)
            set_clock(place.folder, night)
            run = place.call("run", "--logs", str(place.folder / "logs" / "*.csv"))
            gc = place.call("gc", settings={})["cost"] if night % GC_DAYS == 0 else {}
            seen.append(
                {"night": night + 1, "kind": run["told"]["night"]["kind"], "held": run["held"]}
                | {"users": run["told"]["users"]}
                | {f"night {name}": value for name, value in run["cost"].items()}
                | {f"gc {name}": value for name, value in gc.items()}
                | measure_place(place)
            )
            file.write(json.dumps(seen[-1]) + "\n")
            file.flush()
    return seen


def measure_place(place: Place) -> dict[str, float]:
    """Bytes and files of a root and its parts, and of the databases and artifacts; memory and open files of the servers."""
    seen = Counter[str]()
    for path in place.root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            for name in ("root", path.relative_to(place.root).parts[0]):
                seen.update({f"{name} bytes": path.stat().st_size, f"{name} files": 1})
    found = {name: float(value) for name, value in seen.items() if not name.startswith("ml")}
    artifacts = Path(place.stack.artifacts) if place.stack else place.root / "mlartifacts"
    files = [path for path in artifacts.rglob("*") if path.is_file()]
    found |= {"artifacts bytes": sum(path.stat().st_size for path in files), "artifacts files": len(files)}
    if not place.stack:
        return found | {"mlflow bytes": float(sum(path.stat().st_size for path in place.root.glob("mlflow.db*")))}
    import psycopg2

    with closing(psycopg2.connect(place.stack._database("postgres"))) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select datname, pg_database_size(datname) from pg_database where datname in ('prefect', 'mlflow')"
        )
        found |= {f"{name} bytes": float(size) for name, size in cursor.fetchall()}
    for name, service in place.stack.services.items():
        assert service.process
        there = psutil.Process(service.process.pid)
        found |= {f"{name} server MB": 0.0, f"{name} server files": 0.0}
        for one in [there, *there.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # a connection of PostgreSQL that ended meanwhile
                found[f"{name} server MB"] += one.memory_full_info().pss / 1e6
                found[f"{name} server files"] += one.num_fds()
    return found


def quantities(seen: list[dict[str, Any]]) -> list[str]:
    found = {name for one in seen for name, value in one.items() if not isinstance(value, str | bool)}
    return sorted(found - {"night"})


def series(seen: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The nights and the values of a quantity; a file that is not there has 0, a `gc` that did not run has none."""
    there = [one for one in seen if name in one or not name.startswith("gc ")]
    return [one["night"] for one in there], [float(one.get(name, 0)) for one in there]


def judge(seen: list[dict[str, Any]], name: str, said: dict[str, str]) -> dict[str, Any]:
    """The case of a quantity: its slope from the 30th night on (see LATER), or from the middle of fewer nights."""
    first = min(LATER.get(name, SETTLED), len(seen) // 2)
    nights, values = series(seen[first:], name)
    slope, _, low, high = theilslopes(values, nights, 0.95)
    level = float(np.median(values)) or 1.0
    growth = HORIZON * max(float(low), 0.0) / level
    grows = growth > MOST_GROWTH
    return (
        make_case(
            name,
            1 / (1 + growth),
            "none" if name in said else f"+{MOST_GROWTH:.0%} in {HORIZON}",
            name in said or not grows,
        )
        | {"30th": float(values[0]), "last": float(values[-1]), "a night": float(slope)}
        | {"low": float(low), "high": float(high), "grows": said.get(name, "unsaid") if grows else "no"}
        | {"nights": len(seen)}
    )


def measure_soak(
    _: Path, nights: int = 300, stack_roots: int = 30, on: str = "stack", minutes: int = 0, out: str = "soak"
) -> list[dict[str, Any]]:
    """A case a quantity, then the cases of nights at the same time."""
    from tests.benchmarks.soak_together import run_together

    folder, cases = Path(out), []
    folder.mkdir(parents=True, exist_ok=True)
    if nights:
        with (
            tempfile.TemporaryDirectory(prefix="soak.", dir="/tmp") as name,
            open_place(Path(name), on == "stack") as place,
        ):
            seen = run_nights(place, nights, minutes, folder / "nights.jsonl")
        said = SAID | ({"artifacts bytes": ELSEWHERE, "artifacts files": ELSEWHERE} if on == "stack" else {})
        held = sum(one["held"] for one in seen)
        cases = [judge(seen, name, said) | {"held": held} for name in quantities(seen[len(seen) // 2 :])]
    if stack_roots:
        cases.append(run_together(stack_roots))
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_soak, small={"nights": 3, "stack_roots": 0, "on": "root"}))
