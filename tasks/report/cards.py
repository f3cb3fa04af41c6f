"""What a run and a version say of themselves, in Markdown: the lines of a night, the card of a model, the card of a version."""

from typing import Any

from surf2vec.tasks.report.tables import describe_gate
from surf2vec.tasks.root.records import CorpusStep, EvaluateStep, ExportStep, GateStep, RunRecord
from surf2vec.tasks.root.wording import (
    as_markdown,
    format_bytes,
    format_count,
    format_duration,
    format_score,
    format_short,
)

NUM_ID_CHARACTERS = 6


def name_night(record: RunRecord) -> str:
    """Returns the name of a run for a person: the last day of its window, its kind, and the beginning of its id."""
    corpus = record.steps.corpus or CorpusStep()
    kind = "incremental" if record.base else "full"
    return f"{corpus.until or record.created_at[:10]} · {kind} · {record.run_id[:NUM_ID_CHARACTERS]}"


def list_night(record: RunRecord) -> list[str]:
    """Returns what came of a run, a Markdown line each: users, quality, gate, release."""
    steps, lines = record.steps, []
    corpus = steps.corpus or CorpusStep()
    metrics = (steps.evaluate or EvaluateStep()).metrics
    export = steps.export or ExportStep()
    changed = "" if corpus.num_changed is None else f", {format_count(corpus.num_changed)} of them changed"
    lines.append(f"**Users** {format_count(export.num_users)}{changed}; {format_count(export.num_items)} items")
    if metrics:
        popular = format_score(metrics.get("popularity_hit_at_10"))
        lines.append(f"**hit@10** {format_score(metrics.get('hit_at_10'))}, popularity {popular}")
    if steps.gate:
        lines.append(f"**Gate** {as_markdown(describe_gate(steps.gate))}")
    if steps.registered:
        made, alias = steps.registered, steps.registered.alias
        as_what = f"as {alias}" if alias else "without an alias"
        lines.append(f"**Version** {made.model_version} of {as_markdown(made.model_name)}, registered {as_what}")
    return lines


def describe_time(record: RunRecord) -> str:
    """Returns the line that says how long a run took."""
    seconds = {name: step.seconds or 0 for name, step in record.steps.ended().items()}
    return f"**Time** {format_duration(sum(seconds.values()))}, training {format_duration(seconds.get('train'))}"


def model_card(model_name: str) -> str:
    """Returns the description of a registered model: what holds for all its versions."""
    text = f"""\
A vector for each user of a website, learned from the pages they visited, made anew each night by surf2vec. A version is a
release; the alias `champion` is the one that serves.

**Who may use it** Whoever may read the logs it is made of. With the item files, a vector gives back its user's last pages.

**Load and rank**

```python
import mlflow, pandas as pd
model = mlflow.pyfunc.load_model("models:/{model_name}@champion")
users = pd.DataFrame({{"user_id": ["a", "b"]}})
vectors = model.predict(users)  # null for an unknown user
ranked = model.predict(users, params={{"k": 10, "items": 10}})
```

`k` adds the nearest users, `items` the items that rank first. With a column `pages`, lists of URLs, oldest first, the trail is
summed up from them, of anybody. `surf2vec pull models:/{model_name}@champion --out FOLDER` gets all vectors as Parquet.

**A vector** has two parts side by side: *interest*, what a user is about, and, if the log has an order, *trail*,
where the user is
now. The dot product with an item's vector ranks; cosines compare users. The last coordinates of a part are constants, by which
items have their popularity. Vectors of different releases compare only if the tag `space_id` is the same.

**hit@10** is the share of users whose next page, held out, is among the ten that rank first; popularity has the same ten for all.

**Not in it** Query strings but for the keys that were kept, e-mail addresses and session ids (with `ingest.mask_secrets`), pages
of fewer people than `ingest.min_item_users`, users with fewer events than `ingest.min_user_events`.

**Limits** Vectors tell what was visited, not why. Users with few pages have vague ones. A page that is new since last night has
no vector.

**Whom to ask** The owner of the runs in the experiment of this model. The README of surf2vec has the rest."""
    # A paragraph is one line: MLflow breaks lines wherever the text does. Code keeps its lines.
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith("```") else part.replace("\n", " ") for part in parts)


def version_card(record: RunRecord, manifest: dict[str, Any], size_bytes: int, export_uri: str | None = None) -> str:
    """Returns the card of a version: its figures, window, gate, origin and privacy. export_uri: where its vectors are, if not in
    the registry.
    """
    corpus, gate = record.steps.corpus or CorpusStep(), record.steps.gate or GateStep()
    place = f"not in the registry but in {as_markdown(export_uri)}" if export_uri else "in the registry"
    begun = (
        f"after release {record.base.release}" if record.base else f"trained anew: {record.full_because or 'as asked'}"
    )
    lines = [
        f"Release {manifest['release']}: a vector of {manifest['vector_size']} dimensions for each of "
        f"{manifest['num_users']:,} users and for {manifest['num_items']:,} items, {format_bytes(size_bytes)}. They are {place}.",
        "",
        *(f"* {line}" for line in list_night(record)[1:]),
        f"* **Window** {corpus.since or 'undated'} to {corpus.until or 'undated'}, {format_short(corpus.num_tokens or 0)} tokens",
        f"* **Origin** run {record.run_id}, corpus {manifest['created_from']['window_id']}, generation {manifest['generation']}, "
        f"{begun}",
        f"* **Space** {manifest['space_id']}: compare with releases of the same one only",
        f"* **Privacy** {_describe_privacy(record)}",
    ]
    if gate.table:
        lines += ["", "| rule | tonight | limit | verdict |", "|---|---|---|---|"]
        lines += map(_show_rule, gate.table)
    return "\n".join(lines)


def _show_rule(row: dict[str, str]) -> str:
    """Return the row of a rule: a figure is not parted from its sign and its unit, and a rule that holds is bold."""
    cells = [as_markdown(row[name]) for name in ("rule", "tonight", "limit", "verdict")]
    cells = [cell.replace("= ", "=\u00a0").replace(" %", "\u00a0%") for cell in cells]
    cells[-1] = f"**{cells[-1]}**" if row["verdict"].startswith("held") else cells[-1]
    return f"| {' | '.join(cells)} |"


def _describe_privacy(record: RunRecord) -> str:
    users, pseudonyms = record.setting("ingest", "min_item_users"), record.setting("ingest", "user_key_env")
    texts = (
        f"pages of fewer than {users} people are left out" if users else "",
        "e-mail addresses and session ids are masked" if record.setting("ingest", "mask_secrets") else "",
        "user ids are pseudonyms" if pseudonyms else "user ids are those of the logs",
        f"without the users forgotten since release {record.forgotten_from}" if record.forgotten_from else "",
    )
    return "; ".join(filter(None, texts))
