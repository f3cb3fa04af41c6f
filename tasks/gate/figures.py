"""Computes tonight's figures for the gate's rules from the night's record, both exports and the comparison.

Without a champion nothing is compared: the first release always serves.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.config import GateConfig
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.corpus.window import Window
from surf2vec.tasks.evaluation.comparison import match_items, match_unchanged
from surf2vec.tasks.evaluation.evaluate import find_users
from surf2vec.tasks.evaluation.measures import TOP, hits, reciprocals
from surf2vec.tasks.export.vector_files import interests_of, read_vectors
from surf2vec.tasks.gate.rules import NO_CHAMPION, Judgement, Rule, compare, make_table
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, ReleaseFolder, open_folder
from surf2vec.tasks.release.release_reader import compared_columns, decode_vectors
from surf2vec.tasks.root.records import Comparison, Steps, read_run_record
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.store.tokens import Corpus, open_corpus

Days = Mapping[date, int]
"""The number of events of each UTC day with events."""
Figures = dict[str, float | str | Judgement]
"""Tonight's figure for each rule, by its name; or a text with the reason why there is none."""
MIN_DAYS = 3
MIN_WEEKS = 3
MAX_USERS = 100_000
"""So many users' vectors are compared: a hash spreads users, so the first micro-partitions are a random sample."""
NORM_BATCH_ROWS = 16_384
MIN_COMPARED = 100
"""With fewer users the rules on hit@10 and MRR are not applied."""
OTHER_USERS = 10
"""On the champion's night other users were held out, so hit@10 may drop by this many times `gate.hit_at_10_drop`."""
COSINE_P1 = 0.98
"""The minimum for the 1st percentile of the cosines of unchanged users on an incremental night."""
NORM_MULTIPLE = 5.0
"""A vector is an outlier if it is longer than this multiple of the median length."""
MAX_OUTLIERS = 0.01
"""The maximum share of users whose vectors are outliers."""


@dataclass(frozen=True)
class Exported:
    """The export of a release, and its corpus."""

    release: ReleaseFolder
    corpus: Corpus


def open_exported(root: Root, release: str) -> Exported | None:
    """Return the export of a release with its corpus; None if one of them is gone."""
    if not (root.export(release) / EXPORT_MANIFEST).exists():
        return None
    export = open_folder(root.export(release))
    corpus_dir = root.corpus(export.manifest["created_from"]["window_id"])
    return Exported(export, open_corpus(corpus_dir)) if (corpus_dir / CORPUS_MANIFEST).exists() else None


@dataclass(frozen=True)
class Case:
    """The input of the gate: the run, and the release that serves, or None.

    has_changed: whether the champion has changed since the night began; days: tonight's events of each day; days_before: the same
    in the night before. champion_space: the champion's space in the registry; None if it is no longer registered.
    """

    run: Run
    gate: GateConfig
    champion: str | None
    has_changed: bool
    days: Days
    days_before: Days
    champion_space: str | None = None

    @property
    def root(self) -> Root:
        return self.run.root

    @property
    def steps(self) -> Steps:
        return self.run.record().steps

    @property
    def champion_steps(self) -> Steps:
        """The records of the champion's steps; empty if its record is not in this root."""
        return Run(self.root, self.champion).record().steps if self.champion else Steps()


def open_case(
    run: Run,
    gate: GateConfig,
    champion: str | None,
    spaces: Mapping[str, str],
    window: Window,
    has_served: bool = False,
) -> Case:
    """Return the case of a run that has an export. `champion`: the release that serves now; `spaces`: those of all releases.

    A run that has served is compared with the champion in its recorded gate, so that it is never compared with itself.
    """
    record = run.record()
    began_with = record.champion
    if record.steps.gate and (has_served or champion == run.run_id):
        champion = began_with = record.steps.gate.champion
    days: Counter[date] = Counter()
    for file in window.files:
        if file.day:
            days[file.day] += file.about["rows"]
    has_changed = champion is not None and began_with != champion
    return Case(run, gate, champion, has_changed, days, _find_days_before(run, days), spaces.get(champion or ""))


def _find_days_before(run: Run, days: Days) -> Days:
    """Return the events of each day from the newest other run whose newest day is before that of `days`; else empty."""
    paths = [path for path in run.root.path.glob("runs/[!.]*/run.json") if path != run.record_path]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True) if days else ():
        before = read_run_record(path).steps.gate.days
        if before and date.fromisoformat(max(before)) < max(days):
            return {date.fromisoformat(day): events for day, events in before.items()}
    return {}


def judge_release(case: Case) -> dict[str, Any]:
    """Return the record of step "gate": `passes`, `verdict`, `held_by`, `champion`, `table`, `metrics` and `days`."""
    tonight = open_exported(case.root, case.run.run_id)
    assert tonight is not None, "the gate comes after the export"
    norms = measure_norms(tonight.release)
    figures = _arrivals(case) | {"norm_outliers": float((norms > NORM_MULTIPLE * float(np.median(norms))).mean())}
    if case.champion is not None:
        figures |= {"own_hit_at_10": _own_hits(case)} | _quality(case) | _vectors(case, tonight)
    judgements, broken = _judge(case, figures)
    held_by = broken if case.champion is not None else []
    metrics = {f"gate_{name}": judgement.value for name, judgement in judgements.items() if judgement.value is not None}
    return {
        "passes": not held_by,
        "verdict": "first" if case.champion is None else "held" if held_by else "passed",
        "champion": case.champion,
        "held_by": held_by,
        "table": make_table(list(judgements.values()), is_first=case.champion is None),
        "metrics": metrics | {"gate_passes": float(not held_by)},
        "days": {day.isoformat(): events for day, events in sorted(case.days.items())},
    }


def foresee(case: Case) -> dict[str, Any]:
    """Return the gate as far as it is known before a training: `table`, the rules `at_risk`, and those that are `unknown` yet.

    The record has the corpus, and the numbers of users and items that an export will have.
    """
    judgements, at_risk = _judge(case, _arrivals(case))
    return {
        "at_risk": at_risk,
        "unknown": [name for name, judgement in judgements.items() if judgement.value is None],
        "table": make_table(list(judgements.values()), is_first=case.champion is None),
    }


def _judge(case: Case, figures: Figures) -> tuple[dict[str, Judgement], list[str]]:
    """Return the judgement of each rule, and the names of the rules that hold the release, or would if it were not the first."""
    judgements = {}
    missing = "it is known after the training" if case.champion else NO_CHAMPION
    for rule in list_rules(case.gate):
        figure = figures.get(rule.name, missing)
        if isinstance(figure, str):
            figure = Judgement(rule, None, reason=figure)
        judgements[rule.name] = figure if isinstance(figure, Judgement) else Judgement(rule, figure)
    return judgements, [name for name, one in judgements.items() if one.holds_back]


def list_rules(gate: GateConfig) -> list[Rule]:
    """Return the rules, in the order of the table."""
    longer = f"vectors longer than {NORM_MULTIPLE:g} times the median"
    own_limit = max(0.0, 1 - OTHER_USERS * gate.hit_at_10_drop)
    return [
        Rule("champion", "the champion is the one that the night began with (1: yes)", 1, form=".0f"),
        Rule("hit_at_10", "hit@10 compared with the champion's", -gate.hit_at_10_drop, form="+.1%"),
        Rule("mrr_at_20", f"MRR@{TOP} compared with the champion's", -gate.hit_at_10_drop, form="+.1%"),
        Rule("coverage", f"items in anyone's first {TOP}, in % of the champion's", gate.kept, form=".1%"),
        Rule("own_hit_at_10", "hit@10 on all held-out users, in % of the champion's night", own_limit, form=".1%"),
        Rule("with_vector", "users with a vector, in % of the champion's share", gate.kept, form=".1%"),
        Rule("users", "users, in % of the champion's", gate.kept, form=".1%"),
        Rule("items", "items, in % of the champion's", gate.kept, form=".1%"),
        Rule("norm_outliers", longer, MAX_OUTLIERS, is_floor=False, form=".2%"),
        Rule("space", "comparable with the champion's vectors (1: yes)", 1, form=".0f"),
        Rule("cosine_p1", "cosine to the champion's vectors of unchanged users, 1st percentile", COSINE_P1),
        Rule("cosine_median", "the median of those cosines", gate.cosine_median),
        Rule("newest_day_events", "events of the newest day, in % of the usual", gate.newest_day_events, form=".1%"),
        Rule("missing_days", "days without events since the champion's newest", gate.missing_days, False, ".0f"),
    ]


def _quality(case: Case) -> Figures:
    """Return the figures of the comparison on held-out items that neither release has seen."""
    comparison = case.steps.evaluate.comparison or Comparison()
    if comparison.champion not in (None, case.champion):
        reason = f"it was compared with release {comparison.champion}, which does not serve"
    elif comparison.ranks is None or not comparison.num_users or not (case.root.path / comparison.ranks).exists():
        reason = comparison.reason or "nothing was compared"
    elif comparison.num_users < MIN_COMPARED:
        reason = f"{comparison.num_users:,} users were compared, fewer than {MIN_COMPARED:,}"
    else:
        challenger, champion = np.load(case.root.path / comparison.ranks, allow_pickle=False)
        rules = {rule.name: rule for rule in list_rules(case.gate)}
        coverage = _ratio(comparison.coverage, comparison.champion_coverage)
        return {
            "hit_at_10": compare(rules["hit_at_10"], hits(challenger, 10), hits(champion, 10)),
            "mrr_at_20": compare(rules["mrr_at_20"], reciprocals(challenger), reciprocals(champion)),
            "coverage": "the champion recommends nothing" if coverage is None else coverage,
        }
    return dict.fromkeys(("hit_at_10", "mrr_at_20", "coverage"), reason)


def _arrivals(case: Case) -> Figures:
    """Return the figures that need no vectors: what arrived, of which days, and how much of it is kept."""
    share = arrived_share(case.days, case.days_before)
    too_few = "too few days before it" if case.days else "events bear no dates"
    figures: Figures = {"newest_day_events": too_few if share is None else share}
    if case.champion is None:
        return figures
    # The night may build on a champion that was rolled back since: then a person must promote it.
    figures["champion"] = float(not case.has_changed)
    until = case.champion_steps.corpus.until
    missing = missing_days(case.days, date.fromisoformat(until)) if until else None
    figures["missing_days"] = "the champion's newest day is not known" if missing is None else float(len(missing))
    return figures | _counts(case)


def _counts(case: Case) -> Figures:
    """Return the share of users with a vector and the numbers of users and items, divided by those of the champion."""
    export, before = (steps.export for steps in (case.steps, case.champion_steps))
    funnels = [dict(steps.corpus.funnel) for steps in (case.steps, case.champion_steps)]
    shares = [_ratio(funnel.get("users kept"), funnel.get("users in the window")) for funnel in funnels]
    figures = {
        "with_vector": _ratio(*shares),
        "users": _ratio(export.num_users, before.num_users),
        "items": _ratio(export.num_items, before.num_items),
    }
    unknown = f"the record of release {case.champion} does not have it"
    return {name: unknown if figure is None else figure for name, figure in figures.items()}


def _own_hits(case: Case) -> float | str:
    """Return tonight's hit@10 divided by the champion's. Only nights of one kind compare: incremental ones are harder."""
    sides = [steps.evaluate for steps in (case.steps, case.champion_steps)]
    hit, hit_before = (one.metrics.get("hit_at_10") for one in sides)
    if hit is None or not hit_before:
        return f"the record of release {case.champion} does not have it"
    kind, kind_before = (steps.settle.kind for steps in (case.steps, case.champion_steps))
    if kind != kind_before:
        return f"the night is {kind}, the champion's was {kind_before}: they evaluate other users"
    fewest = min(one.num_users or 0 for one in sides)
    if fewest < MIN_COMPARED:
        return f"{fewest:,} users were evaluated, fewer than {MIN_COMPARED:,}"
    return hit / hit_before


def _ratio(now: float | None, before: float | None) -> float | None:
    return now / before if now is not None and before else None


def _vectors(case: Case, tonight: Exported) -> Figures:
    """Return whether the space is the champion's, and how far vectors drifted in it."""
    champion = open_exported(case.root, case.champion or "")
    reason = gone = f"the export or corpus of release {case.champion} is gone"
    space = champion.release.manifest["space_id"] if case.champion_space is None and champion else case.champion_space
    is_one = tonight.release.manifest["space_id"] == space
    figures: Figures = {"space": gone if space is None else float(is_one)}
    if champion and not is_one:
        reason = "the spaces differ"
    elif champion and tonight.corpus.num_partitions != champion.corpus.num_partitions:
        reason = "the numbers of micro-partitions differ"
    elif champion:
        cosines = measure_drift(tonight, champion)
        if len(cosines):
            low, middle = np.quantile(cosines, (0.01, 0.5)).tolist()
            settled, moved = case.steps.settle, f"a full night moves everybody a little: {low:.3f}"
            is_full = settled and settled.kind == "full"
            return figures | {"cosine_p1": moved if is_full else low, "cosine_median": middle}
        reason = "there is no user whose tokens did not change"
    return figures | dict.fromkeys(("cosine_p1", "cosine_median"), reason)


def measure_drift(challenger: Exported, champion: Exported) -> NDArray[np.float64]:
    """Return the cosines between both releases' vectors of users with unchanged tokens, float64[m], m at most MAX_USERS.

    These vectors should hardly move. The releases must have the same space and number of micro-partitions.
    """
    to_champion, _ = match_items(challenger.corpus.vocabulary, champion.corpus.vocabulary)
    cosines = np.zeros(0)
    for partition in range(challenger.corpus.num_partitions):
        if len(cosines) < MAX_USERS:
            rows = match_unchanged((challenger.corpus, partition), (champion.corpus, partition), to_champion)
            ids = challenger.corpus.read_ids(partition).take(pa.array(np.flatnonzero(rows >= 0)))
            cosines = np.append(cosines, compare_vectors(ids, challenger.release, champion.release, partition))
    return cosines[:MAX_USERS]


def compare_vectors(
    ids: pa.ChunkedArray, one: ReleaseFolder, other: ReleaseFolder, partition: int
) -> NDArray[np.float64]:
    """Return the cosine between two exports' vectors of each of these users that is in both, float64[m].

    With two parts only the interests are compared: a trail is a sum of item vectors, which move every night.
    """
    tables = [export.read_partition(partition) for export in (one, other)]
    found = [(table, find_users(ids, table["user_id"])) for table in tables if table is not None]
    if len(found) < 2:
        return np.zeros(0)
    in_both = (found[0][1] >= 0) & (found[1][1] >= 0)
    first, second = (
        interests_of(decode_vectors(table)[rows[in_both]], export.manifest).astype(np.float64)
        for (table, rows), export in zip(found, (one, other), strict=True)
    )
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.clip((first * second).sum(axis=1)[lengths > 0] / lengths[lengths > 0], -1, 1)


def measure_norms(export: ReleaseFolder) -> NDArray[np.float64]:
    """Return the lengths of users' vectors, without activity, float64[m]: of all, or of about MAX_USERS by whole row groups."""
    paths = [export.path(f"user_vectors/{name}") for name in sorted(export.names)]
    every = max(1, round(export.manifest["num_users"] / MAX_USERS))
    lengths = [
        np.linalg.norm(vectors[:, compared_columns(export.manifest)].astype(np.float64), axis=1)
        for _, vectors in read_vectors(paths, every, NORM_BATCH_ROWS)
    ]
    return np.concatenate(lengths) if lengths else np.zeros(0)


def usual_events(days: Days, day: date) -> float | None:
    """Return the usual number of events of such a day, from the days before it; None if there are too few.

    It is the median of the same weekdays if there are at least three. Otherwise it is the lower of that median and the one of all
    days before, so that the first weekends of a log raise no alarm.
    """
    first = min(days, default=day)
    before = {day - timedelta(n): days.get(day - timedelta(n), 0) for n in range(1, (day - first).days + 1)}
    same = [events for other, events in before.items() if other.weekday() == day.weekday()]
    if len(same) >= MIN_WEEKS:
        return median(same)
    if len(before) < MIN_DAYS:
        return None
    return min(median(before.values()), median(same)) if same else median(before.values())


def arrived_share(now: Days, then: Days) -> float | None:
    """Return the events of the newest day divided by the usual number; None if there are too few days before it.

    `then`: the days as an earlier night saw them, whose newest day is before the newest of `now`; or empty. A delivery of a local
    day ends one UTC day and begins the next. Then all events since the night before are counted together: otherwise every night
    would look half delivered.
    """
    newest = max(now, default=None)
    if newest is None:
        return None
    arrived, expected = now[newest], [newest]
    last = max(then, default=newest)
    late = now.get(last, 0) - then.get(last, 0)
    if last < newest and late > arrived:  # most new events belong to the day on which the last delivery ended
        arrived += late + sum(events for day, events in now.items() if last < day < newest)
        expected = [last + timedelta(n) for n in range((newest - last).days)]
    usual = [usual_events(now, day) for day in expected]
    total = sum(events for events in usual if events is not None)
    return arrived / total if total and None not in usual else None


def missing_days(now: Days, since: date) -> list[date]:
    """Return the days after `since` and before the newest that have no events but usually have some."""
    newest = max(now, default=since)
    between = [since + timedelta(n) for n in range(1, (newest - since).days)]
    return [day for day in between if not now.get(day) and usual_events(now, day)]
