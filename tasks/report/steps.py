"""The report's table of steps: what each took, and what it made."""

from typing import Any

from tasks.report.tables import STEPS, tell_gate
from tasks.root.story import (
    CorpusStep,
    EvaluateStep,
    ExportStep,
    GateStep,
    IngestStep,
    RefitStep,
    RegisterStep,
    Step,
    Story,
    TrainStep,
)
from tasks.root.wording import UNKNOWN, amount, brief, count, duration, phrase, score, several, share


def list_steps(story: Story) -> list[dict[str, Any]]:
    """What each step took and made: `name`, `made`, `size`, `seconds`, `share`, `width` of its part of the bar."""
    ended = story.steps.ended()
    total = sum(step.seconds or 0 for name, step in ended.items() if name in STEPS)
    rows = []
    for tint, (name, title) in enumerate(STEPS.items()):
        step = ended.get(name)
        part = (step.seconds or 0) / total if step and total else 0
        rows.append(
            {
                "name": title,
                "ended": step is not None,
                "made": tell_made(step) if step else "did not end",
                "size": tell_size(step),
                "seconds": duration(step.seconds) if step else UNKNOWN,
                "share": share(part) if step else "",
                "width": round(100 * part, 3),
                "tint": tint,
            }
        )
    return rows


def tell_size(step: Step | None) -> str:
    """The bytes that a step wrote; empty where it does not tell."""
    if isinstance(step, CorpusStep | ExportStep):
        size_bytes = step.bytes
    else:
        size_bytes = step.bytes_written if isinstance(step, TrainStep) else None
    return "" if size_bytes is None else amount(size_bytes)


def tell_made(step: Step) -> str:
    """What a step made, in a line."""
    return " · ".join(part for part in list_made(step) if part)


def list_made(step: Step) -> list[str]:
    """The parts of that line; some are empty."""
    match step:
        case IngestStep():
            kinds = [("new", step.sources_new), ("replaced", step.sources_replaced), ("known", step.sources_known)]
            sources = ", ".join(f"{count(number)} {kind}" for kind, number in kinds if number)
            formats, clocks = (", ".join(map(phrase, names)) for names in (step.formats, step.times))
            return [several(step.events, "event"), f"sources: {sources}" if sources else "", formats, clocks]
        case CorpusStep():
            held_out = f"{count(step.num_held_out)} held out"
            return [several(step.num_tokens, "token"), held_out, several(step.partitions, "micro-partition")]
        case TrainStep():
            return [
                f"generation {step.generation or UNKNOWN}",
                f"{brief(step.tokens_per_second)} tokens/s" if step.tokens_per_second else "",
                f"{step.kernel or UNKNOWN} kernel",
                several(step.num_commits, "commit"),
            ]
        case EvaluateStep():
            ranked = f"{several(step.num_users, 'user')} ranked"
            return [ranked if step.num_users else "turned off, or no user held out"]
        case RefitStep():
            return [f"{several(step.num_users, 'user')} fitted again, on all they did"]
        case ExportStep():
            vectors = f"{count(step.num_users)} user and {count(step.num_items)} item vectors"
            index = f"{step.index_kind or 'no'} index in {duration(step.index_seconds)}"
            return [vectors, index, *tell_storage(step)]
        case GateStep():
            return [tell_gate(step)]
        case RegisterStep():
            return [f"{step.model_name or UNKNOWN} version {step.model_version or UNKNOWN}", step.alias or ""]
    return []


def tell_storage(export: ExportStep) -> list[str]:
    """What a release gives up for its size: of neighbours, of the vectors, and of the quality."""
    metrics = export.metrics
    recall, kept = metrics.get("index_recall_at_10"), metrics.get("export_explained_variance")
    hit, lost = metrics.get("export_hit_at_10"), metrics.get("export_hit_at_10_loss")
    return [
        f"finds {share(recall)} of the 10 nearest users" if recall is not None else "",
        f"reduced to {export.vector_size} numbers, {share(kept)} of the variance" if kept is not None else "",
        f"stored as {export.dtype}" if export.dtype != "float32" else "",
        f"hit@10 {score(hit)}, {abs(lost):.4f} {'below' if lost >= 0 else 'above'} that in full"
        if lost is not None
        else "",
    ]
