"""Logs that are queries: `--logs shop.sql`, a file with one DuckDB `select` that returns user_id, url and perhaps ts.

A query runs once a call, on a connection of its own, and its rows are written to a Parquet file in the call's folder, which is
read like a fetched log. If it uses `$since` and `$until` (days in UTC), each day of its rows is a source of its own, so that a
night replaces the days that changed and keeps those before the window. Otherwise all rows are one source.

A source is identified by the text of the query and the rows: their order counts only if they have no ts.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from surf2vec.sql.runner import connect
from surf2vec.tasks.config import ColumnsConfig, IngestConfig
from surf2vec.tasks.ingest.formats import EmptyLogError
from surf2vec.tasks.ingest.sources import SourceFile
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError

FOLDERS_ENV = "SURF2VEC_SQL_FOLDERS"
"""Environment variable with the only folders that queries may lie in and read, separated as in PATH; Prefect's form needs it."""
CHECK_BYTES, CHECK_THREADS = 500_000_000, 2
_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_TABLE_FUNCTIONS = (
    r"read_\w+|(parquet|iceberg|delta|sqlite|lance)_scan|range|generate_series|unnest|repeat|json_(each|tree)"
)
# What shows or runs more than a select of data: the settings, for instance, and what ingest.attach attaches.
_STATE = r"(duckdb|pragma|pg)_\w+"
_CALLS = r"query(_table)?|current_setting|getenv|write_log|which_secret|json_execute\w+"
_VIEWS = """select view_name, sql from duckdb_views() where not internal and database_name = $name
union all select function_name, macro_definition from duckdb_functions() where not internal and database_name = $name"""
_ID_TYPES = r"VARCHAR|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL.*|FLOAT|DOUBLE|UUID|ENUM.*"
_TIME_TYPES = r"VARCHAR|TIMESTAMP.*|DATE|U?(TINY|SMALL|BIG)?INT(EGER)?|DECIMAL.*|FLOAT|DOUBLE"
_AS_THEY_ARE = ("FLOAT", "DOUBLE")  # whole ones become integers later
Days = tuple[date, date]


def choose_days(since: date | None, until: date | None, window_days: int | None) -> Days:
    """Return the days `$since` and `$until` of a call: until yesterday, the last whole day, if no other is given."""
    last = until or datetime.now(UTC).date() - timedelta(days=1)
    return since or (last - timedelta(days=window_days - 1) if window_days else date(1970, 1, 1)), last


def check_query(path: str, config: IngestConfig) -> None:
    """Raise InputError or ConfigError if a query is not one select, or does not return what it must. Reads no rows."""
    text, names = _read_statement(path)
    with tempfile.TemporaryDirectory() as folder, _open(path, config, Path(folder), CHECK_BYTES, CHECK_THREADS) as con:
        _inspect(con, path, text, names, config.timezone)


def run_query(
    path: str, config: IngestConfig, folder: Path, known: Mapping[str, Any], days: Days, memory_bytes: int, threads: int
) -> list[SourceFile]:
    """Run a query into `folder`; returns its sources. known: names of earlier sources.

    Raises InputError, also if a day of the window had rows before and has none, and ResourceError when a database fails.
    """
    (text, names), result = _read_statement(path), _result_path(path, folder)
    result.parent.mkdir(parents=True, exist_ok=True)
    first, last = (day.isoformat() for day in days)
    with _open(path, config, result.parent, memory_bytes, threads) as con:
        fields = _inspect(con, path, text, names, config.timezone)
        way_out = f"its days are {first} to {last} in UTC, by --since, --until and window_days" if names else ""
        select = f"select {', '.join(fields)} from (\n{text}\n)"
        if names:  # rows without a time are of the newest day, as if they were the last lines of a log
            newest = "coalesce(day, max(day) over (), date '0001-01-01') as day"
            select = f"select * replace ({newest}) from ({select}) order by day, ts"
        sql = f"copy ({select}) to {_quote(result)} (format parquet, kv_metadata {{way_out: {_quote(way_out)}}})"
        with _explain(path):
            con.execute(sql, {name: days[name == "until"] for name in names})
        rows = _digest_rows(con, result, bool(names), "ts" in fields)
    before = {name for name in known if name.startswith(f"{path} day ")}
    found = {f"{path} day {row['day']}" if row["day"] else path: row for row in rows}
    if (path in found and before) or (path not in found and path in known and rows):
        raise InputError(
            f"{path} was read {'with' if before else 'without'} $since and $until before, so its rows would count twice: use "
            "them as before, or begin a new --root"
        )
    if outside := sum(row["num_rows"] for row in rows if row["day"] and not first <= row["day"] <= last):
        raise InputError(
            f"{path} returns {outside:,} rows that are not of {first} to {last} in UTC: compare its times with both $since and "
            "$until, which is the last day: ts >= $since and ts < $until + 1"
        )
    if gone := [name for name in sorted(before - found.keys()) if first <= name[-10:] <= last]:
        raise InputError(
            f"{gone[0]} has no rows; when it was delivered before, it had, which stay as they are: if these rows are gone for "
            f"good, begin a new --root ({len(gone):,} such days)"
        )
    total, size = sum(row["num_rows"] for row in rows), result.stat().st_size
    sources = []
    for name, row in (found or {path: {"num_rows": 0}}).items():
        digest = hashlib.sha256(json.dumps([text, row]).encode()).hexdigest()
        sources.append(SourceFile(name, digest, (size * row["num_rows"] // max(1, total), 0, int(digest[:12], 16))))
    return sources


def _result_path(name: str, folder: Path) -> Path:
    """Return the Parquet file with the rows of the query of a source."""
    query = name.partition(".sql day ")[0].removesuffix(".sql") + ".sql"
    return folder / hashlib.sha256(query.encode()).hexdigest()[:16] / "result.parquet"


def extract_source(name: str, folder: Path, target: Path, config: IngestConfig) -> IngestConfig:
    """Write a source's rows, in order, to a Parquet file; return the settings that read it: its columns have fixed names."""
    target.parent.mkdir(parents=True, exist_ok=True)
    result = _result_path(name, folder)
    about = pq.read_metadata(result)
    if not about.num_rows:
        way_out = about.metadata[b"way_out"].decode() or "leave it out of --logs"
        raise EmptyLogError(f"{name} returns no rows: {way_out}")
    day = name.partition(".sql day ")[2]
    rows = f"select * exclude (day) from read_parquet({_quote(result)}) where day = {_quote(day)}"
    sql = rows if day else f"from read_parquet({_quote(result)})"
    _read_results().cursor().execute(f"copy ({sql}) to {_quote(target)} (format parquet)")
    time = ("ts",) if "ts" in about.schema.names else ()
    columns = ColumnsConfig(user=("user_id",), url=("url",), time=time)
    return config.model_copy(update={"columns": columns, "layout": None})


@cache
def _read_results() -> duckdb.DuckDBPyConnection:
    """Return the connection that reads results: to open one takes longer than to read a day."""
    return duckdb.connect(config={"memory_limit": f"{CHECK_BYTES}B", "threads": CHECK_THREADS})


def _read_statement(path: str) -> tuple[str, set[str]]:
    """Return a file's select, without semicolon, and which of `since` and `until` it uses. Raises InputError unless it is one."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        statements = duckdb.connect().extract_statements(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    except duckdb.Error as error:
        raise InputError(f"{path} is not SQL that DuckDB can read: {_first_line(error)}") from None
    if len(statements) != 1:
        raise InputError(f"{path} has {len(statements)} statements: it must be one select")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise InputError(f"{path} is no select: it may only read, so take the {statements[0].type.name} out")
    if unknown := statements[0].named_parameters - {"since", "until"}:
        raise InputError(f"{path} has the parameter {min(unknown)!r}: there are $since and $until")
    tokens = ((at, kind.name) for at, kind in duckdb.tokenize(text))
    end = next((at for at, kind in tokens if kind == "operator" and text.encode()[at : at + 1] == b";"), None)
    return text.encode()[:end].decode().strip(), statements[0].named_parameters


def _inspect(con: duckdb.DuckDBPyConnection, path: str, text: str, names: set[str], timezone: str) -> list[str]:
    """Return the fields of a query to write: user_id, url, ts, and the UTC day if it uses the window.

    Raises InputError for what it may not call, and for columns that are missing or of wrong types.
    """
    [tree] = con.execute("select json_serialize_sql($text::varchar)", {"text": text}).fetchone() or [""]
    for kind, name in _list_nodes(json.loads(tree)):
        if (kind.endswith("_NODE") and kind not in _NODES) or kind == "SHOW_REF":
            raise InputError(f"{path} has {kind.partition('_')[0].lower()!r} in it: it must be one read-only select")
        is_call = kind != "BASE_TABLE" and re.fullmatch(_CALLS, name)
        is_other = kind == "TABLE_FUNCTION" and not re.fullmatch(_TABLE_FUNCTIONS, name)
        if is_call or is_other or re.fullmatch(_STATE, name):
            raise InputError(f"{path} reads or calls {name}, which a query of logs may not: use read_csv and the like")
    with _explain(path):
        empty = con.sql(f"select * from (\n{text}\n) limit 0", params=dict.fromkeys(names, date.max))
    found = {name.casefold(): str(kind) for name, kind in zip(empty.columns, empty.types, strict=True)}
    wanted = ["user_id", "url", *(["ts"] if names or "ts" in found else [])]
    if missing := [name for name in wanted if name not in found]:
        raise InputError(
            f"{path} returns no column {' and no column '.join(missing)}; it returns {', '.join(empty.columns)}: name it with "
            f"`as {missing[0]}`"
        )
    for name in wanted:
        if not re.fullmatch(_TIME_TYPES if name == "ts" else _ID_TYPES, found[name]):
            raise InputError(f"{path} returns {name} as {found[name][:60]}: select one value of it, or cast it")
    fields = [name if found[name] in _AS_THEY_ARE or name == "ts" else f"{name}::varchar as {name}" for name in wanted]
    if not names:
        return fields
    if not re.match("TIMESTAMP|DATE", kind := found["ts"]):
        way = "ts::timestamptz" if kind == "VARCHAR" else "to_timestamp(ts)"
        raise InputError(f"{path} uses $since or $until and returns ts as {kind}: return a time, such as {way} as ts")
    zoned = "ts" if kind.endswith("ZONE") else f"timezone({_quote(timezone)}, ts::timestamp)"
    return [*fields, f"timezone('UTC', {zoned})::date as day"]


def _digest_rows(con: duckdb.DuckDBPyConnection, result: Path, has_days: bool, has_times: bool) -> list[dict[str, Any]]:
    """Return the number of rows and the sums of their hashes, by day if they have it."""
    day = "day::varchar" if has_days else "null"
    rows = f"from read_parquet({_quote(result)}, file_row_number = {not has_times}) as row"
    sums = "sum(md5_number_lower(text))::varchar as low, sum(md5_number_upper(text))::varchar as high"
    texts = f"select {day} as day, to_json(row)::varchar as text {rows}"
    found = con.sql(f"select day, count(*) as num_rows, {sums} from ({texts}) group by day order by day")
    return found.to_arrow_table().to_pylist()


@contextmanager
def _open(
    path: str, config: IngestConfig, folder: Path, memory_bytes: int, threads: int
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with the databases of ingest.attach, that can neither attach others nor change its settings."""
    is_free = FOLDERS_ENV not in os.environ
    folders = [os.path.realpath(one) for one in os.environ.get(FOLDERS_ENV, "").split(os.pathsep) if one]
    if not is_free and not any(Path(os.path.realpath(path)).is_relative_to(one) for one in folders):
        raise InputError(f"{path} is in none of the folders that {FOLDERS_ENV} names: move it there")
    with connect(memory_bytes, folder / "spill", threads or os.cpu_count() or 1) as con:
        con.execute("set autoload_known_extensions = true")  # those that are installed; none is downloaded
        con.execute("set python_enable_replacements = false")
        con.execute(f"set file_search_path = {_quote(os.path.dirname(path))}")
        for name, _, variable in (entry.partition("=") for entry in config.attach):
            _attach(con, name, variable)
        if not is_free:
            con.execute("set allowed_directories = $folders", {"folders": [*folders, str(folder)]})
            con.execute("set enable_external_access = false")
        con.execute("set lock_configuration = true")
        yield con


def _attach(con: duckdb.DuckDBPyConnection, name: str, variable: str) -> None:
    """Attach a database, read-only. No error has the value of the variable, which may have a password.

    Its views and macros are selects, which cannot write, attach or install, and read files only where a query may. But they
    could show what `_inspect` refuses to a query, among it that value.
    """
    if not (value := os.environ.get(variable)):
        raise ConfigError(f"ingest.attach names {variable}, which is not set: set that variable to the database")
    try:
        con.execute(f'attach {_quote(value)} as "{name}" (read_only)')
    except duckdb.Error as error:
        reason = _find_extension(error) or f"{type(error).__name__}; check the variable and the database"
        raise ResourceError(f"the database {name!r}, which {variable} names, cannot be attached: {reason}") from None
    for view, text in con.execute(_VIEWS, {"name": name}).fetchall():
        if found := re.search(rf'\b{_STATE}|\b({_CALLS})(?="?\()', text or ""):
            raise InputError(f"{view} of {name!r} calls or reads {found[0]}, which no query of logs may: drop it there")


def _find_extension(error: duckdb.Error) -> str:
    """Return what to say of an error if an extension is missing, or ""."""
    found = re.search(r'Extension "(\w+)" is an existing extension', str(error))
    return f"DuckDB's extension {found[1]} is not installed, which docs/logs.md shows how to do" if found else ""


@contextmanager
def _explain(path: str) -> Iterator[None]:
    """Raise InputError for a query that fails. What DuckDB says of values is not shown."""
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.InterruptException):
        raise
    except duckdb.Error as error:
        reason = f"{type(error).__name__}, whose text may have values of the data"
        if isinstance(error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException):
            reason = _first_line(error)
        elif isinstance(error, duckdb.PermissionException):
            reason = f"it may read only below {os.environ.get(FOLDERS_ENV)} ({FOLDERS_ENV}), by whole paths"
        elif needed := _find_extension(error):
            reason = needed
        elif missing := re.search("No files found that match the pattern .*", str(error)):
            reason = missing[0]
        raise InputError(f"the query of {path} fails: {reason}") from None


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0][:300]


def _quote(value: object) -> str:
    """Return a SQL literal."""
    return "'" + str(value).replace("'", "''") + "'"


def _list_nodes(tree: Any) -> Iterator[tuple[str, str]]:
    """Return the type of every node of a parsed query, and the name of the table or function that it names, or ""."""
    if isinstance(tree, dict):
        function = tree.get("function") if tree.get("type") == "TABLE_FUNCTION" else tree
        named = function if isinstance(function, dict) else {}
        yield str(tree.get("type")), str(named.get("function_name") or named.get("table_name") or "").lower()
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _list_nodes(part)
