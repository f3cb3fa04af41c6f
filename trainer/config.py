"""The settings of a training: frozen dataclasses, checked when they are made.

Names and meanings are gensim's where the concept is the same. A field's title, description and bounds are used in the help of
`python -m surf2vec.trainer`, in the form in Prefect's UI and in the check below.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from surf2vec.trainer.errors import ConfigError

DISCOUNT = 0.5
"""The popularity discount unless it is set: only then the log chooses the popularity."""
TRAIL_BIAS = 0.5
"""The last coordinate of all users' trails: items learn their popularity in theirs."""
TRAIL_BIASES = 2  # the last numbers of the trail's vectors: how popular items are, backward and forward
MIN_TRAIL_SIZE = 2 + TRAIL_BIASES
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("below", operator.lt),
}


def setting(default: Any, title: str, description: str, **bounds: float) -> Any:
    """Return a dataclass field with a title, a description and bounds (`ge`, `gt`, `le`, `lt`)."""
    return dataclasses.field(default=default, metadata={"title": title, "description": description, **bounds})


@dataclass(frozen=True)
class TrainSettings:
    """The settings that a person can change: in a TOML file, with `--set`, and in the form of Prefect's UI."""

    vector_size: int = setting(
        128, "Vector size", "Dimensions of user and item vectors, both parts together.", ge=1, le=4096
    )
    epochs: int = setting(20, "Epochs", "Passes over all tokens.", ge=1, le=10_000)
    dm: Literal[0, 1] = setting(0, "PV-DM", "0: PV-DBOW, a user predicts its items. 1: PV-DM, user and context do.")
    window: int = setting(5, "Window", "Tokens on each side that count as context (dm).", ge=1, le=100)
    hs: Literal[0, 1] = setting(0, "Hierarchical softmax", "1: learn by a tree of items instead of by `objective`.")
    objective: Literal["sampled_softmax", "negative_sampling"] = setting(
        "sampled_softmax", "Objective", "The loss of a token, against `negative` drawn items."
    )
    negative: int = setting(32, "Negatives", "Items drawn against each token, for `tile_users` at once.", ge=1, le=1000)
    ns_exponent: float = setting(
        0.5, "Negative exponent", "Negatives are drawn by count ** this: 1 as counted, 0 uniform.", ge=-1, le=1
    )
    discount: float = setting(
        DISCOUNT,
        "Popularity discount",
        "Rank by probability / count ** this; 0: by probability, more: rarer first. The log corrects the default.",
        ge=0,
        le=1,
    )
    trail_weight: float | None = setting(
        None,
        "Trail's weight",
        "Weight beside the interest; 0: no trail, 1: no interest. Default: by the log.",
        ge=0,
        le=1,
    )
    alpha: float = setting(0.2, "Learning rate", "Learning rate at the first token; falls linearly.", gt=0, le=10)
    l2: float = setting(
        1.4, "L2", "L2 of a user's vector at each of its n tokens, divided by the root of n.", ge=0, le=10
    )
    item_l2: float = setting(
        0.06, "Item L2", "Pull of an item's vector towards zero, at each of its tokens.", ge=0, le=10
    )
    recency: float | None = setting(
        None, "Recency", "Half-life of events, in events; 0: off. Default: 3 without a trail, else 0.", ge=0, le=1e6
    )
    sample: float = setting(
        1e-2, "Subsampling", "Items above this share of all tokens are thinned out at random; 0 keeps all.", ge=0, le=1
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "Storage", "User vectors at rest, in memory and on disk; arithmetic is float32."
    )
    items_from: str = setting(
        "", "Items from", "A word2vec-format file whose vectors the items with the same URLs begin from; empty: none."
    )
    seed: int = setting(1, "Seed", "Every random draw is a function of it.", ge=0, le=2**63 - 1)
    threads: int = setting(0, "Threads", "CPU threads; 0 takes all. One is deterministic.", ge=0, le=1024)
    commit_seconds: float = setting(
        60.0, "Commit interval", "Seconds after which the next micro-partition's end commits.", ge=0, le=86_400
    )


@dataclass(frozen=True)
class TrainConfig(TrainSettings):
    """All settings. Those beyond TrainSettings are constant in `surf2vec`; Python code and `python -m surf2vec.trainer`
    can set them.
    Raises ConfigError when a value is out of bounds, or when two values cannot be combined.
    """

    trail_window: int = setting(5, "Trail's window", "Pages before the newest that the trail sums up.", ge=1, le=100)
    trail_negative: int = setting(
        64, "Trail's negatives", "Items drawn against a tile of the trail's targets.", ge=1, le=1000
    )
    trail_l2: float = setting(
        0.2, "Trail's L2", "L2 of item vectors at each use, divided by the root of a tenth of the count.", ge=0, le=10
    )
    popularity: float = setting(
        0.0, "Popularity", "Subtracted from both discounts: what the log chose after a training.", ge=-1, le=1
    )
    trail_discount: float = setting(0.2, "Trail's discount", "As discount, for the trail.", ge=0, le=1)
    trail_backward: float = setting(
        0.5, "Backward share", "Share of targets that are predicted from the pages after them; falls to 0.", ge=0, le=1
    )
    parts: Literal["both", "interest", "trail"] = setting(
        "both",
        "Parts",
        "Parts of a vector; trail_weight 0 leaves only the interest, 1 only the trail, as does a log without order.",
    )
    tree: Literal["huffman", "two_level", "balanced"] = setting(
        "huffman", "Tree", "Shape (hs): Huffman's, two levels of about sqrt(items), or `tree_branching` a node."
    )
    tree_branching: int = setting(16, "Branching", "Children of a node (hs, tree balanced).", ge=2, le=65_536)
    negative_weight: float = setting(
        2.0, "Weight of negatives", "Items that a drawn one stands for in a sampled softmax.", gt=0, le=1000
    )
    tile_users: int = setting(
        32,
        "Users per tile",
        "Users who share negatives at each step (negative sampling: at most 2); 1: none.",
        ge=1,
        le=1024,
    )
    bias: float = setting(
        0.5, "Bias", "Last coordinate of every user, by which items learn their popularity; 0: none.", ge=0, le=10
    )
    optimizer: Literal["adagrad", "sgd"] = setting("adagrad", "Optimizer", "Row-wise Adagrad, or plain gradient steps.")
    min_alpha: float = setting(0.02, "Final learning rate", "Learning rate at the last token.", ge=0, le=10)
    accumulate: int = setting(
        1, "Users per step", "Users whose gradients are summed before items move (PV-DBOW with drawn negatives).", ge=1
    )
    patience: int = setting(
        0, "Patience", "Epochs without a lower held-out loss until training ends with the best; 0: off.", ge=0, le=1000
    )
    sharing: Literal["auto", "replicated", "asynchronous", "sharded"] = setting(
        "auto", "Sharing", "How several workers share the item table; `auto` lets the planner choose."
    )
    exchange_tokens: int = setting(
        0, "Exchange", "Tokens of a worker between exchanges of shared items; 0: a 256th of an epoch.", ge=0
    )
    staleness: int = setting(
        2, "Staleness", "Sums that may be in progress while a worker trains on (sharing asynchronous).", ge=1, le=64
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_setting(field, getattr(self, field.name))
        check_combination(self)

    @property
    def trail_size(self) -> int:
        """Dimensions of the trail: half of all if there are both parts, in full cache lines where that is possible."""
        if self.parts == "both":
            half = self.vector_size // 2
            return (half // 16 * 16 or half) if half >= MIN_TRAIL_SIZE else 0
        return self.vector_size if self.parts == "trail" else 0

    @property
    def interest_size(self) -> int:
        """Dimensions of the interest, which is trained for each user."""
        return self.vector_size - self.trail_size

    @property
    def part_sizes(self) -> dict[str, int]:
        """Dimensions of each part that a vector has, in the order of its columns."""
        sizes = {"interest": self.interest_size, "trail": self.trail_size}
        return {part: size for part, size in sizes.items() if size}

    @property
    def num_biases(self) -> dict[str, int]:
        """Coordinates at the end of each part that are the same for all users, so that an item's learn its popularity."""
        return {"interest": int(self.bias > 0), "trail": TRAIL_BIASES}

    @property
    def num_free(self) -> int:
        """Coordinates of a user's interest that are trained: all but the bias."""
        return max(0, self.interest_size - self.num_biases["interest"])

    @property
    def used_recency(self) -> float:
        """The recency of a log with an order."""
        usual = 0.0 if self.trail_size else 3.0
        return usual if self.recency is None else self.recency

    @property
    def handicap(self) -> float:
        """The amount subtracted from a token's own score: log `negative_weight` in a sampled softmax, else 0."""
        return math.log(self.negative_weight) if self.objective == "sampled_softmax" else 0.0

    @property
    def num_lanes(self) -> int:
        """Users of a tile. The sigmoids of negative sampling do not bound the sum of their pulls as a softmax does: many users
        at once would overshoot. In a tree users take turns.
        """
        most = self.tile_users if self.objective == "sampled_softmax" else 2
        return 1 if self.hs else min(self.tile_users, most)

    @property
    def has_tiles(self) -> bool:
        """Whether users share negatives."""
        return self.num_lanes > 1

    @property
    def has_inputs(self) -> bool:
        """Whether items have input vectors beside those that predict them."""
        return bool(self.dm)


def check_combination(config: TrainConfig) -> None:
    """Raise ConfigError for settings that cannot be combined; trainer/README.md has a table of those that can."""
    if config.min_alpha > config.alpha:
        raise ConfigError(
            f"train.min_alpha is {config.min_alpha:g}, above train.alpha {config.alpha:g}: "
            "the learning rate falls, so lower min_alpha or raise alpha"
        )
    if config.bias and config.vector_size == 1:
        raise ConfigError(
            f"train.vector_size is 1, and train.bias {config.bias:g} takes that coordinate of every user: "
            "raise vector_size, or set train.bias to 0"
        )
    if config.parts == "trail" and config.trail_size < MIN_TRAIL_SIZE:
        raise ConfigError(
            f"train.vector_size is {config.vector_size}, and a trail needs at least {MIN_TRAIL_SIZE}: raise it, or set "
            "train.trail_weight to 0"
        )
    if config.items_from and config.hs:
        raise ConfigError(
            "train.items_from gives item vectors, and a tree (train.hs = 1) has none: leave one of them out"
        )
    if config.accumulate > 1 and (config.dm or config.hs):
        other = "train.hs" if config.hs else "train.dm"
        raise ConfigError(f"train.accumulate is {config.accumulate}, but with {other} = 1 it has to be 1")


def check_setting(field: "dataclasses.Field[Any]", value: Any) -> None:
    """Raise ConfigError unless `value` is one of the field's choices, or a finite number of its type within its bounds."""

    def wrong(wanted: str) -> ConfigError:
        return ConfigError(f"train.{field.name} is {value!r}, but it has to be {wanted}")

    if value is None and field.default is None:
        return
    if field.default is not None and (choices := get_args(field.type)):
        if isinstance(value, bool) or value not in choices:
            raise wrong(" or ".join(map(str, choices)))
    elif field.type is str:
        if not isinstance(value, str):
            raise wrong("text")
    else:
        is_whole = field.type is int
        if (
            isinstance(value, bool)
            or not isinstance(value, int if is_whole else int | float)
            or not math.isfinite(value)
        ):
            raise wrong("a whole number" if is_whole else "a number")
        for bound, (word, is_within) in BOUNDS.items():
            if bound in field.metadata and not is_within(value, field.metadata[bound]):
                raise wrong(f"{word} {field.metadata[bound]:g}")


def _derive(alpha: Any, trail_weight: Any) -> dict[str, Any]:
    """Return the default learning rate at the last token, a tenth of that at the first, and the parts that have weight."""
    parts = "interest" if trail_weight == 0 else "trail" if trail_weight == 1 else "both"
    final = {"min_alpha": float(f"{alpha / 10:.6g}")} if isinstance(alpha, int | float) else {}
    return final | {"parts": parts}


def complete(settings: TrainSettings) -> TrainConfig:
    """Return all settings: these, and the constants of TrainConfig."""
    if isinstance(settings, TrainConfig):
        return settings
    return TrainConfig(**vars(settings), **_derive(settings.alpha, settings.trail_weight))


def config_from_dict(values: dict[str, Any]) -> TrainConfig:
    """Return a TrainConfig from a dictionary. Raises ConfigError, which lists the known keys, for an unknown key."""
    known = sorted(field.name for field in dataclasses.fields(TrainConfig))
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown setting train.{key}; there are: {', '.join(known)}")
    return TrainConfig(**(_derive(values.get("alpha"), values.get("trail_weight")) | values))
