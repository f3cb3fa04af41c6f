"""What workers report, as lines of JSON in a file that the process which started them follows.

The first worker writes its events and at last its result, every worker the error that ended it. A line is one write, so
lines of several workers do not mix; one that a killed worker left half written is passed over.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.errors import SurfError

RESULT, ERROR = "result", "error"


class EventFile:
    """The side that writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._append(b"")  # ends the line that was left half written

    def __call__(self, name: str, values: dict[str, Any]) -> None:
        """Write an event (trainer/events.py)."""
        self._append(json.dumps({"name": name, "values": values}).encode())

    def _append(self, line: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(line + b"\n")

    def tell_error(self, rank: int, error: SurfError) -> None:
        """Write what ended a worker."""
        self(ERROR, {"rank": rank, "code": error.code, "message": str(error)})


class EventReader:
    """The side that follows."""

    def __init__(self, path: Path) -> None:
        self.path, self.position, self.rest = path, 0, b""

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names and values of the events that were written since."""
        with open(self.path, "rb") as file:
            file.seek(self.position)
            data = file.read()
        self.position += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line) if line else None
            except ValueError:
                continue
            if event:
                yield event["name"], event["values"]


def error_of(values: dict[str, Any]) -> SurfError:
    """The error that a worker wrote, of the class that has its code."""
    kinds = [SurfError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return next((kind for kind in kinds if kind.code == values["code"]), SurfError)(values["message"])
