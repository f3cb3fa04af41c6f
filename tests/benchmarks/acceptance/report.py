"""What a step of the acceptance reports: lines of PASS, FAIL or SKIPPED, each in the step's JSON file as soon as it is known."""

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PASS, FAIL, SKIPPED = "PASS", "FAIL", "SKIPPED"


class Report:
    """The lines of a step. rehearses: whether it is tried with the interpreter and tiny sizes; folder: for the step's files."""

    def __init__(self, path: Path, rehearses: bool) -> None:
        self.path, self.rehearses, self.folder = path, rehearses, path.parent / "work"
        self.lines: list[dict[str, Any]] = []
        self.started = time.perf_counter()
        self.folder.mkdir(exist_ok=True)
        self._flush()

    def size(self, on_card: int, rehearsed: int) -> int:
        """A size on a card, or in a rehearsal."""
        return rehearsed if self.rehearses else on_card

    def add(self, name: str, passed: bool, why: str = "", **figures: Any) -> None:
        """A line that is judged; why: in words, above all why it failed."""
        self._add(name, PASS if passed else FAIL, why, figures)

    def skip(self, name: str, why: str) -> None:
        """A line that could not be tried, and why."""
        self._add(name, SKIPPED, why, {})

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """An error becomes a line that failed, and the step continues."""
        try:
            yield
        except ModuleNotFoundError:
            raise
        except Exception as error:
            self.add(name, False, describe(error), trace=traceback.format_exc())

    def keep(self, name: str, text: str) -> None:
        """Keep what a program printed, for the archive."""
        (self.path.parent / name).write_text(text, encoding="utf-8")

    def _add(self, name: str, verdict: str, why: str, figures: dict[str, Any]) -> None:
        self.lines.append({"line": name, "verdict": verdict, "why": why, "figures": figures})
        self._flush()

    def _flush(self) -> None:
        reported = {"step": self.path.stem, "seconds": time.perf_counter() - self.started, "lines": self.lines}
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(reported, indent=1, default=str), encoding="utf-8")
        os.replace(temporary, self.path)


def run_step(step: Callable[[Report], None]) -> int:
    """Run a step as `--out FILE [--rehearse]` says. An error in it is a FAIL, a missing package a SKIPPED."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    report = Report(arguments.out, arguments.rehearse)
    try:
        step(report)
    except ModuleNotFoundError as error:
        report.skip("the rest of the step", f"needs the package {error.name}, which is not installed")
    except Exception as error:
        report.add("the rest of the step", False, describe(error), trace=traceback.format_exc())
    return 0


def describe(error: Exception) -> str:
    """An error's type and first line."""
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first[:400]}"


def device_name() -> str:
    """The card of this process, or the interpreter."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "Triton's interpreter"
