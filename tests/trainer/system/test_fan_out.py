"""Work in parts: ranges that leave nothing out, and files that arrive whole or not at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.trainer.system.fan_out import HERE, cut, deliver_files


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 40))
def test_ranges_are_consecutive_and_leave_nothing_out(weights: list[int], num_parts: int) -> None:
    parts = cut(weights, num_parts)
    assert [number for part in parts for number in part] == list(range(len(weights)))
    assert 1 <= len(parts) <= num_parts
    assert all(parts)


def test_ranges_are_about_as_heavy_as_each_other() -> None:
    assert cut([1] * 8, 4) == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert cut([100, 1, 1, 1], 2) == [range(1), range(1, 4)]
    assert cut([5, 5, 5], 1) == [range(3)]
    assert cut([7], 4) == [range(1)]


def test_here_parts_are_done_in_order_and_only_when_asked_for() -> None:
    done: list[int] = []
    results = HERE.run(lambda part, on_event: done.append(part) or part * 2, [1, 2, 3], print)
    assert next(iter(results)) == 2
    assert done == [1]


def test_files_arrive_when_the_part_is_done(tmp_path: Path) -> None:
    scratch, target = tmp_path / "scratch", tmp_path / "target"
    scratch.mkdir()
    (target / "changed").mkdir(parents=True)
    with deliver_files(scratch, target) as folder:
        (folder / "a").write_text("1")
        (folder / "changed").mkdir()
        (folder / "changed" / "b").write_text("2")
        assert list(target.rglob("*.*")) == []
    assert [(target / name).read_text() for name in ("a", "changed/b")] == ["1", "2"]


def test_nothing_arrives_of_a_part_that_fails(tmp_path: Path) -> None:
    scratch, target = tmp_path / "scratch", tmp_path / "target"
    scratch.mkdir()
    target.mkdir()

    def work() -> None:
        with deliver_files(scratch, target) as folder:
            (folder / "a").write_text("half")
            raise OSError("the disk is full")

    (target / "a").write_text("1")
    with pytest.raises(OSError, match="the disk is full"):
        work()
    assert (target / "a").read_text() == "1"
    assert list(scratch.iterdir()) == []
