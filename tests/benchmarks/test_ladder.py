"""The ladder: rungs at a tiny size, what is asked of them, the arithmetic of gains."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks.ladder import climb, show_rung
from tests.benchmarks.ladder_rungs import Outcome, Rung, family_bytes, lay_ground
from tests.benchmarks.ladder_torch import Question, evaluate
from tests.data.corpora import write_corpus

FIRST = Outcome(seconds=100, hit_at_20=0.3, peak_bytes=800_000_000, busy_cores=0.0, epochs=20, is_stopped=False)
SECOND = dataclasses.replace(
    FIRST, seconds=40, evaluations=[{"seconds": 2, "hit_at_20": 0.2}, {"seconds": 4, "hit_at_20": 0.25}]
)
THIRD = dataclasses.replace(FIRST, seconds=8, hit_at_20=0.2)
STEP = Rung("a step", lambda ground, seed: FIRST)


def test_a_rung_of_several_seeds_tells_the_median_the_highest_peak_and_the_lowest_quality(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"a": [0, 1], "b": [1, 2]}, partitions=1)
    ground = lay_ground(corpus, tmp_path / "ground", epochs=1, limit_seconds=1)
    rung = Rung("quick", lambda ground, seed: {1: FIRST, 2: SECOND, 3: THIRD}[seed], is_quick=True)
    (case,) = climb([rung], ground, 0.25)
    assert (case["seconds"], case["hit@20"], case["peak MB"]) == (40, 0.2, 800)


def test_gains() -> None:
    first, second, third = (show_rung(STEP, "cpu", [FIRST, SECOND, THIRD][:n], 0.25) for n in (1, 2, 3))
    assert [case["ratio"] for case in (first, second, third)] == [1, 2.5, 12.5]
    assert [case["over the one before"] for case in (first, second, third)] == [None, 2.5, 5]
    assert [case["first at quality"] for case in (first, second, third)] == [None, 4, None]
    assert [case["passed"] for case in (first, second, third)] == [True, True, False]
    assert second["case"] == "cpu 2 a step"


def test_nobody_knows_what_a_rung_gains_that_was_stopped() -> None:
    stopped = dataclasses.replace(SECOND, is_stopped=True)
    assert show_rung(STEP, "cpu", [FIRST, stopped], 0.25)["over the one before"] is None
    assert show_rung(STEP, "cpu", [FIRST, stopped, THIRD], 0.25)["over the one before"] == 5  # at least


@pytest.mark.parametrize("keeps_graph", [True, False])
def test_items_seen_before_are_not_ranked(keeps_graph: bool) -> None:
    items = torch.arange(25, 0, -1, dtype=torch.float32)[:, None].requires_grad_()  # item 0 ranks first
    users = torch.ones(3, 1)
    question = Question(
        rows=torch.tensor([0, 1, 2]), items=torch.tensor([19, 20, 20]), seen_rows=torch.tensor([2]),
        seen_items=torch.tensor([4]),
    )  # fmt: skip
    loss, hit = evaluate(users, items, question, keeps_graph)
    assert hit == pytest.approx(2 / 3)
    assert loss == pytest.approx((19.4587 + 20.4587 + 20.4470) / 3, abs=1e-3)


def test_memory_of_a_process_is_that_of_its_children_too() -> None:
    grow = "import sys; block = bytearray(80_000_000); print(flush=True); sys.stdin.read()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grow!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 80e6 < family_bytes(process.pid) < 160e6
        process.communicate()
    assert family_bytes(process.pid) == 0
