"""The index of nearest users: which kind the memory has room for, and that a quantised one finds what it says it does."""

from collections.abc import Iterator

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.export.index import IndexPlan, ReadRows, build_index, plan_index
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.trainer.errors import ResourceError

GB = 10**9
PRODUCT = IndexPlan("ivf64-pq4", "IVF64,PQ4np", num_lists=64, sample_rows=4096, peak_bytes=0, index_bytes=0)


def draw_units(num_rows: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    """Rows around a hundred centres, at length 1."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((100, dim), np.float32)
    return unit_rows(centres[rng.integers(0, 100, num_rows)] + 0.5 * rng.standard_normal((num_rows, dim), np.float32))


def reader(units: np.ndarray, batch: int = 1000, stretch: int = 50, asked: list[int] | None = None) -> ReadRows:
    def read(every: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if asked is not None:
            asked.append(every)
        rows = np.flatnonzero(np.arange(len(units)) // stretch % every == 0)
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            yield some, units[some]

    return read


def exact_neighbours(units: np.ndarray, rows: np.ndarray) -> np.ndarray:
    cosines = units[rows] @ units.T
    cosines[np.arange(len(rows)), rows] = -2
    return np.argsort(-cosines, axis=1)[:, :10]


@pytest.mark.parametrize(
    ("room_bytes", "kind"),
    [
        (4 * GB, "ivf4096-sq8"),
        (int(2.9 * GB), "ivf4096-sq6"),
        (2 * GB, "ivf4096-pq64"),
        (int(1.2 * GB), "ivf4096-pq32"),
    ],
)
def test_the_most_exact_kind_that_fits_twenty_million_users(room_bytes: int, kind: str) -> None:
    plan = plan_index(20_000_000, 128, room_bytes, 1_000_000)
    assert (plan.kind, plan.num_lists) == (kind, 4096)
    assert plan.reason.startswith(f"{kind}, as 20,000,000 users x 128 dimensions take ")
    assert ("ivf4096-sq8 would take 3." in plan.reason) == (kind != "ivf4096-sq8")


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        ResourceError, match=r"20,000,000 users x 128 dimensions, ivf4096-pq32, needs 1\.1 GB .* 500\.0 MB of the"
    ):
        plan_index(20_000_000, 128, GB // 2, 1_000_000)
    with pytest.raises(ResourceError, match=r"needs .* and 0 B of the budget are free: raise --host-memory"):
        plan_index(1000, 8, -5, 1_000_000)


def test_few_users_are_all_compared() -> None:
    assert plan_index(1_000_000, 128, 4 * GB, 1_000_000).kind == "flat-fp16"
    assert plan_index(1_000_001, 128, 4 * GB, 1_000_000).kind == "ivf1024-sq8"
    assert plan_index(0, 8, GB, 0).kind == plan_index(1, 8, GB, 1).kind == "flat-fp16"


@given(st.integers(1, 10**9), st.integers(1, 1024), st.integers(0, 10**11))
def test_no_plan_is_above_its_room_and_more_room_never_finds_less(num_rows: int, dim: int, room_bytes: int) -> None:
    codes = ["flat", "sq8", "sq6", f"pq{dim // 2}", f"pq{dim // 4}"]
    places = []
    for room in (room_bytes, 2 * room_bytes):
        try:
            plan = plan_index(num_rows, dim, room, 1_000_000)
        except ResourceError:
            places.append(len(codes))
        else:
            assert plan.peak_bytes <= room
            assert plan.sample_rows <= num_rows
            places.append(next(i for i, code in enumerate(codes) if code in plan.kind.split("-")))
    assert places[0] >= places[1]


@pytest.mark.parametrize(("plan", "least"), [(plan_index(12_000, 16, GB, 0), 0.9), (PRODUCT, 0.3)])
def test_recall_is_that_of_brute_force_and_the_settings_are_used(plan: IndexPlan, least: float) -> None:
    units, asked = draw_units(12_000), []
    index, about = build_index(plan, len(units), 16, reader(units, asked=asked))
    assert asked == [12_000 // plan.sample_rows, 1, 1]  # a sample of 64 rows a list, then all, twice
    assert index.nprobe == about["nprobe"] <= 64
    assert plan is PRODUCT or len(faiss.serialize_index(index)) == pytest.approx(plan.index_bytes, rel=0.05)
    assert about["recall_at_10"] > least
    rows = np.arange(0, len(units), 97)
    _, found = index.search(units[rows], 11)
    exact = exact_neighbours(units, rows)
    shares = [
        len(set(a.tolist()) & set([r for r in b.tolist() if r != own][:10])) / 10
        for a, b, own in zip(exact, found, rows.tolist(), strict=True)
    ]
    assert np.mean(shares) == pytest.approx(about["recall_at_10"], abs=0.05)


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes_on_any_number_of_threads() -> None:
    units, before = draw_units(8000), faiss.omp_get_max_threads()
    for plan in (plan_index(len(units), 16, GB, 0), PRODUCT):
        made = []
        for threads in (1, 2):
            faiss.omp_set_num_threads(threads)
            index, about = build_index(plan, len(units), 16, reader(units))
            made.append((faiss.serialize_index(index).tobytes(), about))
        faiss.omp_set_num_threads(before)
        assert made[0] == made[1]


def test_lists_filled_in_two_passes_are_those_that_faiss_fills() -> None:
    units = draw_units(5000)
    plan = plan_index(len(units), 16, GB, 0)
    ours, about = build_index(plan, len(units), 16, reader(units))
    theirs = faiss.index_factory(16, plan.factory, faiss.METRIC_INNER_PRODUCT)
    theirs.train(units)
    for _, batch in reader(units)(1):
        theirs.add(batch)
    theirs.nprobe = about["nprobe"]
    np.testing.assert_array_equal(faiss.serialize_index(ours), faiss.serialize_index(theirs))


@pytest.mark.parametrize("num_rows", [1, 2, 11, 300])
def test_small_tables_can_be_quantised_too(num_rows: int, capfd: pytest.CaptureFixture[str]) -> None:
    units = draw_units(num_rows)
    index, about = build_index(plan_index(num_rows, 16, GB, 0), num_rows, 16, reader(units))
    assert index.ntotal == num_rows
    assert 0 <= about["recall_at_10"] <= 1
    assert capfd.readouterr().err == ""


def test_unit_rows_keep_rows_of_zeros() -> None:
    units = unit_rows(np.array([[3, 4], [0, 0]], np.float32))
    np.testing.assert_allclose(units, [[0.6, 0.8], [0, 0]], rtol=1e-6)
