"""The report's table of steps: what each took, and what it made."""

from typing import Any

from tasks.report.tables import STEPS, Story, step_of, tell_gate
from tasks.root.wording import UNKNOWN, amount, brief, count, duration, phrase, score, several, share


def list_steps(story: Story) -> list[dict[str, Any]]:
    """What each step took and made: `name`, `made`, `size`, `seconds`, `share`, `width` of its part of the bar."""
    total = sum(step_of(story, name).get("seconds") or 0 for name in STEPS)
    rows = []
    for tint, (name, title) in enumerate(STEPS.items()):
        step = step_of(story, name)
        part = (step.get("seconds") or 0) / total if total else 0
        size_bytes = step.get("bytes", step.get("bytes_written"))
        rows.append(
            {
                "name": title,
                "ended": bool(step),
                "made": tell_made(name, step) if step else "did not end",
                "size": amount(size_bytes) if size_bytes is not None else "",
                "seconds": duration(step.get("seconds")) if step else UNKNOWN,
                "share": share(part) if step else "",
                "width": round(100 * part, 3),
                "tint": tint,
            }
        )
    return rows


def tell_made(name: str, step: Story) -> str:
    """What a step made, in a line."""
    if name == "ingest":
        kinds = [("new", "sources_new"), ("replaced", "sources_replaced"), ("known", "sources_known")]
        sources = ", ".join(f"{count(step[key])} {kind}" for kind, key in kinds if step.get(key))
        formats, clocks = (", ".join(phrase(str(one)) for one in step.get(key) or ()) for key in ("formats", "times"))
        parts = [several(step.get("events"), "event"), f"sources: {sources}" if sources else "", formats, clocks]
    elif name == "corpus":
        parts = [
            several(step.get("num_tokens"), "token"),
            f"{count(step.get('num_held_out'))} held out",
            several(step.get("partitions"), "micro-partition"),
        ]
    elif name == "train":
        rate = step.get("tokens_per_second")
        parts = [
            f"generation {step.get('generation', UNKNOWN)}",
            f"{brief(rate)} tokens/s" if rate else "",
            f"{step.get('kernel', UNKNOWN)} kernel",
            several(step.get("num_commits"), "commit"),
        ]
    elif name == "evaluate":
        num_users = step.get("num_users")
        parts = [f"{several(num_users, 'user')} ranked" if num_users else "turned off, or no user held out"]
    elif name == "export":
        index = f"{step.get('index_kind', 'no')} index in {duration(step.get('index_seconds'))}"
        parts = [f"{count(step.get('num_users'))} user and {count(step.get('num_items'))} item vectors", index]
        parts += tell_storage(step)
    elif name == "gate":
        parts = [tell_gate(step)]
    else:
        version = f"{step.get('model_name', UNKNOWN)} version {step.get('model_version', UNKNOWN)}"
        parts = [version, step.get("alias") or ""]
    return " · ".join(part for part in parts if part)


def tell_storage(export: Story) -> list[str]:
    """What a release gives up for its size: of neighbours, of the vectors, and of the quality."""
    metrics = export.get("metrics") or {}
    recall, kept = metrics.get("index_recall_at_10"), metrics.get("export_explained_variance")
    hit, lost = metrics.get("export_hit_at_10"), metrics.get("export_hit_at_10_loss")
    return [
        f"finds {share(recall)} of the 10 nearest users" if recall is not None else "",
        f"reduced to {export.get('vector_size')} numbers, {share(kept)} of the variance" if kept is not None else "",
        f"stored as {export['dtype']}" if export.get("dtype", "float32") != "float32" else "",
        f"hit@10 {score(hit)}, {abs(lost):.4f} {'below' if lost >= 0 else 'above'} that in full"
        if lost is not None
        else "",
    ]
