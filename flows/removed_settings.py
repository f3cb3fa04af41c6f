"""The settings of earlier versions that are none any more, and what took their place."""

from typing import Any

_TRAINER = "in `surf2vec` it is always {}; the trainer by itself (python -m trainer --config) still takes it"

REMOVED = {
    "ingest.columns.method": "a column named method is taken; rename yours",
    "ingest.columns.status": "a column named status or response is taken; rename yours",
    "ingest.columns.agent": "a column named user_agent or useragent is taken; rename yours",
    "ingest.prefix_depth": "write it into ingest.granularity: prefix:2 keeps two parts of the path",
    "ingest.collapse_repeats": "it is always true",
    "train.dbow_words": _TRAINER.format(0),
    "train.tree": _TRAINER.format("huffman"),
    "train.tree_branching": _TRAINER.format(16),
    "train.negative_weight": _TRAINER.format(4),
    "train.bias": _TRAINER.format(0.5),
    "train.optimizer": _TRAINER.format("adagrad"),
    "train.min_alpha": "it is always a tenth of train.alpha",
    "train.accumulate": _TRAINER.format(1),
    "train.patience": _TRAINER.format(0),
    "train.sharing": "the planner always chooses; the trainer by itself (python -m trainer --config) still takes it",
    "train.exchange_tokens": _TRAINER.format("a 256th of an epoch"),
    "train.staleness": _TRAINER.format(2),
    "export.quantise_above": "it is always 1,000,000",
    "gate.mrr_at_20_drop": "gate.hit_at_10_drop is for MRR@20, too",
    "gate.min_compared": "it is always 100",
    "gate.own_hit_at_10": "it follows from gate.hit_at_10_drop: ten times that may be lost",
    "gate.coverage": "gate.kept took its place",
    "gate.with_vector": "gate.kept took its place",
    "gate.users": "gate.kept took its place",
    "gate.items": "gate.kept took its place",
    "gate.cosine_p1": "it is always 0.98",
    "gate.norm_multiple": "it is always 5",
    "gate.norm_outliers": "it is always 0.01",
    "gate.allow_new_space": "a release in another space is always held; `surf2vec promote VERSION --override REASON` helps",
    "nightly.decay": "it is always 0.9",
    "nightly.min_alignment": "it is always 0.5",
    "alarms.alert_days": "it is alert_days, a parameter of the deployment `watch`",
}
"""Dotted key → what a person reads who still sets it."""

ALWAYS: dict[str, Any] = {
    "ingest.columns.method": ["method"],
    "ingest.columns.status": ["status", "response"],
    "ingest.columns.agent": ["user_agent", "useragent"],
    "ingest.collapse_repeats": True,
    "export.quantise_above": 1_000_000,
    "nightly.decay": 0.9,
    "nightly.min_alignment": 0.5,
}
"""Of those outside the training that say what a run makes, the values: they are part of what a run is known by."""
