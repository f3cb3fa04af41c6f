"""The workers of a training: processes that torchrun started, each with a share of the users, and what they send each other.

torchrun sets RANK, WORLD_SIZE, ... and has the store where they meet. They send by torch.distributed: gloo between processors,
NCCL between GPUs. Nothing is pickled: numbers, or JSON. A training of one worker imports none of it.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ResourceError, SurfError
from trainer.store.writer import Writer

if TYPE_CHECKING:  # torch takes a second to import
    import torch
    from torch.distributed import Store

POLL_SECONDS = 0.02
TIMEOUT_SECONDS = 600
"""After so long without a word a worker is taken to be lost."""


class WorkerLostError(SurfError):
    """Another worker of the training ended or does not answer."""

    code = "worker_lost"


class Workers:
    """Worker `rank` of `num`. Every worker calls the same methods in the same order; errors of the others are WorkerLostError."""

    def __init__(self, rank: int = 0, num: int = 1) -> None:
        self.rank, self.num = rank, num
        if num > 1:
            import torch.distributed as dist

            self._commits = dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
            self._ring = dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))

    @property
    def is_alone(self) -> bool:
        return self.num == 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, values: Sequence[float]) -> Callable[[], NDArray[np.float64]]:
        """Begin to send all workers these numbers; returns what waits for the numbers of each, float64[W, n] by rank."""
        import torch
        import torch.distributed as dist

        own = torch.tensor(values, dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in range(self.num)]
        with self.raise_if_lost():
            work = dist.all_gather(parts, own, async_op=True)

        def result() -> NDArray[np.float64]:
            self.wait(work)
            return np.stack([part.numpy() for part in parts])

        return result

    def add_up(self, numbers: "torch.Tensor") -> Any:
        """Begin to replace numbers float32[n] by their sum over all workers; returns what to wait for."""
        import torch.distributed as dist

        with self.raise_if_lost():
            return dist.all_reduce(numbers, async_op=True)

    def pass_on(self, out: NDArray[np.uint8], into: NDArray[np.uint8]) -> list[Any]:
        """Begin to send bytes to the worker before this one, and to receive those of the one after; returns what to wait for."""
        import torch
        import torch.distributed as dist

        with self.raise_if_lost():
            return [
                dist.isend(torch.from_numpy(out), (self.rank - 1) % self.num, group=self._ring),
                dist.irecv(torch.from_numpy(into), (self.rank + 1) % self.num, group=self._ring),
            ]

    def wait(self, work: Any) -> None:
        with self.raise_if_lost():
            work.wait()

    def gather_json(self, value: Any) -> list[Any]:
        """Send a JSON value; returns those of all workers, by rank. Any thread may call it, one at a time."""
        if self.is_alone:
            return [value]
        import torch
        import torch.distributed as dist

        data = json.dumps(value).encode()
        with self.raise_if_lost():
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.num)]
            dist.all_gather(lengths, torch.tensor([len(data)]), group=self._commits)
            longest = max(int(length) for length in lengths)
            own = torch.from_numpy(np.frombuffer(data.ljust(longest), dtype=np.uint8).copy())
            parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.num)]
            dist.all_gather(parts, own, group=self._commits)
        return [json.loads(part.numpy()[: int(length)].tobytes()) for part, length in zip(parts, lengths, strict=True)]

    @contextmanager
    def raise_if_lost(self) -> Iterator[None]:
        """Raise WorkerLostError for what torch.distributed raises when another worker is gone."""
        try:
            yield
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise WorkerLostError(
                f"worker {self.rank} lost touch with one of the {self.num} workers ({first}): torchrun --max-restarts "
                "starts them again, and the training goes on from its last commit"
            ) from None


ALONE = Workers()


def join_workers(on_gpu: bool) -> Workers:
    """Meet the workers that torchrun started with this one; the only worker where it did not, or started one."""
    num = int(os.environ.get("WORLD_SIZE", "1"))
    if num == 1 or "RANK" not in os.environ:
        return ALONE
    import torch
    import torch.distributed as dist

    if on_gpu and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpu and torch.cuda.is_available() else "gloo"
        timeout = timedelta(seconds=TIMEOUT_SECONDS)
        store, rank, _ = next(dist.rendezvous("env://", timeout=timeout))
        store = dist.PrefixStore(find_each_other(store, rank, num), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=num, timeout=timeout)
    return Workers(dist.get_rank(), num)


def find_each_other(store: "Store", rank: int, num: int) -> str:
    """Return a name for this start of the workers, under which they write their addresses.

    torchrun keeps the store when it starts workers again, with what the dead ones wrote. So each writes that it is there, the
    first lists all it found, and they agree once the list has everybody. Raises WorkerLostError after TIMEOUT_SECONDS.
    """
    own, deadline = uuid.uuid4().hex, time.monotonic() + TIMEOUT_SECONDS
    store.set(f"there/{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            keys = [f"there/{other}" for other in range(num)]
            if store.check(keys):
                store.set("all", "".join(store.get(key).decode() for key in keys))
        if store.check(["all"]):
            named = store.get("all").decode()
            if own in named:
                store.set(f"agreed/{rank}", named)
                agreed = [f"agreed/{other}" for other in range(num)]
                if store.check([f"go/{named}"]):
                    return named
                if rank == 0 and store.check(agreed) and all(store.get(key).decode() == named for key in agreed):
                    store.set(f"go/{named}", "")
                    continue
        time.sleep(POLL_SECONDS)
    raise WorkerLostError(
        f"worker {rank} of {num} waited {TIMEOUT_SECONDS} s for the others, who did not come: start all of them"
    )


def commit_together(writer: Writer, workers: Workers, values: dict[str, Any], write_last: Callable[[], None]) -> None:
    """Write what is left by `write_last`; then the first worker writes the manifest, and what all wrote counts.

    Raises what `write_last` or the manifest raised here; ResourceError for what another worker could not write.
    """

    def write() -> None:
        write_last()
        writer.sync()

    def put_manifest() -> None:
        if workers.is_first:
            writer.commit(values)
        else:
            writer.generation += 1

    agree_on(workers, write)
    for fresh in workers.gather_json(writer.take_fresh()):
        writer.add_written(fresh)
    agree_on(workers, put_manifest)


def agree_on(workers: Workers, work: Callable[[], Any]) -> None:
    """Do the work; where one worker cannot, it raises what went wrong, and the others ResourceError that says it."""
    failure: SurfError | OSError | None = None
    try:
        work()
    except (SurfError, OSError) as error:
        failure = error
    messages = workers.gather_json(str(failure) if failure else None)
    if failure:
        raise failure
    for rank, message in enumerate(messages):
        if message:
            raise ResourceError(f"worker {rank} of {workers.num} failed, so that nothing was committed: {message}")


def first_does(workers: Workers, work: Callable[[], Any]) -> None:
    """Let the first worker do the work; the others wait for it, and raise ResourceError where it fails."""
    agree_on(workers, work if workers.is_first else lambda: None)
