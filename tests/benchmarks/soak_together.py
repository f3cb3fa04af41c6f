"""First nights of different roots at the same time on one stack: all end, and nothing of one is found in another."""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.release.folder import README
from surf2vec.tasks.root.identity import read_root_id
from surf2vec.tasks.root.run import Root
from tests.benchmarks.harness import make_case
from tests.benchmarks.soak import SETTINGS, Place, open_place, write_day
from tests.roots.releases import read_items, read_users

NIGHT_BYTES = 650_000_000
"""Of one night's process; 624 MB were seen."""
DAYS = 3


@dataclass(frozen=True)
class Night:
    """One root, and the process of its night."""

    name: str
    place: Place
    process: "subprocess.Popen[bytes]"

    @property
    def root(self) -> Root:
        return Root(self.place.root)

    def find_faults(self, uri: str) -> list[str]:
        """What is wrong with what it left: in its root and in the registry."""
        out = self.place.folder / "out"
        if self.process.returncode:
            return [
                f"{self.name} ended with {self.process.returncode}: {(self.place.folder / 'err').read_text()[-2000:]}"
            ]
        told = json.loads(out.read_text())
        versions = read_model(uri, self.name).versions
        if [(one.number, one.tags["release"], one.tags["surf2vec_root"]) for one in versions] != [
            (1, told["release"], read_root_id(self.root))
        ]:
            return [f"{self.name} registered {versions}"]
        pulled, export = self.place.folder / "pulled", self.root.export(told["release"])
        pull(f"models:/{self.name}@champion", pulled, uri)
        users, (urls, _) = read_users(pulled), read_items(pulled)
        faults = [one for one in users if not one.startswith(f"{self.name}-")]
        faults += [url for url in urls if not url.startswith(f"https://{self.name}.org/")]
        files = [path.relative_to(export) for path in export.rglob("*") if path.is_file() and path.name != README]
        faults += [str(path) for path in files if (export / path).read_bytes() != (pulled / path).read_bytes()]
        return [f"{self.name}: {fault}" for fault in faults] + ([] if users and urls else [f"{self.name} is empty"])


def start_night(folder: Path, stack: Any, number: int) -> Night:
    """A root with logs of its own, and its first night."""
    name = f"soak{number:02d}"
    place = Place(folder / name, stack)
    today = datetime.now(UTC).date()
    for day in range(DAYS):
        write_day(place.folder / "logs", today + timedelta(day - DAYS), day, name)
    settings = SETTINGS | {"publish.model_name": name}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "surf2vec.flows.cli",
        "run",
        "--root",
        str(place.root),
        "--logs",
        str(place.folder / "logs/*.csv"),
    ]
    with open(place.folder / "out", "wb") as out, open(place.folder / "err", "wb") as err:
        process = subprocess.Popen([*command, *options, "--json"], stdout=out, stderr=err)
    return Night(name, place, process)


def run_together(num_roots: int) -> dict[str, Any]:
    """The case of as many nights at the same time as were asked for, or as the memory carries."""
    with tempfile.TemporaryDirectory(prefix="soak.", dir="/tmp") as name, open_place(Path(name), True) as place:
        assert place.stack
        num, started = min(num_roots, psutil.virtual_memory().available // NIGHT_BYTES), time.monotonic()
        nights = [start_night(place.folder, place.stack, number) for number in range(num)]
        peak = 0
        while any(night.process.poll() is None for night in nights):
            running = [psutil.Process(night.process.pid) for night in nights if night.process.poll() is None]
            peak = max(peak, sum(one.memory_info().rss for one in running))
            time.sleep(1)
        seconds = time.monotonic() - started
        uri = place.stack.client_environment["MLFLOW_TRACKING_URI"]
        faults = [fault for night in nights for fault in night.find_faults(uri)]
        faults += compare_runs(place, nights)
    for fault in faults[:10]:
        print(fault, file=sys.stderr)
    return make_case(
        f"{num} nights at the same time", 1.0 if not faults else 0.0, "all end, 0 mixed", not faults and num > 0
    ) | {"asked": num_roots, "faults": len(faults), "seconds": seconds, "peak_mb": peak / 1e6}


def compare_runs(place: Place, nights: list[Night]) -> list[str]:
    """What is wrong with the runs on the Prefect server: there is one of each root, and it is completed."""
    import psycopg2

    assert place.stack
    query = "select parameters ->> 'root', state_name from flow_run"
    with closing(psycopg2.connect(place.stack._database("prefect"))) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        found = sorted(cursor.fetchall())
    expected = [(str(night.place.root), "Completed") for night in nights]
    return [] if found == expected else [f"runs on the server: {found}"]
