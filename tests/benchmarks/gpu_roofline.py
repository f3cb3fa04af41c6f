"""Predicts pairs a second on five cards, from bytes and instructions a pair, and prints a table for docs/gpu.md.

    python -m tests.benchmarks.gpu_roofline

No card was there: bandwidth, clock and cache are those of data sheets, and the shares below are assumptions. A million items
whose popularity is 1 / rank, negatives by its root. The cache holds the rows that are wanted most; each other row is read and
added to.
"""

import sys
from dataclasses import dataclass

import numpy as np

NUM_ITEMS = 1_000_000
BANDWIDTH_SHARE = 0.88
CACHE_SHARE = 0.7
PRIVATE_SHARE, TILE_SHARE = 0.55, 0.25
"""Shares of what a card can do: of its bandwidth; of its second-level cache for rows; of its instructions, with about 12 warps a
multiprocessor that do not wait for each other, and with 8 that do, at 170 barriers a step."""


@dataclass(frozen=True)
class Card:
    """bytes_per_second: of its memory; hertz: of its clock; cache_bytes: its second-level cache;
    column: of its instructions in `Program`.
    """

    name: str
    bytes_per_second: float
    multiprocessors: int
    hertz: float
    cache_bytes: float
    column: int


CARDS = (
    Card("T4", 320e9, 40, 1.2e9, 4e6, 0),
    Card("RTX 3060", 360e9, 28, 1.78e9, 3e6, 1),
    Card("RTX 4070", 504e9, 46, 2.475e9, 36e6, 2),
    Card("H100", 3.35e12, 132, 1.76e9, 50e6, 3),
    Card("H200", 4.8e12, 132, 1.83e9, 60e6, 3),
)


@dataclass(frozen=True)
class Program:
    """instructions: of a warp a pair on sm_75, sm_86, sm_89 and sm_90, from the table of gpu_compile."""

    name: str
    dims: int
    negatives: int
    sharing: int
    instructions: tuple[int, int, int, int]


PROGRAMS = (
    Program("5 private", 128, 5, 1, (1169, 1172, 1172, 1076)),
    Program("10 private", 128, 10, 1, (2002, 2002, 2002, 1816)),
    Program("16 shared by 32", 128, 16, 32, (1204, 729, 729, 687)),
    Program("16 shared by 32", 64, 16, 32, (649, 370, 370, 342)),
)


def missed_rows(program: Program, cache_bytes: float) -> float:
    """Rows a pair that the cache does not have."""
    popularity = 1 / np.arange(1, NUM_ITEMS + 1)
    noise = np.sqrt(popularity)
    wanted = popularity / popularity.sum() + program.negatives / program.sharing * noise / noise.sum()
    num_cached = int(cache_bytes / (4 * program.dims + 20))
    return float(wanted[num_cached:].sum())


def predict(card: Card, program: Program) -> dict[str, float]:
    """Bytes and pairs a second of a program on a card."""
    row_bytes = 8 * program.dims
    memory_bytes = missed_rows(program, CACHE_SHARE * card.cache_bytes) * (row_bytes + 3 * 32)
    share = PRIVATE_SHARE if program.sharing == 1 else TILE_SHARE
    by_memory = BANDWIDTH_SHARE * card.bytes_per_second / memory_bytes
    by_instructions = 4 * card.multiprocessors * card.hertz / program.instructions[card.column]
    return {
        "bytes": row_bytes * (1 + program.negatives / program.sharing), "memory_bytes": memory_bytes,
        "by_memory": by_memory, "by_instructions": by_instructions, "predicted": min(by_memory, share * by_instructions),
    }  # fmt: skip


def main() -> int:
    print(
        "| card | negatives | numbers | bytes | of them memory | instructions | memory allows | all slots allow | prediction |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for card in CARDS:
        for program in PROGRAMS:
            found = predict(card, program)
            print(
                f"| {card.name} | {program.name} | {program.dims} | {found['bytes']:,.0f} | {found['memory_bytes']:,.0f} | "
                f"{program.instructions[card.column]:,} | {found['by_memory'] / 1e6:,.0f} | "
                f"{found['by_instructions'] / 1e6:,.0f} | {found['predicted'] / 1e6:,.0f} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
