"""A commit of several workers: each says what it wrote, the first writes the manifest that makes all of it count.

Where one of them could not write, none commits, and all say why.
"""

from collections.abc import Callable
from typing import Any

from trainer.errors import ResourceError, SurfError
from trainer.store.writer import Writer
from trainer.workers.group import Workers


def commit_together(writer: Writer, workers: Workers, values: dict[str, Any], write_last: Callable[[], None]) -> None:
    """Write what is left by `write_last`, then make a generation of what all workers wrote. With one worker nobody is asked.

    Raises what `write_last` or the manifest raised here; ResourceError for what another worker could not write.
    """

    def write() -> None:
        write_last()
        writer.sync()

    agree_on(workers, write)
    for fresh in workers.gather_json(writer.take_fresh()):
        writer.add_written(fresh)
    agree_on(workers, lambda: _put_manifest(writer, workers, values))


def agree_on(workers: Workers, work: Callable[[], Any]) -> None:
    """Do the work; where one worker cannot, all raise: it what went wrong, the others ResourceError that says it."""
    failure: SurfError | OSError | None = None
    try:
        work()
    except (SurfError, OSError) as error:
        failure = error
    told = workers.gather_json(str(failure) if failure else None)
    if failure:
        raise failure
    for rank, message in enumerate(told):
        if message:
            raise ResourceError(f"worker {rank} of {workers.num} failed, so that nothing was committed: {message}")


def first_does(workers: Workers, work: Callable[[], Any]) -> None:
    """Let the first worker do the work; the others wait for it, and raise ResourceError where it fails."""
    agree_on(workers, work if workers.is_first else lambda: None)


def _put_manifest(writer: Writer, workers: Workers, values: dict[str, Any]) -> None:
    if workers.is_first:
        writer.commit(values)
    else:
        writer.generation += 1
