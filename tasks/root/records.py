"""A run's record, `runs/<run-id>/run.json`: what the run began with, and a record of each finished step.

A missing value is None or empty; an unknown one raises DamageError. Reading and writing a record does not change it.
"""

import math
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surf2vec.tasks.root.wording import format_percent
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import read_json


class _Record(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True, defer_build=True
    )


class Step(_Record):
    """What every step records. digest: of its inputs; while it is the same, the step is done.

    The record of a step that has not finished is empty, and false.
    """

    name: ClassVar[str]
    digest: str = ""
    seconds: float | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__.removesuffix("Step").lower()  # of IngestStep: ingest

    def __bool__(self) -> bool:
        return bool(self.model_fields_set)


S = TypeVar("S", bound=Step)


class IngestStep(Step):
    """Counts of the delivered log files. left_out, rejected: lines by reason; formats, times: files by kind."""

    sources_new: int | None = None
    sources_replaced: int | None = None
    sources_known: int | None = None
    lines: int | None = None
    events: int | None = None
    left_out: dict[str, int] = {}
    rejected: dict[str, int] = {}
    num_rejected: int | None = None
    many_queries: list[dict[str, Any]] = []
    formats: dict[str, int] = {}
    times: dict[str, int] = {}


class CorpusStep(Step):
    """The corpus of the window. base: the window that it continues; the counts below compare with it."""

    window_id: str = ""
    num_users: int | None = None
    num_items: int | None = None
    num_tokens: int | None = None
    num_held_out: int | None = None
    partitions: int | None = None
    since: str | None = None
    until: str | None = None
    undated: bool | None = None
    has_order: bool | None = None
    funnel: list[tuple[str, int]] = []
    bytes: int | None = None
    base: str | None = None
    num_changed: int | None = None
    num_new_users: int | None = None
    num_left: int | None = None
    num_new_items: int | None = None


class UnchangedStep(Step):
    """No user's tokens changed since this release, so nothing else was done."""

    release: str = ""


class TrainStep(Step):
    """A training, from its last manifest (trainer/training/record.py). workers: a record of each, if there are several.

    loss, heldout_loss: of the interest, or of a trail that stands alone; lags: the trail's weights of the pages before the next.
    """

    generation: int | None = None
    kernel: str | None = None
    kernel_reason: str | None = None
    plan: dict[str, Any] = {}
    best: dict[str, Any] | None = None
    stopped_after_epoch: int | None = None
    peak_bytes: int | None = None
    train_seconds: float | None = None
    num_processes: int | None = None
    num_commits: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    heldout_loss: float | None = None
    trail_loss: float | None = None
    trail_heldout_loss: float | None = None
    curve: list[dict[str, Any]] = []
    lags: list[float] = []
    stall: float | None = None
    commit_stall: float | None = None
    compile_seconds: float | None = None
    workers: list[dict[str, Any]] = []


class Comparison(_Record):
    """How the vectors and the champion's rank items unseen by both. reason: why they could not be compared."""

    champion: str | None = None
    reason: str | None = None
    num_users: int | None = None
    num_items: int | None = None
    coverage: float | None = None
    champion_coverage: float | None = None
    ranks: str | None = None


class ChooseStep(Step):
    """The trail's weight and the popularity. kept_from: the release whose values are kept; gain: the mean of log(rank with the
    usual values / rank) of the users who chose, with its standard error; hit_at_20: of each weight.
    """

    trail_weight: float | None = None
    popularity: float = 0.0
    kept_from: str | None = None
    num_users: int | None = None
    hit_at_20: dict[str, float] = {}
    gain: float | None = None
    standard_error: float | None = None

    def describe_values(self) -> str:
        """Return the values in words; a log without an order has no weight."""
        weight = "" if self.trail_weight is None else f"weight of the trail {self.trail_weight:g}, "
        return f"{weight}popularity {self.popularity:+g}"

    def describe_gain(self) -> str:
        """Return by what share ranks are lower, in words."""
        kept = math.exp(-(self.gain or 0))
        error = kept * (self.standard_error or 0)
        return f"ranks {format_percent(1 - kept)} ± {format_percent(error)} lower in the geometric mean"


class Returns(_Record):
    """How well the champion's vectors say who came back. auc: of columns of the vectors, with the ends of its 95 % interval."""

    num_users: int
    num_returned: int
    auc: dict[str, tuple[float, float, float]]


class EvaluateStep(Step):
    """Quality on the held-out users."""

    num_users: int | None = None
    metrics: dict[str, float] = {}
    comparison: Comparison | None = None
    returns: Returns | None = None


class RefitStep(Step):
    """The generation in which held-out users are fitted again on all their tokens, and the number of these users."""

    generation: int | None = None
    num_users: int | None = None


class SettleStep(Step):
    """The generation of all users and its space. kind: full or incremental; cosine, num_items: of an alignment."""

    kind: str = "full"
    space_id: str = ""
    generation: int | None = None
    cosine: float | None = None
    num_items: int | None = None


class ExportStep(Step):
    """The release that was written. activity: of each count, what half of the users, and a ninth, had when the space began."""

    release: str = ""
    export_dir: str = ""
    num_users: int | None = None
    num_items: int | None = None
    vector_size: int | None = None
    dtype: str = "float32"
    bytes: int | None = None
    index_kind: str | None = None
    index_seconds: float | None = None
    activity: dict[str, list[float]] = {}
    metrics: dict[str, float] = {}


class GateStep(Step):
    """The gate's verdict. champion: the release it was compared with; days: the events of each day.

    overridden: why a person promoted the release all the same. The registry has it (registry/releases.py), run.json has not.
    """

    passes: bool | None = None
    verdict: str = ""
    champion: str | None = None
    held_by: list[str] = []
    table: list[dict[str, str]] = []
    metrics: dict[str, float] = {}
    days: dict[str, int] = {}
    overridden: str | None = Field(None, exclude=True)

    @property
    def is_held(self) -> bool:
        """Whether the gate failed and was not overridden."""
        return self.passes is False and not self.overridden


class RegisterStep(Step):
    """The version that the release became. storage: copy or reference. The registry has the alias, run.json has not."""

    model_name: str = ""
    model_version: int = 0
    alias: str | None = Field(None, exclude=True)
    storage: str = "copy"
    tracking_uri: str = ""
    mlflow_run_id: str = ""
    mlflow_page: str | None = None


class PushStep(Step):
    """The stores that the night pushed to: what `surf2vec push` returns, or the URL and the error of one that failed."""

    stores: list[dict[str, Any]] = []


class ReportStep(Step):
    """The path of the report page."""

    report: str = ""


class Steps(_Record):
    """The steps, in the order of a nightly run."""

    ingest: IngestStep = Field(default_factory=IngestStep)
    corpus: CorpusStep = Field(default_factory=CorpusStep)
    unchanged: UnchangedStep = Field(default_factory=UnchangedStep)
    train: TrainStep = Field(default_factory=TrainStep)
    choose: ChooseStep = Field(default_factory=ChooseStep)
    evaluate: EvaluateStep = Field(default_factory=EvaluateStep)
    refit: RefitStep = Field(default_factory=RefitStep)
    settle: SettleStep = Field(default_factory=SettleStep)
    export: ExportStep = Field(default_factory=ExportStep)
    gate: GateStep = Field(default_factory=GateStep)
    registered: RegisterStep = Field(
        default_factory=RegisterStep, alias="register"
    )  # pydantic has a `register` of its own
    push: PushStep = Field(default_factory=PushStep)
    report: ReportStep = Field(default_factory=ReportStep)

    def ended(self) -> dict[str, Step]:
        return {step.name: step for _, step in self if step}

    def find(self, kind: type[S]) -> S:
        """Return the record of a step; an empty one if it has not finished."""
        return next(step for _, step in self if isinstance(step, kind))

    def replace(self, *steps: Step) -> "Steps":
        """Return a copy with these steps replaced."""
        return Steps.model_validate(self.ended() | {step.name: step for step in steps if step})

    def without(self, *kinds: type[Step]) -> "Steps":
        return Steps.model_validate({name: step for name, step in self.ended().items() if type(step) not in kinds})


class ReleaseBefore(_Record):
    """A release that a nightly run continues. full_until: the last day of the window of the last full night."""

    release: str
    window_id: str
    space_id: str
    full_until: str | None = None


class NightPlan(_Record):
    """What a run began with (tasks/training/beginning.py).

    request: the digest by which the same command finds this run; champion: the release that served; base: the release that it
    continues, None for a full night; space: the champion whose vector space it keeps; start: where training starts from;
    retained: the corpus whose users without events keep their vectors in a full night; popularity: that of the space.
    """

    request: str | None = None
    champion: str | None = None
    base: ReleaseBefore | None = None
    space: ReleaseBefore | None = None
    full_because: str | None = None
    full_until: str | None = None
    start: str = ""
    retained: str | None = None
    popularity: float = 0.0


class RunRecord(NightPlan):
    """What a run began with, and its steps.

    gone_steps: steps whose results are gone; forgotten_from: the release that this one copies without its forgotten users.
    """

    run_id: str
    created_at: str = ""
    command: str = ""
    window_id: str = ""
    config: dict[str, Any] = {}
    forgotten_from: str | None = None
    gone_steps: Steps = Steps()
    steps: Steps

    def require(self, kind: type[S]) -> S:
        """Return the record of a step. Raises DamageError when there is none."""
        if step := self.steps.find(kind):
            return step
        raise DamageError(f"the record of run {self.run_id} has no step {kind.name!r}: run it again with --full")

    def setting(self, section: str, name: str) -> Any:
        return self.config.get(section, {}).get(name)

    def replace(self, **values: Any) -> "RunRecord":
        """Return a copy with these values replaced, as records or JSON; validates them."""
        return RunRecord.model_validate({name: getattr(self, name) for name in self.model_fields_set} | values)

    def reopen(self, kind: type[Step]) -> "RunRecord":
        """Return a copy in which the step is not done."""
        step = self.steps.find(kind)
        return self.replace(steps=self.steps.replace(step.model_copy(update={"digest": ""}))) if step else self

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_unset=True)


def read_run_record(path: Path) -> RunRecord:
    """Return the record in a `run.json`. Raises DamageError, which says what to do, when it is invalid."""
    try:
        return parse_run_record(read_json(path), str(path))
    except DamageError as error:
        raise DamageError(f"{error}; remove {path.parent} and run again") from None


def parse_run_record(values: Any, place: str) -> RunRecord:
    """Return a record from JSON. Raises DamageError, which names the place and the first wrong value, when it is invalid."""
    try:
        return RunRecord.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "it"
        if first["type"] == "extra_forbidden":
            reason = f"{name} is not known: it was altered, or is of a newer version of surf2vec"
        else:
            reason = f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}; it was altered"
        raise DamageError(f"{place} is not the record of a run: {reason}") from None
