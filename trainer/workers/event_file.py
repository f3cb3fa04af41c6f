"""A file of JSON lines in which workers report to the process that started them.

The first worker writes its events and its result. Every worker writes the error that ended it. A line is one write, so lines
of several workers do not mix. The reader skips a line that a killed worker left incomplete.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from surf2vec.trainer.errors import SurfError

RESULT, ERROR = "result", "error"


class EventFile:
    """Writes events to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._append("")  # ends an incomplete line

    def __call__(self, name: str, values: dict[str, Any]) -> None:
        """Write an event (trainer/events.py)."""
        self._append(json.dumps({"name": name, "values": values}))

    def _append(self, line: str) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())


class EventReader:
    """Reads events from the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.position, self.rest = path, 0, b""

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and values of each event since the last call."""
        with open(self.path, "rb") as file:
            file.seek(self.position)
            data = file.read()
        self.position += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                event = json.loads(line)
                yield event["name"], event["values"]


def error_of(values: dict[str, Any]) -> SurfError:
    """Return the error that a worker wrote, of the class with its code."""
    kinds = [SurfError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return next((kind for kind in kinds if kind.code == values["code"]), SurfError)(values["message"])
