"""Hostile input: logs, URLs, releases and texts drawn by a seed (tests/hostile); what must hold, held.

Written logs, of every format and compression, with W3C, GA4's nested JSON and queries: events, rejects and what is left out are
those of a model in plain Python, line by line; of every fourth the corpus is that of the plain rules of cleaning. Changed logs,
also of all layouts: refused by a message, or lines = events + rejected + left out; never a traceback. URLs: the same item in
whole columns, alone, after SQL's cut and of itself; the page that a browser opens (ada-url). Releases that lie, opened in
Python and pulled: refused. A night of hostile ids and pages: inert.

    python -m tests.benchmarks.hostile [--files 5000] [--urls 1000000] [--seed 1] [--only CASE] [--standard FILE]

--only: written, changed, urls, releases or pages. --standard: urltestdata.json of the URL standard (web-platform-tests), which
is not part of this repository.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import make_case, run_benchmark
from tests.hostile import logs
from tests.hostile import urls as drawn


def measure_hostile(
    data: Path, files: int = 5000, urls: int = 1_000_000, seed: int = 1, only: str = "", standard: str = ""
) -> list[dict[str, Any]]:
    """A case for each kind of input."""
    warnings.simplefilter("ignore")
    cases: dict[str, Callable[[], Any]] = {
        "urls": partial(check_urls, urls, seed),
        "written": partial(check_files, logs.check_written, files // 2, seed),
        "changed": partial(check_files, logs.check_changed, files - files // 2, seed),
        "releases": check_releases,
        "pages": check_pages,
    }
    if standard:
        cases["standard"] = partial(check_standard, Path(standard))
    return [measure(name, case, seed) for name, case in cases.items() if only in ("", name)]


def measure(name: str, check: Callable[[], Any], seed: int) -> dict[str, Any]:
    started = time.monotonic()
    found = check()
    for fault in found.faults:
        print(f"{name}: {fault}", file=sys.stderr, flush=True)
    counts = {key: value for key, value in vars(found).items() if isinstance(value, int | float)}
    return (
        make_case(name, 1.0 if not found.faults else 0.0, "0 faults", not found.faults)
        | counts
        | {"faults": len(found.faults), "seconds": round(time.monotonic() - started, 1), "seed": seed}
    )


def check_files(check: Callable[[Path, int, logs.Found], None], num: int, seed: int) -> logs.Found:
    found = logs.Found()
    for number in range(num):
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder), seed * 1_000_000 + number, found)
    return found


def check_urls(num: int, seed: int) -> Any:
    found = drawn.check_urls(num, seed)
    drawn.check_long(found)
    return found


def check_standard(path: Path) -> Any:
    return drawn.check_standard(path)


def check_releases() -> Any:
    from tests.hostile.releases import check_releases

    with tempfile.TemporaryDirectory() as folder:
        return check_releases(Path(folder))


def check_pages() -> Any:
    from tests.hostile.pages import check_pages

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Chromium's children may still write
        return check_pages(Path(folder))


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_hostile, small={"files": 40, "urls": 1000}))
