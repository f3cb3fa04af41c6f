"""`python -m surf2vec.trainer` as the steps call it, and the made-up corpus that they share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.acceptance.report import Report

PLENTY_BYTES = 64 * 10**9


def shared_corpus(report: Report) -> Path:
    """The corpus of made-up users, made by the first step that needs it."""
    from tests.benchmarks.swap import write_corpus

    num_users = report.size(3_000_000, 8)
    folder = report.folder / f"corpus-{num_users}"
    if not (folder / "manifest.json").exists():
        sizes = (num_users, report.size(100_000, 12), report.size(48, 4))
        write_corpus(folder, *sizes)
    return folder


def settings_of(report: Report, **settings: Any) -> dict[str, Any]:
    """The shipped settings, two epochs; in a rehearsal with tiny rows."""
    tiny = {"vector_size": 4, "negative": 2} if report.rehearses else {}
    return {"epochs": 2, **tiny, **settings}


def run_trainer(
    corpus: Path, store: Path, settings: dict[str, Any], *, device: str = "cuda", host_bytes: int = PLENTY_BYTES,
    device_bytes: int | None = None, start: tuple[str, ...] = ("-m", "surf2vec.trainer"),
) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """Train in a process of its own. Its standard output is one JSON object."""
    config = store.with_suffix(".config.json")
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, *start, "--corpus", str(corpus), "--store", str(store), "--config", str(config)]
    command += ["--device", device, "--host-memory", str(host_bytes)]
    command += ["--device-memory", str(device_bytes)] if device_bytes else []
    return subprocess.run(command, capture_output=True, text=True, check=False)


def last_words(done: "subprocess.CompletedProcess[str]") -> str:
    """How a training ended, for a line that failed."""
    return f"exit {done.returncode}: {done.stderr.strip()[-600:]}"
