"""The workers of a training: processes started by torchrun, each with a share of the users, and their communication.

torchrun sets RANK, WORLD_SIZE, ... and serves the store by which they connect. They use torch.distributed: gloo between CPUs,
NCCL between GPUs. They send numbers or JSON, never pickles. A training of one worker imports none of it.
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

from surf2vec.trainer.errors import ResourceError, SurfError
from surf2vec.trainer.store.writer import Writer

if TYPE_CHECKING:  # torch takes a second to import
    import torch
    from torch.distributed import Store

POLL_SECONDS = 0.02
TIMEOUT_SECONDS = 600
"""A worker that is silent for so long counts as lost."""


class WorkerLostError(SurfError):
    """Another worker of the training ended or does not respond."""

    code = "worker_lost"


class Workers:
    """Worker `rank` of `num`. All workers call the same methods in the same order. Raises WorkerLostError when another fails."""

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
        """Begin to send these numbers to all workers. Returns a function that waits for those of all, float64[W, n] by rank."""
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
        """Begin to replace numbers float32[n] by their sum over all workers. Returns the handle to wait for."""
        import torch.distributed as dist

        with self.raise_if_lost():
            return dist.all_reduce(numbers, async_op=True)

    def pass_on(self, out: NDArray[np.uint8], into: NDArray[np.uint8]) -> list[Any]:
        """Begin to send bytes to the previous worker, and to receive bytes from the next. Returns the handles to wait for."""
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
        """Send a JSON value. Returns the values of all workers, by rank. Any thread may call it, one at a time."""
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
        """Raise WorkerLostError when torch.distributed reports that another worker is lost."""
        try:
            yield
        except RuntimeError as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise WorkerLostError(
                f"worker {self.rank} lost touch with one of the {self.num} workers ({first}): torchrun --max-restarts "
                "restarts them, and the training resumes from its last commit"
            ) from None


ALONE = Workers()


def join_workers(on_gpu: bool) -> Workers:
    """Connect to the workers that torchrun started with this one. Returns ALONE without torchrun, or if it started one."""
    num = int(os.environ.get("WORLD_SIZE", "1"))
    if num == 1 or "RANK" not in os.environ:
        return ALONE
    import torch
    import torch.distributed as dist

    if on_gpu and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpu and torch.cuda.is_available() else "gloo"
        # Otherwise NCCL's watchdog aborts the process where a worker is lost, and no error says so.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        timeout = timedelta(seconds=TIMEOUT_SECONDS)
        store, rank, _ = next(dist.rendezvous("env://", timeout=timeout))
        store = dist.PrefixStore(find_each_other(store, rank, num), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=num, timeout=timeout)
    return Workers(dist.get_rank(), num)


def find_each_other(store: "Store", rank: int, num: int) -> str:
    """Return a name for this start of the workers, the prefix of their addresses in the store.

    When torchrun restarts workers, it keeps the store with the entries of the dead ones. So each worker writes its id, the first
    lists all ids, and the start begins once the list has every worker's. Raises WorkerLostError after TIMEOUT_SECONDS.
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
    """Write the remaining files by `write_last`; then the first worker writes the manifest with the files of all.

    Raises the errors of `write_last` and of the manifest; ResourceError when another worker could not write.
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
    """Do the work. If it fails on one worker, that worker raises its error, and the others ResourceError with its message."""
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


def run_on_first(workers: Workers, work: Callable[[], Any]) -> None:
    """Do the work on the first worker. The others wait, and raise ResourceError if it fails."""
    agree_on(workers, work if workers.is_first else lambda: None)
