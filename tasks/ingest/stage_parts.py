"""Sources staged in parts, on this machine or others: each part is some of the logs, with stagers of its own.

Only paths, counts and settings go to a part and back. Which users there are, of a first ingest, lies in a file.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasks.ingest.formats import LogFile, recognise
from tasks.ingest.remote_logs import RemoteLogs
from tasks.ingest.stage_here import Log, Stagers, Staging, open_stagers
from tasks.ingest.staging import Progress, Staged
from trainer.events import OnEvent
from trainer.system.fan_out import FanOut, cut


@dataclass(frozen=True)
class LogsPart:
    """Some of the logs of a call; partitions: 0 where it is not known yet."""

    staging: Staging
    logs: tuple[Log, ...]
    partitions: int = 0


@dataclass(frozen=True)
class DividedStagers:
    """Stages parts of the logs, each of about as many bytes, wherever `fan_out` runs them."""

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


@contextmanager
def choose_stagers(
    staging: Staging, remote: RemoteLogs, num_logs: int, progress: Progress, fan_out: FanOut
) -> Iterator[Stagers | DividedStagers]:
    """Stagers in this process, or some for each part of the logs where there is more than one log and one machine."""
    if fan_out.num_parts > 1 and num_logs > 1:
        threads = fan_out.choose_threads(staging.threads)
        yield DividedStagers(replace(staging, threads=threads), fan_out, progress.on_event)
    else:
        with open_stagers(staging, remote, num_logs, progress) as stagers:
            yield stagers


def sample_part(part: LogsPart, on_event: OnEvent) -> Path:
    """A file with the hashes of one in SAMPLE_FACTOR of the users of a part, uint64[n]."""
    with _open_own_stagers(part, on_event) as stagers:
        hashes = np.array(sorted(stagers.sample_users(part.logs)), dtype=np.uint64)
    path = Path(tempfile.mkdtemp(dir=part.staging.folder, prefix="users.")) / "hashes.npy"
    np.save(path, hashes, allow_pickle=False)
    return path


def stage_part(part: LogsPart, on_event: OnEvent) -> list[Staged]:
    """Stage the sources of a part into a folder of its own."""
    with _open_own_stagers(part, on_event) as stagers:
        return list(stagers.stage(part.logs, part.partitions, is_loaded=False))


@contextmanager
def _open_own_stagers(part: LogsPart, on_event: OnEvent) -> Iterator[Stagers]:
    staging = part.staging
    folder = Path(tempfile.mkdtemp(dir=staging.folder, prefix="part."))

    def look(path: Path) -> LogFile:
        return recognise(path, staging.config)

    progress = Progress(sum(source.bytes for _, source in part.logs), on_event)
    with open_stagers(
        replace(staging, folder=folder), RemoteLogs(staging.downloads, look), len(part.logs), progress
    ) as stagers:
        yield stagers
