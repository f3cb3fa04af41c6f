"""The disks that may be there after a power loss during steps: what POSIX and Linux's file systems promise, and no more.

* The bytes of a file are on the disk once its fsync has ended that began after they were written. Before that, each block of
  them (512 bytes or 4 KiB) is there or is not, in any order; where the file has grown and a block is not there, it is zero.
* A name (created, linked, renamed, removed) is on the disk once an fsync of its folder has ended that began after it. Before
  that each change of a name is there or is not, in any order.
* A rename within a folder is atomic. One between folders adds the new name and then removes the old one: both may be there,
  never neither.
"""

from dataclasses import dataclass

import numpy as np

from tests.faults.power_loss.disk import Data, Disk, Inode, Names, Step, Sync, Tree, apply_data, set_name, walk

BLOCKS = (512, 4096)


@dataclass(frozen=True)
class Loss:
    """A power loss after so many steps. names, data: what becomes of what was not synced (see `NAMES` and `DATA`)."""

    point: int
    names: str
    data: str
    seed: int

    def __str__(self) -> str:
        return f"{self.point}:{self.names}:{self.data}:{self.seed}"


NAMES = ("kept", "lost", "prefix", "some", "one lost", "one kept")
DATA = ("kept", "lost", "zero", "torn", "blocks", "each its own")


def draw_losses(disk: Disk, num: int, seed: int) -> list[Loss]:
    """`num` losses, at points and in ways drawn by the seed. The extremes at the end and at the beginning are among them."""
    rng = np.random.default_rng(seed)
    losses = [
        Loss(point, names, data, seed) for point in (len(disk.steps), 0) for names in NAMES[:2] for data in DATA[:3]
    ]
    for number in range(num - len(losses)):
        names, data = rng.choice(NAMES), rng.choice(DATA)
        losses.append(Loss(int(rng.integers(len(disk.steps) + 1)), str(names), str(data), seed + number))
    return losses[:num]


def lose_power(disk: Disk, loss: Loss) -> Tree:
    """The files that are there after a power loss."""
    rng = np.random.default_rng([loss.seed, loss.point])
    steps = disk.steps[: loss.point]
    until, all_until = _find_synced(steps)
    names: dict[Inode, dict[str, Inode]] = {}
    pending: dict[Inode, list[tuple[int, Data]]] = {}
    for number in sorted(_choose_names(steps, until, all_until, loss.names, rng)):
        step = steps[number]
        assert isinstance(step, Names)
        for folder, name, inode in step.changes:
            set_name(names.setdefault(folder, dict(folder.base_names)), name, inode)
    for number, step in enumerate(steps):
        if isinstance(step, Data):
            pending.setdefault(step.inode, []).append((number, step))

    def content(inode: Inode) -> bytes:
        durable = max(until.get(inode, 0), all_until)
        mode = str(rng.choice(DATA[:5])) if loss.data == DATA[5] else loss.data
        return _draw_content(inode.base, pending.get(inode, []), durable, mode, rng)

    held_contents: dict[Inode, bytes] = {}

    def content_once(inode: Inode) -> bytes:
        if inode not in held_contents:  # hard links are one file
            held_contents[inode] = content(inode)
        return held_contents[inode]

    return dict(walk(disk.root, "", lambda inode: names.get(inode, inode.base_names), content_once))


def _find_synced(steps: list[Step]) -> tuple[dict[Inode, int], int]:
    """Before which step all of an inode is on the disk, and before which all of all."""
    until: dict[Inode, int] = {}
    all_until = 0
    for step in steps:
        if isinstance(step, Sync):
            if step.inode is None:
                all_until = max(all_until, step.since)
            else:
                until[step.inode] = max(until.get(step.inode, 0), step.since)
    return until, all_until


def _choose_names(
    steps: list[Step], until: dict[Inode, int], all_until: int, mode: str, rng: np.random.Generator
) -> set[int]:
    """The changes of names that are on the disk: all that were synced, and some of the others."""
    needed, free = set(), []
    for number, step in enumerate(steps):
        if isinstance(step, Names):
            if any(number < max(until.get(folder, 0), all_until) for folder, *_ in step.changes):
                needed.add(number)
            else:
                free.append(number)
    kept = _choose(free, mode, rng)
    chosen = needed | kept
    for number in sorted(chosen):
        step = steps[number]
        assert isinstance(step, Names)
        if step.needs is not None:
            chosen.add(step.needs)
    return chosen


def _choose(free: list[int], mode: str, rng: np.random.Generator) -> set[int]:
    if mode == "lost" or not free:
        return set()
    if mode == "prefix":
        return set(free[: int(rng.integers(len(free) + 1))])
    if mode == "some":
        return {number for number in free if rng.random() < 0.5}
    one = free[int(rng.integers(len(free)))]
    return {"kept": set(free), "one lost": set(free) - {one}, "one kept": {one}}[mode]


def _draw_content(
    base: bytes, steps: list[tuple[int, Data]], durable: int, mode: str, rng: np.random.Generator
) -> bytes:
    """The bytes of a file: what is synced, and of the rest what the mode says.

    lost: none. zero: the size has grown, but no byte came. torn: the steps up to one, which stops at a block's end.
    blocks: each block of each write came or did not; the size did.
    """
    data = bytearray(base)
    for number, step in steps:
        if number < durable:
            apply_data(data, step)
    free = [step for number, step in steps if number >= durable]
    if mode == "lost" or not free:
        return bytes(data)
    block = int(rng.choice(BLOCKS))
    if mode == "torn":
        last = int(rng.integers(len(free)))
        for step in free[:last]:
            apply_data(data, step)
        if free[last].size is None:
            num_blocks = len(free[last].content) // block
            apply_data(data, free[last], 0, block * int(rng.integers(num_blocks + 1)))
        return bytes(data)
    for step in free:
        if step.size is not None or mode == "kept":
            apply_data(data, step)
            continue
        end = step.offset + len(step.content)
        data.extend(bytes(max(0, end - len(data))))
        edges = range(-(step.offset % block), len(step.content), block) if mode == "blocks" else ()
        for start in edges:
            if rng.random() < 0.5:
                apply_data(data, step, max(start, 0), start + block)
    return bytes(data)
