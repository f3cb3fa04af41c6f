"""Sources staged in parts, wherever hands are: each part is some of the logs, with a crew of its own.

Nothing but paths, counts and settings goes to a part and back. Which users there are, of a first ingest, lies in a file.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tasks.ingest.formats import LogFile, recognise
from tasks.ingest.remote_logs import RemoteLogs
from tasks.ingest.stage_here import Log, Staging, open_crew
from tasks.ingest.staging import Progress, Staged
from trainer.events import OnEvent
from trainer.system.fan_out import FanOut, cut


class AnyCrew(Protocol):
    """Who stages the sources of a call: a `Crew` in this process, or many of them."""

    def sample_users(self, logs: Sequence[Log]) -> set[int]: ...

    def stage(self, logs: Sequence[Log], partitions: int, is_loaded: bool) -> Iterator[Staged]: ...


@contextmanager
def choose_crew(
    staging: Staging, remote: RemoteLogs, num_logs: int, progress: Progress, fan_out: FanOut
) -> Iterator[AnyCrew]:
    """A crew in this process, or one for each part of the logs where there are hands for it and more than one log."""
    if fan_out.num_parts > 1 and num_logs > 1:
        threads = fan_out.choose_threads(staging.threads)
        yield DividedCrew(replace(staging, threads=threads), fan_out, progress.on_event)
    else:
        with open_crew(staging, remote, num_logs, progress) as crew:
            yield crew


@dataclass(frozen=True)
class LogsPart:
    """Some of the logs of a call; partitions: 0 where it is not known yet."""

    staging: Staging
    logs: tuple[Log, ...]
    partitions: int = 0


@dataclass(frozen=True)
class DividedCrew:
    """Stages parts of the logs, each of about as many bytes, wherever `fan_out` has hands."""

    staging: Staging
    fan_out: FanOut
    on_event: OnEvent

    def sample_users(self, logs: Sequence[Log]) -> set[int]:
        """The hashes of one in SAMPLE_FACTOR of the users of all sources."""
        paths = self.fan_out.run(sample_part, self._divide(logs, 0), self.on_event)
        return {user_hash for path in paths for user_hash in np.load(path, allow_pickle=False).tolist()}

    def stage(self, logs: Sequence[Log], partitions: int, is_loaded: bool) -> Iterator[Staged]:
        """Stage every source; yields them in order. Nothing is loaded before."""
        for staged in self.fan_out.run(stage_part, self._divide(logs, partitions), self.on_event):
            yield from staged

    def _divide(self, logs: Sequence[Log], partitions: int) -> list[LogsPart]:
        places = cut([max(1, source.bytes) for _, source in logs], self.fan_out.num_parts)
        return [LogsPart(self.staging, tuple(logs[place] for place in part), partitions) for part in places]


def sample_part(part: LogsPart, on_event: OnEvent) -> Path:
    """A file with the hashes of one in SAMPLE_FACTOR of the users of a part, uint64[n]."""
    with _open_own_crew(part, on_event) as crew:
        hashes = np.array(sorted(crew.sample_users(part.logs)), dtype=np.uint64)
    path = Path(tempfile.mkdtemp(dir=part.staging.folder, prefix="users.")) / "hashes.npy"
    np.save(path, hashes, allow_pickle=False)
    return path


def stage_part(part: LogsPart, on_event: OnEvent) -> list[Staged]:
    """Stage the sources of a part into a folder of its own."""
    with _open_own_crew(part, on_event) as crew:
        return list(crew.stage(part.logs, part.partitions, is_loaded=False))


@contextmanager
def _open_own_crew(part: LogsPart, on_event: OnEvent) -> Iterator[AnyCrew]:
    staging = part.staging
    folder = Path(tempfile.mkdtemp(dir=staging.folder, prefix="part."))

    def look(path: Path) -> LogFile:
        return recognise(path, staging.config)

    progress = Progress(sum(source.bytes for _, source in part.logs), on_event)
    with open_crew(
        replace(staging, folder=folder), RemoteLogs(staging.downloads, look), len(part.logs), progress
    ) as crew:
        yield crew
