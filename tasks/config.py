"""The settings of each step: frozen models that refuse unknown keys.

`tasks/night/config.py` puts them together into one configuration; a step takes only the part it needs.
"""

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.units import parse_bytes


def _check_size(value: str) -> str:
    """Return the text unchanged. Raises ValueError when it is not a size in bytes."""
    try:
        parse_bytes(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


TIME_UNITS = {name: f"{name} since 1970-01-01" for name in ("seconds", "milliseconds", "microseconds", "nanoseconds")}
TIME_UNITS |= {"days": "days since 1899-12-30", "ticks": "ticks since 0001-01-01", "filetime": "ticks since 1601-01-01"}
TIME_UNITS |= {"webkit": "microseconds since 1601-01-01", "cocoa": "seconds since 2001-01-01"}
_MICROSECONDS = {"seconds": Fraction(10**6), "milliseconds": Fraction(1000), "microseconds": Fraction(1)}
_MICROSECONDS |= {"nanoseconds": Fraction(1, 1000), "ticks": Fraction(1, 10), "days": Fraction(86_400 * 10**6)}


def parse_time_unit(text: str) -> tuple[Fraction, int]:
    """Return the microseconds in a unit of ingest.time_unit, and those from 1970 to its origin. Raises ValueError."""
    try:
        name, instant = TIME_UNITS.get(text, text).split(" since ")
        origin = datetime.fromisoformat(instant)
        since_1970 = origin.replace(tzinfo=origin.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return _MICROSECONDS[name], since_1970 // timedelta(microseconds=1)
    except (ValueError, KeyError):
        raise ValueError(
            f"{text!r} is no unit: there are {', '.join(TIME_UNITS)}, and order; from another instant, for instance "
            "'milliseconds since 2016-06-14T03:59:59.998Z'"
        ) from None


def _check_unit(value: str) -> str:
    if value != "order":
        parse_time_unit(value)
    return value


def _check_formats(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        return value
    import duckdb

    try:
        with duckdb.connect() as con:  # the caller's own connection, duckdb.sql, is not ours
            con.execute("select try_strptime('', $formats::varchar[])", {"formats": list(value)})
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0].rpartition("Error: ")[2]
        raise ValueError(f"{reason}; write for instance %d.%m.%Y %H:%M") from None
    return value


def _check_databases(value: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [entry for entry in value if not re.fullmatch(r"[A-Za-z_]\w*=[A-Za-z_]\w*", entry)]:
        raise ValueError(f"{len(wrong)} are not NAME=VARIABLE; write for instance shop=SHOP_DATABASE")
    return value


def _check_timezone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone: write for instance Europe/Berlin or UTC") from None
    return value


ItemKind = Literal["page", "prefix", "host"]
Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
TimeUnit = Annotated[str, AfterValidator(_check_unit)]
TimeFormats = Annotated[Names, AfterValidator(_check_formats)]
Size = Annotated[str, AfterValidator(_check_size)]
Sizes = Annotated[str, AfterValidator(lambda value: ",".join(map(_check_size, value.split(","))))]


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused. The text below a setting is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ColumnsConfig(Section):
    """Names of the log columns. Of several names for a column, the first that a file has is used."""

    user: Names = Field(("user_id",), title="User", min_length=1)
    """Column with the user's id."""
    url: Names = Field(("url",), title="URL", min_length=1)
    """Column with the URL, path or page id."""
    time: Names = Field(("ts",), title="Time")
    """Column with the time, or an integer order. Empty: the order of the lines."""
    date: Names = Field((), title="Date")
    """Column with the date, if the time is in two columns."""
    method: Names = Field((), title="Method")
    """Column with the method of the request: only GET counts. By default one of the usual names."""
    status: Names = Field((), title="Status")
    """Column with the status: 400 and above is left out. By default one of the usual names."""
    agent: Names = Field((), title="User agent")
    """Column with the user agent: robots are left out. By default one of the usual names."""
    site: ClassVar[tuple[str, ...]] = ()  # only layouts have it: put before a page that is a path
    view: ClassVar[tuple[str, ...]] = ()  # only layouts have it: tells page views from other events


_GROUPS = ("user", "url", "time", "host", "method", "status", "agent", "view")


class Layout(Section):
    """How a system writes its logs: tasks/ingest/layouts.toml describes the entries."""

    title: str = ""
    fields: str = ""
    needs: Names = ()
    user: Names = ()
    url: Names = ()
    time: Names = ()
    date: Names = ()
    method: Names = ()
    status: Names = ()
    agent: Names = ()
    site: Names = ()
    view: Names = ()
    views: Names = ()
    lines: str = ""
    separator: str = ""
    time_unit: TimeUnit | None = None
    time_format: TimeFormats = ()
    sample: str = ""

    @property
    def groups(self) -> list[str]:
        """The names of the groups in lines. Raises ValueError with the reason when it is no usable regular expression."""
        import polars as pl  # a slow import, needed only for layouts

        try:
            return pl.Series([""]).str.extract_groups(self.lines).struct.unnest().columns
        except pl.exceptions.ComputeError as error:
            reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
            raise ValueError(f"not a usable regular expression: {reason}") from None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        groups = self.groups if self.lines else [role for role in ("user", "url") if getattr(self, role)]
        if missing := {"user", "url"} - {*groups}:
            raise ValueError(f"{min(missing)} is missing: a layout names user and url, or has them as groups in lines")
        if unknown := [name for name in groups if name not in _GROUPS and not name.isdigit()]:
            raise ValueError(f"group {unknown[0]!r} in lines is unknown: there are {', '.join(_GROUPS)}")
        return self


class IngestConfig(Section):
    """From log files to clean events, and from clean events to the tokens of a corpus."""

    columns: ColumnsConfig = Field(ColumnsConfig(), title="Columns")
    """Names of the columns in the logs."""
    layout: str | None = Field(None, title="Layout")
    """How the logs are laid out, by the name of a layout that `surf2vec layouts` lists. By default the one that fits."""
    layouts: dict[str, Layout] = Field({}, title="Layouts")
    """Layouts of your own, by name, with the entries of tasks/ingest/layouts.toml."""
    time_format: TimeFormats = Field((), title="Time format")
    """How times are written as text, as of strptime: %d.%m.%Y %H:%M; several are tried in order. Default: ISO 8601, numbers."""
    time_unit: TimeUnit | None = Field(None, title="Time unit")
    """What times that are numbers count: seconds, milliseconds, microseconds, nanoseconds (since 1970), days (Excel), ticks
    (.NET), filetime, webkit (Chrome), cocoa (Safari), milliseconds since 2016-06-14T03:59:59.998Z; or order. Default: by size."""
    attach: Annotated[Names, AfterValidator(_check_databases)] = Field((), title="Databases")
    """Databases that logs which are queries (.sql) may read, as NAME=VARIABLE; the environment variable says which database."""
    timezone: Annotated[str, AfterValidator(_check_timezone)] = Field("UTC", title="Time zone")
    """Zone of times without one, e.g. Europe/Berlin."""
    granularity: str = Field("page", title="Granularity", pattern=r"^(page|host|prefix(:([1-9]|1[0-9]|20))?)$")
    """What an item is: the page, the host, or a path prefix: prefix:2 keeps two parts of the path, prefix one."""
    keep_query: Names = Field((), title="Query keys kept")
    """Query keys that tell pages apart; all others are dropped."""
    mask_secrets: bool = Field(True, title="Mask secrets")
    """E-mail addresses, session ids, JSON web tokens, and tokens that one user of a log has, leave the items."""
    max_day_events: int = Field(2000, title="Bot limit", ge=1)
    """Users with more events on one UTC day are left out as bots."""
    min_item_events: int = Field(5, title="Minimum events of an item", ge=1)
    """Rarer items are left out."""
    min_item_users: int = Field(3, title="Minimum users of an item", ge=1)
    """Items that fewer people have seen stay out of the vocabulary."""
    min_user_events: int = Field(2, title="Minimum events of a user", ge=1)
    """Users with fewer get no vector."""
    max_user_events: int = Field(1000, title="Maximum events of a user", ge=2)
    """The newest are kept."""
    max_reject_ratio: float = Field(0.01, title="Maximum share of rejects", ge=0, le=1)
    """Above this share of unusable lines the run stops."""
    user_key_env: str | None = Field(None, title="Pseudonym key")
    """Environment variable with the key that turns user ids into pseudonyms."""

    @property
    def item_kind(self) -> ItemKind:
        """What an item is."""
        return "prefix" if self.granularity.startswith("prefix") else self.granularity  # type: ignore[return-value]

    @property
    def prefix_depth(self) -> int:
        """Number of path parts that a prefix item keeps."""
        return int(self.granularity.partition(":")[2] or 1)


class StoreConfig(Section):
    """How users are divided."""

    partitions: int | None = Field(None, title="Micro-partitions", ge=1, le=65_536)
    """A power of two; by default about 50,000 users each, at least 8."""

    @field_validator("partitions")
    @classmethod
    def _power_of_two(cls, value: int | None) -> int | None:
        if value is not None and value & (value - 1):
            raise ValueError(
                f"{value} is not a power of two: use {1 << (value.bit_length() - 1)} or {1 << value.bit_length()}"
            )
        return value


class EvaluateConfig(Section):
    """How quality is measured."""

    max_users: int = Field(20_000, title="Users evaluated", ge=0)
    """At most this many users have their newest new item held out; 0: none."""


class ExportConfig(Section):
    """How the vectors of a release are stored."""

    pca_dim: int | None = Field(None, title="Dimensions", ge=1)
    """Reduce users and items to this many dimensions, fewer than train.vector_size; by default all."""
    activity: bool = Field(True, title="Activity")
    """Vectors of users end with how much, how often and when they were there. It ranks no item and finds no neighbours."""
    noise: float = Field(0.0, title="Noise", ge=0, le=100, allow_inf_nan=False)
    """Noise on users' interests and trails, as a share of their length: it hides pages and costs quality (docs/privacy.md)."""
    dtype: Literal["float32", "float16", "int8"] = Field("float32", title="Stored as")
    """Data type of user vectors on disk; int8 has a scale per row. Items are float32."""


class PublishConfig(Section):
    """Where releases are registered."""

    tracking_uri: str | None = Field(None, title="MLflow")
    """Tracking URI; by default the one that the root published to, else MLFLOW_TRACKING_URI, else a database in the root."""
    experiment: str = Field("surf2vec", title="Experiment", min_length=1)
    """MLflow experiment of the runs."""
    model_name: str = Field("surf2vec-users", title="Model", min_length=1)
    """Name of the registered model."""
    copy_below: Size = Field("1GB", title="Copy below")
    """Smaller exports are copied into the registry; for larger ones it stores a manifest that refers to them."""
    with_state: bool = Field(True, title="Carry state")
    """Releases include the state from which `surf2vec restore` rebuilds a lost root; copies are almost twice as large."""
    keep_releases: int = Field(3, title="Releases kept", ge=1)
    """`surf2vec gc` keeps this many of the newest releases, and those with an alias."""
    stores: Names = Field((), title="Stores")
    """URLs of stores that a night pushes to what serves, as `surf2vec push` does, without passwords."""


class NightlyConfig(Section):
    """How a night continues from the release that serves."""

    full_every_days: int = Field(7, title="Full retrain every", ge=1, le=3650)
    """Days after which a night trains everything from scratch, counted between the last days of windows."""
    retain_days: int = Field(90, title="Users kept", ge=0, le=36_500)
    """Users without events in the window keep their vector for this many days after their newest event."""
    full_from_champion: bool = Field(True, title="Full nights near the champion")
    """Items of a full night, and users with the same pages, start from the champion's vectors. Off: all start from scratch."""


class GateConfig(Section):
    """What a release must reach to become champion. Changing it makes no other vectors: the same run is only judged again."""

    hit_at_10_drop: float = Field(0.05, title="Drop of hit@10", ge=0, le=1)
    """At most this share of the champion's hit@10 and MRR@20 may be lost, for the same users and items, beyond
    chance; and ten times this of its hit@10 on its own night."""
    kept: float = Field(0.8, title="Kept", ge=0)
    """Minimum ratio to the champion's users, items, users with a vector, and items in the first 20 of any user."""
    cosine_median: float = Field(0.9, title="Drift", ge=-1, le=1)
    """Median cosine to the champion's vectors, in one space, of users whose tokens did not change."""
    newest_day_events: float = Field(0.6, title="Newest day", ge=0)
    """Minimum ratio of its events to the usual number (after three weeks, the median of the same weekday)."""
    missing_days: int = Field(0, title="Missing days", ge=0)
    """Maximum number of missing days since the champion's newest day."""


class ResourcesConfig(Section):
    """What a run may use; it never changes what is learned. The index of very many users is one that fits the memory."""

    host_memory: Size = Field("4GB", title="Host memory")
    """Budget of the whole process, and of all workers together, e.g. 4GB."""
    device_memory: Sizes | None = Field(None, title="Device memory")
    """Budget on each GPU, e.g. 12GB; of unequal ones 12GB,24GB."""
    workers: int = Field(1, title="Workers", ge=0, le=1024)
    """Processes of this machine that train together; 0: one for each GPU where GPUs train, otherwise one."""
    ray_address: str | None = Field(None, title="Ray cluster", min_length=1)
    """auto, or HOST:6379 of a cluster that this machine is in: ingest, corpus, inference and export go to its
    nodes in parts, each with the host memory. By default one machine does everything."""
