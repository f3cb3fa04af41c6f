"""What became of a log on its way to tokens: where something was left out, why, and by which setting."""

from typing import Any

from tasks.report.tables import sorted_reasons
from tasks.root.story import CorpusStep, IngestStep, Story


def list_losses(story: Story) -> list[dict[str, Any]]:
    """The stages at which something was left out, in order: `what` was counted, `before`, `after`, and `because`."""
    ingest, corpus = story.steps.ingest or IngestStep(), story.steps.corpus or CorpusStep()
    stages, reasons = dict(corpus.funnel), sorted_reasons(ingest.left_out | ingest.rejected)

    def setting(name: str) -> str:
        value = story.setting("ingest", name)
        return f"ingest.{name}" if value is None else f"{value:,} (ingest.{name})"

    losses = [
        ("lines", ingest.lines, ingest.events, ", ".join(f"{n:,} {why}" for why, n in reasons)),
        (
            "events", stages.get("events in the window"), stages.get("events without bots"),
            f"bots: users with more events on a day than {setting('max_day_events')}",
        ),
        (
            "events", stages.get("events without bots"), stages.get("events without repeats"),
            "the same page again at once",
        ),
        (
            "pages", stages.get("items in the window"), stages.get("items in the vocabulary"),
            f"fewer events than {setting('min_item_events')}, or fewer users than {setting('min_item_users')}",
        ),
        (
            "events", stages.get("events without repeats"), stages.get("events of items in the vocabulary"),
            "events of the pages left out",
        ),
        (
            "users", stages.get("users in the window"), stages.get("users kept"),
            f"bots, and fewer events of pages kept than {setting('min_user_events')}",
        ),
        (
            "events", stages.get("events of items in the vocabulary"), stages.get("events of users kept"),
            "events of the users left out",
        ),
        (
            "events", stages.get("events of users kept"), stages.get("tokens (the newest events of each user)"),
            f"more events of a user than {setting('max_user_events')}: the newest stay",
        ),
    ]  # fmt: skip
    return [
        {"what": what, "before": before, "after": after, "because": because}
        for what, before, after, because in losses
        if before is not None and after is not None and before != after
    ]


def list_notes(story: Story) -> list[str]:
    """What else a person should know of the log, in sentences: pages that a query may tell apart, an order without times."""
    notes = [
        f"{hint['page']} has about {hint['num_queries']:,} different queries (keys: {', '.join(hint['keys'])}), and all "
        f"count as one page. Name the keys that tell pages apart in ingest.keep_query."
        for hint in (story.steps.ingest or IngestStep()).many_queries
    ]
    recency, corpus = story.setting("train", "recency"), story.steps.corpus or CorpusStep()
    if corpus.undated and recency:
        events = "Some events have" if corpus.since else "The log has"
        notes.append(
            f"{events} an order but no times. It orders each user's events, but train.recency ({recency:g}) is off: for a "
            "user's vector the newest pages count no more than older ones."
        )
    return notes
