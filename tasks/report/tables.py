"""What the run story says, as the tables of the report: status, verdict, key figures, quality, funnel, settings.

A step that is missing from the story, or a value that is missing from a step, leaves a gap or a dash, never an error:
the report of a run that failed is the one that is read most closely.
"""

import math
from datetime import date
from typing import Any

from tasks.root.credentials import mask_credentials
from tasks.root.story import CorpusStep, EvaluateStep, ExportStep, GateStep, IngestStep, RegisterStep, Story
from tasks.root.wording import UNKNOWN, amount, compact, count, duration, phrase, score, share, times

STEPS = {
    "ingest": "Ingest",
    "corpus": "Corpus",
    "train": "Train",
    "evaluate": "Evaluate",
    "refit": "Refit",
    "export": "Export",
    "gate": "Gate",
    "register": "Register",
}
METRICS = (
    ("hit_at_10", "hit@10", "the next page is among the first 10"),
    ("hit_at_20", "hit@20", "the next page is among the first 20"),
    ("mrr_at_20", "MRR@20", "1 / rank of the next page, 0 beyond 20"),
    ("ndcg_at_20", "NDCG@20", "the same, with ranks discounted gently"),
    ("coverage_at_20", "coverage@20", "share of all pages in anyone's first 20 (full bar: all)"),
)


def tell_status(story: Story) -> dict[str, str]:
    """`{"tone", "text"}`: how far the run came."""
    missing = [name for name in STEPS if name not in story.steps.ended()]
    if missing in (["register"], ["gate", "register"]):
        return {"tone": "warn", "text": "Exported, not registered"}
    if missing:
        return {"tone": "bad", "text": f"Not finished: {missing[0]} did not end"}
    made = story.require(RegisterStep)
    told = f"egistered{f' as {made.alias}' if made.alias else ''}, version {made.model_version or UNKNOWN}"
    if story.require(GateStep).is_held:
        return {"tone": "bad", "text": f"Held back by the gate; r{told}"}
    return {"tone": "good", "text": f"R{told}"}


def tell_gate(gate: GateStep | None) -> str:
    """The gate's verdict in a line; empty when it has not judged."""
    if gate is None:
        return ""
    held_by, table = ", ".join(gate.held_by), gate.table
    if gate.verdict == "first":
        return "The first release serves: there was no champion to hold it against."
    if gate.overridden:
        return f"Held back by {held_by}, and let through by a person: {gate.overridden}"
    if gate.is_held:
        return f"Held back by {held_by}: the champion keeps serving."
    idle = sum(row["verdict"].startswith("nothing to go by") for row in table)
    return f"Passed {len(table) - idle} rules; {idle} had nothing to go by." if table else ""


def list_rules(gate: GateStep | None) -> list[dict[str, str]]:
    """The gate's table, with each figure apart from its interval and each verdict apart from its reason."""
    rows = []
    for row in gate.table if gate else []:
        figure, _, interval = row["tonight"].partition(" (")
        word, _, reason = row["verdict"].replace(" back, ", " back: ", 1).partition(": ")
        rows.append(
            {
                "rule": row["rule"],
                "figure": figure or UNKNOWN,
                "interval": interval.removesuffix(")"),
                "limit": row["limit"],
                "word": word,
                "reason": reason,
                "tone": "bad" if word == "held back" else "soft",
            }
        )
    return rows


def tell_verdict(story: Story) -> dict[str, str]:
    """`{"tone", "figure", "text"}`: the quality in a figure and in a sentence."""
    evaluated = story.steps.evaluate
    metrics = evaluated.metrics if evaluated else {}
    hit, popular = metrics.get("hit_at_10"), metrics.get("popularity_hit_at_10")
    if evaluated is None or hit is None:
        if evaluated is None:
            text = "The run stopped before it was evaluated. The same command again goes on where it stopped."
            return {"tone": "bad", "figure": "Not finished", "text": text}
        text = "No user had a page held out: evaluate.max_users is 0, or histories are too short."
        return {"tone": "quiet", "figure": "Quality not measured", "text": text}
    num_users = evaluated.num_users or 1
    found = f"For {share(hit)} of {count(num_users)} users whose next new page was hidden, it was among the first ten."
    if popular is None:
        return {"tone": "quiet", "figure": f"hit@10 {score(hit)}", "text": found}
    noise = 2 * math.sqrt((hit * (1 - hit) + popular * (1 - popular)) / num_users)
    figure = f"hit@10 {score(hit)}, {compare(hit, popular)}"
    text = f"{found} The ten most visited pages alone are right for {share(popular)}."
    if abs(hit - popular) <= noise:
        return {"tone": "warn", "figure": figure, "text": f"{text} The difference is within the error of measurement."}
    return {"tone": "good" if hit > popular else "bad", "figure": figure, "text": text}


def compare(value: float, baseline: float) -> str:
    """`2.4 × popularity`, or in words where a ratio says nothing."""
    return f"{times(value / baseline)} popularity" if baseline > 0 else "where popularity finds none"


def list_figures(story: Story) -> list[dict[str, str]]:
    """The key figures: `label`, `value`, `note`."""
    steps = story.steps
    ingest, corpus, export = steps.ingest or IngestStep(), steps.corpus or CorpusStep(), steps.export or ExportStep()
    seconds = [step.seconds for name, step in steps.ended().items() if name in STEPS]
    lines, rejected = ingest.lines, ingest.num_rejected
    window, note = tell_window(steps.corpus)
    num_users = corpus.num_users or export.num_users
    num_items = corpus.num_items or export.num_items
    return [
        {"label": "Users", "value": compact(num_users), "note": "with a vector"},
        {"label": "Items", "value": compact(num_items), "note": "pages with a vector"},
        {"label": "Events", "value": compact(ingest.events), "note": f"from {compact(lines)} lines"},
        {
            "label": "Rejected",
            "value": compact(rejected),
            "note": f"{share(rejected / lines)} of lines" if rejected is not None and lines else "lines",
        },
        {"label": "Window", "value": window, "note": note},
        *list_trained(story),
        {
            "label": "Time",
            "value": duration(sum(one for one in seconds if one)) if seconds else UNKNOWN,
            "note": f"{len(seconds)} of {len(STEPS)} steps",
        },
    ]


def list_trained(story: Story) -> list[dict[str, str]]:
    """Of an incremental night: how many users it trained, and on what it builds."""
    base, corpus = story.base, story.steps.corpus
    if not base or not corpus:
        return []
    return [{"label": "Trained", "value": compact(corpus.num_changed), "note": f"users changed since {base.release}"}]


def tell_window(corpus: CorpusStep | None) -> tuple[str, str]:
    """The days trained on: how many, and which."""
    if not corpus:
        return UNKNOWN, "no corpus"
    since, until = corpus.since, corpus.until
    if not since or not until:
        return "All events", "they bear no dates"
    try:
        num_days = (date.fromisoformat(until) - date.fromisoformat(since)).days + 1
    except ValueError:
        return str(until), f"since {since}"
    return f"{num_days:,} day{'s' if num_days > 1 else ''}", since if since == until else f"{since} to {until}"


def list_quality(story: Story) -> dict[str, Any] | None:
    """Rows of vectors beside popularity, with widths of bars in per cent; None when nothing was measured."""
    evaluated = story.steps.evaluate or EvaluateStep()
    metrics, rows = evaluated.metrics, []
    longest = max((value or 0 for key, value in metrics.items() if "coverage" not in key), default=0) or 1
    for key, name, meaning in METRICS:
        ours, theirs = metrics.get(key), metrics.get(f"popularity_{key}")
        if ours is None and theirs is None:
            continue
        scale = 1 if key.startswith("coverage") else longest
        rows.append(
            {
                "name": name,
                "meaning": meaning,
                "ours": score(ours),
                "theirs": score(theirs),
                "ours_width": round(100 * (ours or 0) / scale, 2),
                "theirs_width": round(100 * (theirs or 0) / scale, 2),
                "ratio": times(ours / theirs) if ours is not None and theirs else UNKNOWN,
            }
        )
    if not rows:
        return None
    num_users, hit = evaluated.num_users or 0, metrics.get("hit_at_10")
    margin = 1.96 * math.sqrt(hit * (1 - hit) / num_users) if hit is not None and num_users else None
    return {"rows": rows, "num_users": count(num_users), "margin": None if margin is None else f"{margin:.3f}"}


def list_funnel(story: Story) -> list[list[dict[str, Any]]]:
    """From lines to tokens, then items, then users: groups of stages, each group drawn to its own scale.

    A stage has `name`, `n`, its `width` and `share` of the group's largest, and what went before it: `gone` in all,
    `lost` by reason where that is known.
    """
    ingest, corpus = story.steps.ingest or IngestStep(), story.steps.corpus or CorpusStep()
    groups: dict[str, list[tuple[str, int]]] = {"lines": []}
    if story.steps.ingest:
        groups["lines"] = [("lines", ingest.lines or 0), ("events", ingest.events or 0)]
    for name, n in corpus.funnel:
        unit = phrase(name).split(" ")[0]
        group = groups.setdefault(unit if unit in ("items", "users") else "lines", [])
        if not (unit == "events" and group and group[-1] == ("events", n)):  # all that was ingested is in the window
            group.append((phrase(name), n))
    lost = [
        {"reason": phrase(why), "n": count(n), "tone": tone}
        for reasons, tone in ((ingest.rejected, "bad"), (ingest.left_out, ""))
        for why, n in sorted_reasons(reasons)
    ]
    return [draw_stages(stages, lost if unit == "lines" else []) for unit, stages in groups.items() if stages]


def draw_stages(stages: list[tuple[str, int]], lost: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The stages of one group as `list_funnel` describes them; `lost` is what went between the first and the second."""
    most = max(n for _, n in stages) or 1
    before = [stages[0][1]] + [n for _, n in stages[:-1]]
    return [
        {
            "name": name,
            "n": count(n),
            "width": round(100 * n / most, 2),
            "share": share(n / most),
            "gone": count(earlier - n) if earlier > n else None,
            "gone_width": round(100 * max(earlier - n, 0) / most, 2),
            "lost": lost if ix == 1 else [],
        }
        for ix, ((name, n), earlier) in enumerate(zip(stages, before, strict=True))
    ]


def sorted_reasons(reasons: dict[str, int]) -> list[tuple[str, int]]:
    """Reasons that occurred, the most frequent first."""
    return sorted(((why, n) for why, n in reasons.items() if n), key=lambda pair: (-pair[1], pair[0]))


def list_settings(values: Any) -> list[dict[str, Any]]:
    """A nested configuration as groups `{"name", "rows": [(key, value)]}`, one a section."""
    if not isinstance(values, dict):
        return []
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            groups[key] = [(name, show_value(name, one)) for name, one in flatten(value).items()]
        else:
            groups.setdefault("", []).append((key, show_value(key, value)))
    return [{"name": name, "rows": rows} for name, rows in sorted(groups.items()) if rows]


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name: `{"train": {"epochs": 5}}` → `{"train.epochs": 5}`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def show_value(key: str, value: Any) -> str:
    """A setting's value as text: with its unit where the key names one, without credentials."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return mask_credentials(", ".join(str(one) for one in value)) or UNKNOWN
    if isinstance(value, int | float):
        if key.endswith("_bytes"):
            return amount(value)
        return count(value) if isinstance(value, int) else f"{value:g}"
    return mask_credentials(str(value))
