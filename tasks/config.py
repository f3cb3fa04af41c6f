"""The settings of each step: frozen models that refuse unknown keys.

`flows/config.py` puts them together into one configuration; a step takes only the part it needs.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from trainer.errors import ConfigError
from trainer.system.units import parse_bytes


def one_or_more(value: object) -> object:
    """A single name stands for a tuple of one: `ingest.columns.user=host`."""
    return (value,) if isinstance(value, str) else value


def check_size(value: str) -> str:
    """The text itself. Raises ValueError when it is no size in bytes."""
    try:
        parse_bytes(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


def check_sizes(value: str) -> str:
    """The text itself: one size, or several with commas between. Raises ValueError when one is none."""
    return ",".join(check_size(part) for part in value.split(","))


ItemKind = Literal["page", "prefix", "host"]
Names = Annotated[tuple[str, ...], BeforeValidator(one_or_more)]
Size = Annotated[str, AfterValidator(check_size)]
Sizes = Annotated[str, AfterValidator(check_sizes)]


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnsConfig(Section):
    """Which columns of a log are what. Of several names, the first that a file has is taken."""

    user: Names = Field(("user_id",), title="User", description="Column with the user's id.", min_length=1)
    url: Names = Field(("url",), title="URL", description="Column with the URL, path or page id.", min_length=1)
    time: Names = Field(
        ("ts",), title="Time", description="Column with the time, or an integer order. Empty: the order of the lines."
    )
    method: ClassVar[tuple[str, ...]] = ("method",)  # only GET counts
    status: ClassVar[tuple[str, ...]] = ("status", "response")  # 400 and above is left out
    agent: ClassVar[tuple[str, ...]] = ("user_agent", "useragent")  # crawlers are left out


class IngestConfig(Section):
    """From log files to clean events, and from clean events to the tokens of a corpus."""

    columns: ColumnsConfig = Field(ColumnsConfig(), title="Columns", description="Names of the columns in the logs.")
    access_pattern: str | None = Field(
        None,
        title="Access pattern",
        description="Regular expression for lines of logs in a format of their own, with groups (?P<user>...), (?P<url>...), "
        "(?P<time>...) and perhaps host, method, status, agent. By default Common, Combined, and both with the site in front.",
    )
    time_format: Names = Field(
        (),
        title="Time format",
        description="How times that are text are written, as of strptime: %d.%m.%Y %H:%M. Several are tried in order. By default "
        "ISO 8601, or numbers.",
    )
    timezone: str = Field("UTC", title="Time zone", description="Zone of times without one, e.g. Europe/Berlin.")
    granularity: str = Field(
        "page",
        title="Granularity",
        description="What an item is: the page, the host, or a path prefix: prefix:2 keeps two parts of the path, prefix one.",
        pattern=r"^(page|host|prefix(:([1-9]|1[0-9]|20))?)$",
    )
    keep_query: Names = Field(
        (), title="Query keys kept", description="Query keys that tell pages apart; all others are dropped."
    )
    mask_secrets: bool = Field(
        True,
        title="Mask secrets",
        description="E-mail addresses, session ids, JSON web tokens, and tokens that one user of a log has, leave the items.",
    )
    max_day_events: int = Field(
        2000, title="Bot limit", description="Users with more events on one UTC day are left out as bots.", ge=1
    )
    min_item_events: int = Field(5, title="Minimum events of an item", description="Rarer items are left out.", ge=1)
    min_item_users: int = Field(
        3,
        title="Minimum users of an item",
        description="Items that fewer people have seen stay out of the vocabulary.",
        ge=1,
    )
    min_user_events: int = Field(
        2, title="Minimum events of a user", description="Users with fewer get no vector.", ge=1
    )
    max_user_events: int = Field(1000, title="Maximum events of a user", description="The newest are kept.", ge=2)
    max_reject_ratio: float = Field(
        0.01,
        title="Maximum share of rejects",
        description="Above this share of unusable lines the run stops.",
        ge=0,
        le=1,
    )
    user_key_env: str | None = Field(
        None,
        title="Pseudonym key",
        description="Environment variable with the key that turns user ids into pseudonyms.",
    )

    @property
    def item_kind(self) -> ItemKind:
        """What an item is."""
        return "prefix" if self.granularity.startswith("prefix") else self.granularity  # type: ignore[return-value]

    @property
    def prefix_depth(self) -> int:
        """Parts of the path that an item keeps, where it is a prefix."""
        return int(self.granularity.partition(":")[2] or 1)

    @field_validator("access_pattern")
    @classmethod
    def _usable_pattern(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            from tasks.log_patterns import check_pattern

            check_pattern(value, has_time="columns" not in info.data or bool(info.data["columns"].time))
        return value

    @field_validator("time_format")
    @classmethod
    def _usable_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            from tasks.log_patterns import check_formats

            check_formats(value)
        return value

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{value!r} is no time zone: write for instance Europe/Berlin or UTC") from None
        return value


class StoreConfig(Section):
    """How users are divided."""

    partitions: int | None = Field(
        None,
        title="Micro-partitions",
        description="A power of two; by default about 50,000 users each, at least 8.",
        ge=1,
        le=65_536,
    )

    @field_validator("partitions")
    @classmethod
    def _power_of_two(cls, value: int | None) -> int | None:
        if value is not None and value & (value - 1):
            raise ValueError(
                f"{value} is no power of two: take {1 << (value.bit_length() - 1)} or {1 << value.bit_length()}"
            )
        return value


class EvaluateConfig(Section):
    """How quality is measured."""

    max_users: int = Field(
        20_000,
        title="Users evaluated",
        description="At most so many users have their newest new item held out; 0: none.",
        ge=0,
    )


class ExportConfig(Section):
    """How the vectors of a release are stored."""

    pca_dim: int | None = Field(
        None,
        title="Numbers a vector",
        description="Reduce users and items to so many numbers, fewer than train.vector_size; by default all.",
        ge=1,
    )
    dtype: Literal["float32", "float16", "int8"] = Field(
        "float32",
        title="Stored as",
        description="Numbers of user vectors on disk; int8 with a scale a row. Items are float32.",
    )


class PublishConfig(Section):
    """Where releases are registered."""

    tracking_uri: str | None = Field(
        None,
        title="MLflow",
        description="Tracking URI; by default the one that the root published to, else MLFLOW_TRACKING_URI, else a sqlite file "
        "and a folder in the root.",
    )
    experiment: str = Field("surf2vec", title="Experiment", description="MLflow experiment of the runs.", min_length=1)
    model_name: str = Field("surf2vec-users", title="Model", description="Name of the registered model.", min_length=1)
    copy_below: Size = Field(
        "1GB",
        title="Copy below",
        description="Smaller exports are copied into the registry; of others it gets a manifest that refers to them.",
    )
    with_state: bool = Field(
        True,
        title="Carry state",
        description="A release carries what `surf2vec restore` makes a lost root of; a copy is then almost twice as large.",
    )
    keep_releases: int = Field(
        3, title="Releases kept", description="`surf2vec gc` keeps the newest so many, and those with an alias.", ge=1
    )


class NightlyConfig(Section):
    """How a night goes on from the release that serves."""

    full_every_days: int = Field(
        7,
        title="Full retrain every",
        description="Days after which a night trains everything anew, by the days of its window.",
        ge=1,
        le=3650,
    )
    retain_days: int = Field(
        90,
        title="Users kept",
        description="Users without events in the window keep their vector for so many days after their newest.",
        ge=0,
        le=36_500,
    )
    epochs: int = Field(
        2,
        title="Passes of a night",
        description="Epochs of an incremental night, at a fifth of the learning rate; its users are fitted to the items before.",
        ge=1,
        le=1000,
    )
    full_from_champion: bool = Field(
        True,
        title="Full nights near the champion",
        description="Items of a full night, and users whose pages are the same, begin with the champion's vectors: they move "
        "less. Off: everything begins anew.",
    )


class GateConfig(Section):
    """What a release must reach to become champion. Changing it makes no other vectors: the same run is only judged again."""

    hit_at_10_drop: float = Field(
        0.05,
        title="Drop of hit@10",
        description="At most this share of the champion's hit@10 and MRR@20 may be lost, for the same users and items, beyond "
        "chance; and ten times this of its hit@10 on its own night.",
        ge=0,
        le=1,
    )
    kept: float = Field(
        0.8,
        title="Kept",
        description="Users, items, users with a vector and items among anyone's first 20: at least so much of the champion's.",
        ge=0,
    )
    cosine_median: float = Field(
        0.9,
        title="Drift",
        description="Median cosine to the champion's vectors, in one space, of users whose tokens did not change.",
        ge=-1,
        le=1,
    )
    newest_day_events: float = Field(
        0.6,
        title="Newest day",
        description="Its events, at least so much of what is usual (the same weekday's median after three weeks).",
        ge=0,
    )
    missing_days: int = Field(
        0, title="Missing days", description="At most so many days without events since the champion's newest.", ge=0
    )


class ResourcesConfig(Section):
    """What a run may use; it never changes what is learned. The index of very many users is one that fits the memory."""

    host_memory: Size = Field(
        "4GB", title="Host memory", description="Budget of the whole process, and of all workers together, e.g. 4GB."
    )
    device_memory: Sizes | None = Field(
        None, title="Device memory", description="Budget on each GPU, e.g. 12GB; of unequal ones 12GB,24GB."
    )
    workers: int = Field(
        1,
        title="Workers",
        description="Processes of this machine that train together; 0: one for each GPU where GPUs train, otherwise one.",
        ge=0,
        le=1024,
    )
    ray_address: str | None = Field(
        None,
        title="Ray cluster",
        description="auto, or HOST:6379 of a cluster that this machine is in: ingest, corpus, inference and export go to its "
        "nodes in parts, each with the host memory. By default one machine does everything.",
        min_length=1,
    )
