"""What long histories cost a card: the speed with the lengths of real logs beside the speed where all users are equally long.

No card is needed, as its time is a model: a card runs so many programs at a time, which share its speed, but one alone is no
faster than its own latency permits. Programs begin in the order of their launch. A program trains a user, a pair a step, or a
stream of tiles, a pair of each lane a step, whether a lane has a user or not. A launch has the users of a micro-partition, drawn
from the log; so many launches are in progress at once, each in a stream of its own, and begin when the one before in that stream
has ended. Epochs follow each other without a pause. `longest first` sorts the programs of a launch. Lanes are filled, at
most, as the streams permit; and as they would if users were sorted by length before, which no kernel does.

The card's figures are guesses for an H200 (docs/gpu.md): 400 M pairs/s private in 132 * 18 programs, 2.5 us a pair alone; 600 M
in tiles in 132 * 2 programs, 7 us a step alone. The mark is of what ships: four at once.
"""

import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from surf2vec.tasks.config import IngestConfig
from surf2vec.trainer.kernels.signature import STREAM_USERS
from surf2vec.trainer.plan.in_flight import MOST_AT_ONCE
from tests.benchmarks.harness import run_benchmark

LOGS = ("gowalla_train", "yoochoose_100k", "entree", "msnbc", "wikispeedia_unfinished")
USERS_A_LAUNCH, NUM_LAUNCHES = 50_000, 16
MARK = 0.9
LANES = 32


@dataclass(frozen=True)
class Card:
    """programs: at a time; pairs_a_second: of all together; alone_seconds: of a program's step, at least; lanes: pairs a step."""

    programs: int
    pairs_a_second: float
    alone_seconds: float
    lanes: int


CARDS = {"tiles": Card(132 * 2, 600e6, 7e-6, LANES), "private": Card(132 * 18, 400e6, 2.5e-6, 1)}
WAYS = {
    "one at once": (1, False), "one at once, longest first": (1, True), "four at once": (MOST_AT_ONCE, False),
    "four at once, longest first": (MOST_AT_ONCE, True),
}  # fmt: skip
SHIPPED = "four at once"


def measure_tails(data: Path) -> list[dict[str, Any]]:
    """A case a log and program: the share of the speed with equal lengths, of each way to launch."""
    cases = []
    for log in LOGS:
        lengths = history_lengths(data / f"{log}.parquet")
        rng = np.random.default_rng(1)
        drawn = [rng.choice(lengths, USERS_A_LAUNCH) for _ in range(NUM_LAUNCHES)]
        equal = [np.full(USERS_A_LAUNCH, max(1, round(lengths.mean())))] * NUM_LAUNCHES
        for program, card in CARDS.items():
            best = pairs_a_second(equal, card, *WAYS[SHIPPED])
            shares = {way: pairs_a_second(drawn, card, *how) / best for way, how in WAYS.items()}
            filled = [share_filled(drawn[0], card), share_filled(-np.sort(-drawn[0]), card)]
            cases.append(
                {
                    "case": f"{log}, {program}", "ratio": shares[SHIPPED], "mark": f">= {MARK}",
                    "passed": shares[SHIPPED] >= MARK, "mean": float(lengths.mean()), "longest": int(lengths.max()), **shares,
                    "lanes filled": filled[0], "lanes filled, users sorted": filled[1],
                }
            )  # fmt: skip
    return cases


def history_lengths(log: Path) -> NDArray[np.int64]:
    """The events of each user of a log, as many as are kept."""
    events = pl.read_parquet(log)
    user = next((name for name in events.columns if name in ("user_id", "user")), events.columns[0])
    return np.minimum(events[user].value_counts()["count"].to_numpy(), IngestConfig().max_user_events).astype(np.int64)


def pairs_a_second(launches: Sequence[NDArray[np.int64]], card: Card, at_once: int, sorts: bool) -> float:
    """The speed of a card over launches of users with these lengths."""
    programs = [lengths if card.lanes == 1 else stream_steps(lengths) for lengths in launches]
    if sorts:
        programs = [-np.sort(-steps) for steps in programs]
    return sum(int(lengths.sum()) for lengths in launches) / seconds_of(programs, card, at_once)


def share_filled(lengths: NDArray[np.int64], card: Card) -> float:
    """The share of the lanes that have a user, over all steps of a micro-partition."""
    steps = lengths if card.lanes == 1 else stream_steps(lengths)
    return float(lengths.sum() / (card.lanes * steps.sum()))


def stream_steps(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The steps of each stream of a micro-partition: a lane whose user ends takes the stream's next one."""
    num = max(1, len(lengths) // STREAM_USERS)
    before = np.cumsum(lengths)
    starts = np.searchsorted(before, before[-1] * np.arange(1, num) / num, side="right")
    return np.array([lane_steps(users) for users in np.split(lengths, np.unique(starts)) if len(users)])


def lane_steps(lengths: NDArray[np.int64]) -> int:
    """The steps in which LANES lanes train users of these lengths."""
    ends = [0] * LANES
    for length in lengths.tolist():
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def seconds_of(launches: Sequence[NDArray[np.int64]], card: Card, at_once: int) -> float:
    """When the last program of all launches ends; a launch is the steps of its programs. All do as many steps a second."""
    waiting = [(number, steps) for number in range(min(at_once, len(launches))) for steps in launches[number].tolist()]
    left = [len(steps) for steps in launches]
    taken, done, seconds = 0, 0.0, 0.0
    running: list[tuple[float, int]] = []
    while taken < len(waiting) or running:
        while taken < len(waiting) and len(running) < card.programs:
            number, steps = waiting[taken]
            heapq.heappush(running, (done + steps, number))
            taken += 1
        end, number = heapq.heappop(running)
        speed = min(1 / card.alone_seconds, card.pairs_a_second / ((len(running) + 1) * card.lanes))
        seconds, done = seconds + (end - done) / speed, end
        left[number] -= 1
        if left[number] == 0 and number + at_once < len(launches):
            waiting += [(number + at_once, steps) for steps in launches[number + at_once].tolist()]
    return seconds


if __name__ == "__main__":
    sys.exit(run_benchmark("gpu_tail", __doc__ or "", measure_tails))
