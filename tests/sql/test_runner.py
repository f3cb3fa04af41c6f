"""The runner: what it binds, makes and refuses, on models written for the test."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from surf2vec.sql import runner
from tests.servers.python import run_python


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path / "models"
    (folder / "staging").mkdir(parents=True)
    (folder / "staging/stg_numbers.sql").write_text(
        "-- stg_numbers: numbers up to a limit; costs $0 and takes no $unknown.\nselect range as n from range($limit);\n"
    )
    (folder / "twice.sql").write_text("-- twice: a number, doubled.\n2 * n\n")
    monkeypatch.setattr(runner, "FOLDER", folder)
    with runner.connect(300_000_000, tmp_path / "spill", 1) as con:
        yield con


def test_a_table_is_named_for_its_model_and_made_anew(con: duckdb.DuckDBPyConnection) -> None:
    assert runner.create_table(con, "staging/stg_numbers", {"limit": 3}) == "stg_numbers"
    runner.create_table(con, "staging/stg_numbers", {"limit": 2, "not_of_this_step": "x"})
    assert con.execute("select * from stg_numbers").fetchall() == [(0,), (1,)]


def test_a_table_may_read_other_models(con: duckdb.DuckDBPyConnection) -> None:
    (runner.FOLDER / "doubled.sql").write_text("-- doubled: numbers, doubled.\nselect 2 * n as m from numbers\n")
    runner.create_table(con, "doubled", {"limit": 2}, numbers="staging/stg_numbers")
    assert con.execute("select * from doubled").fetchall() == [(0,), (2,)]


def test_rows_are_dictionaries(con: duckdb.DuckDBPyConnection) -> None:
    assert runner.fetch_rows(con, "staging/stg_numbers", {"limit": 2}) == [{"n": 0}, {"n": 1}]


def test_a_macro_is_an_expression_of_its_arguments(con: duckdb.DuckDBPyConnection) -> None:
    runner.create_macro(con, "twice", ["n"])
    assert con.execute("select twice($x)", {"x": 21}).fetchall() == [(42,)]


def test_a_parameter_that_is_not_given_is_our_error(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(KeyError, match="limit"):
        runner.create_table(con, "staging/stg_numbers", {})


def test_parameters_in_comments_are_none() -> None:
    assert runner.select_parameters("-- params: $a\nselect $b -- and $c", {"a": 1, "b": 2, "c": 3}) == {"b": 2}


def test_the_connection_stays_within_its_bounds(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    names = ("memory_limit", "temp_directory", "threads", "TimeZone", "autoinstall_known_extensions")
    found = [con.execute("select current_setting($name)", {"name": name}).fetchall()[0][0] for name in names]
    assert found == ["286.1 MiB", str(tmp_path / "spill"), 1, "UTC", False]


def test_rows_are_streamed_and_failures_on_the_way_are_duckdbs(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = runner.stream_rows(con, "staging/stg_numbers", {"limit": 250_000})
    assert rows.schema.names == ["n"]
    assert sum(batch.num_rows for batch in rows) == 250_000
    late = "select case when range < 900000 then range else error('{}') end as n from range(1000000)"
    for message, kind in {"x": duckdb.Error, "Out of Memory Error: x": duckdb.Error}.items():
        (runner.FOLDER / "late.sql").write_text(late.format(message))
        with pytest.raises(kind, match="x"):
            runner.stream_rows(con, "late").read_all()


@pytest.mark.parametrize("path", sorted(Path(runner.__file__).parent.rglob("*.sql")), ids=lambda path: path.stem)
def test_every_model_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"-- {path.stem}: ")
    assert "\n-- grain:  " in text or "\n-- macro:  " in text
    assert text.count("\n") <= 80
    header = "".join(line for line in text.splitlines() if line.startswith("--"))
    for name in runner.select_parameters(text, _Anything()):
        assert f"${name}" in header


class _Anything(dict[str, None]):
    def __missing__(self, key: str) -> None:
        return None


def test_nothing_is_drawn_on_standard_output(tmp_path: Path) -> None:
    """DuckDB draws a bar where no script runs: under `python -c`, in notebooks."""
    child = (
        "import sys; from pathlib import Path; from surf2vec.sql.runner import connect\n"
        "with connect(100_000_000, Path(sys.argv[1]), 1) as con:\n"
        "    print(con.execute(\"select current_setting('enable_progress_bar')\").fetchall())"
    )
    assert run_python("-c", child, str(tmp_path)) == "[(False,)]\n"
