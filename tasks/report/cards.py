"""What a run and a version say of themselves, in Markdown: the lines of a night, the card of a model, the card of a version."""

from pathlib import Path
from typing import Any

from surf2vec.tasks.report.tables import explain_held, list_facts
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.wording import as_markdown, describe_rule, format_bytes

NIGHT = ("Users", "hit@10", "Gate", "Version")  # MLflow folds a longer description
NUM_ID_CHARACTERS = 6


def name_night(record: RunRecord) -> str:
    """Return the name of a run for a person: the last day of its window, its kind, and the beginning of its id."""
    corpus = record.steps.corpus
    kind = "incremental" if record.base else "full"
    return f"{corpus.until or record.created_at[:10]} · {kind} · {record.run_id[:NUM_ID_CHARACTERS]}"


def list_night(record: RunRecord, *more: str) -> list[str]:
    """Return what came of a run as a Markdown list: users, quality, gate, version, and more facts by name."""
    facts = list_facts(record)
    names = [name for name in (*NIGHT, *more) if name in facts]
    return [f"* **{name}** {as_markdown(', '.join(filter(None, facts[name])))}" for name in names]


def list_held(record: RunRecord) -> list[str]:
    """Return why a release is held and what can follow, as Markdown; empty if it is not held. A path is too wide for a phone."""
    lines = [f"* {as_markdown(one)}" for one in explain_held(record, "ROOT")]
    return ["**Held by the gate: the champion keeps serving.**", "", *lines, ""] if lines else []


def model_card(model_name: str) -> str:
    """Return the description of a registered model: what holds for all its versions. A paragraph is one line, as MLflow breaks
    lines wherever the text does.
    """
    return (Path(__file__).parent / "templates/model_card.md").read_text("utf-8").replace("MODEL", model_name).strip()


def version_card(record: RunRecord, manifest: dict[str, Any], size_bytes: int, export_uri: str | None = None) -> str:
    """Return the card of a version: its figures, window, gate, origin and privacy. export_uri: where its vectors are, if not in
    the registry.
    """
    gate = record.steps.gate
    place = f"not in the registry but in {as_markdown(export_uri)}" if export_uri else "in the registry"
    begun = f"everything trained: {record.full_because or 'as requested'}"
    if record.base:
        begun = f"after release {record.base.release}"
    lines = [
        *list_held(record),
        f"Release {manifest['release']}: a vector of {manifest['vector_size']} dimensions for each of "
        f"{manifest['num_users']:,} users and for {manifest['num_items']:,} items, {format_bytes(size_bytes)}. They are {place}.",
        "",
        *list_night(record, "Window", "Tokens")[1:],
        f"* **Origin** run {record.run_id}, corpus {manifest['created_from']['window_id']}, generation {manifest['generation']}, "
        f"{begun}",
        f"* **Space** {manifest['space_id']}: compare with releases of the same one only",
        f"* **Privacy** {_describe_privacy(record, manifest)}",
    ]
    if gate.table:
        lines += ["", "| rule | tonight | limit | verdict |", "|---|---|---|---|"]
        lines += map(_show_rule, gate.table)
    return "\n".join(lines)


def _show_rule(row: dict[str, str]) -> str:
    """Return the row of a rule: a figure is not parted from its unit, and a rule that holds is bold."""
    texts = row["rule"], row["tonight"], row["limit"], describe_rule(row)
    cells = [as_markdown(text).replace(" %", "\u00a0%") for text in texts]
    cells[-1] = f"**{cells[-1]}**" if row["verdict"] == "held" else cells[-1]
    return f"| {' | '.join(cells)} |"


def _describe_privacy(record: RunRecord, manifest: dict[str, Any]) -> str:
    users, pseudonyms = record.setting("ingest", "min_item_users"), record.setting("ingest", "user_key_env")
    trails, activity = ("exact" if part in manifest else "left out" for part in ("trail", "activity"))
    noise = manifest.get("storage", {}).get("noise", 0)
    texts = (
        f"noise {noise:g}, trails {'noisy' if noise and trails == 'exact' else trails}, activity {activity}",
        f"pages of fewer than {users} people are left out" if users else "",
        "e-mail addresses and session ids are masked" if record.setting("ingest", "mask_secrets") else "",
        "user ids are pseudonyms" if pseudonyms else "user ids are those of the logs",
        f"without the users forgotten since release {record.forgotten_from}" if record.forgotten_from else "",
    )
    return "; ".join(filter(None, texts))
