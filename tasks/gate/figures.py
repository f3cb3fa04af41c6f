"""The gate's rules and tonight's figures for them: what a night's story, both exports and the comparison say.

Without a champion there is nothing to compare with: the first release serves, whatever its figures.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config import GateConfig
from tasks.corpus.folder import CORPUS_MANIFEST
from tasks.corpus.window import Window
from tasks.export.export import EXPORT_MANIFEST
from tasks.gate.arrivals import Days, arrived_share, missing_days
from tasks.gate.drift import Released, measure_drift, measure_norms
from tasks.gate.rules import TOP, Finding, Rule, compare, hits, reciprocals, tell
from tasks.root.run import Root, Run
from tasks.root.story import Comparison, CorpusStep, EvaluateStep, ExportStep, Steps, read_story
from trainer.store.tokens import open_corpus
from trainer.system.files import read_json

NO_CHAMPION = "there is no champion"
MIN_COMPARED = 100
"""With fewer users the rules on hit@10 and MRR have nothing to go by."""
OTHER_USERS = 10
"""The champion's hit@10 on its own night is that of other users: so many times the drop for the same users is allowed."""
COSINE_P1 = 0.98
"""The 1st percentile of the cosines of unchanged users on an incremental night: hardly anybody of them may move."""
NORM_MULTIPLE = 5.0
"""A vector longer than so many times the median length is an outlier."""
MAX_OUTLIERS = 0.01
"""The share of users whose vectors may be outliers."""


@dataclass(frozen=True)
class Case:
    """What the gate judges: the run, and the release that serves, with its story; None where there is none.

    has_changed: whether it is another than when the night began; days: tonight's events a day; days_before: as the night
    before saw them. champion_space: the champion's space, as the registry has it; None where the registry has it no more.
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
        """What tonight's steps recorded."""
        return self.run.story().steps

    @property
    def champion_steps(self) -> Steps:
        """What the champion's steps recorded; empty where its story is not in this root."""
        return Run(self.root, self.champion).story().steps if self.champion else Steps()


def open_case(run: Run, gate: GateConfig, champion: str | None, spaces: Mapping[str, str], window: Window) -> Case:
    """The case of a run whose export is there. `champion`: the release that serves now; `spaces`: those of all releases.

    A run that has served is judged beside the champion that it met then: changed settings do not make it compete with itself.
    """
    story = run.story()
    registered, judged = story.steps.registered, story.steps.gate
    has_served = champion == run.run_id or (registered is not None and registered.alias == "champion")
    if has_served and judged:
        champion = began_with = judged.champion
    else:
        began_with = story.champion
    days: Counter[date] = Counter()
    for file in window.files:
        if file.day:
            days[file.day] += file.rows
    has_changed = champion is not None and began_with != champion
    return Case(run, gate, champion, has_changed, days, _find_days_before(run, days), spaces.get(champion or ""))


def _find_days_before(run: Run, days: Days) -> Days:
    """The events a day as the newest run before saw them whose newest day is before that of `days`; empty without one."""
    paths = [path for path in run.root.path.glob("runs/[!.]*/run.json") if path != run.story_path]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True) if days else ():
        judged = read_story(path).steps.gate
        seen = judged.days if judged else {}
        if seen and date.fromisoformat(max(seen)) < max(days):
            return {date.fromisoformat(day): events for day, events in seen.items()}
    return {}


def judge_release(case: Case) -> dict[str, Any]:
    """The story's "gate": `passes`, `verdict`, `held_by`, `champion`, the `table`, `metrics`, and the `days` that were seen."""
    findings = [_same_champion(case), *_quality(case), *_counts(case), *_vectors(case), *_days(case)]
    held_by = [finding.rule.name for finding in findings if finding.holds_back and case.champion is not None]
    figures = {f"gate_{finding.rule.name}": finding.value for finding in findings if finding.value is not None}
    return {
        "passes": not held_by,
        "verdict": "first" if case.champion is None else "held" if held_by else "passed",
        "champion": case.champion,
        "held_by": held_by,
        "table": tell(findings, is_first=case.champion is None),
        "metrics": figures | {"gate_passes": float(not held_by)},
        "days": {day.isoformat(): events for day, events in sorted(case.days.items())},
    }


def _same_champion(case: Case) -> Finding:
    """A night that began beside a champion that was rolled back since, perhaps on its vectors, needs a person's word."""
    rule = Rule("champion", "the champion is the one that the night began with (1: yes)", 1, form=".0f")
    return Finding(rule, None if case.champion is None else float(not case.has_changed), reason=NO_CHAMPION)


def _quality(case: Case) -> list[Finding]:
    """How both releases rank what neither has seen."""
    gate, evaluated = case.gate, case.steps.evaluate
    told = (evaluated and evaluated.comparison) or Comparison(reason="nothing was compared")
    rules = (
        Rule("hit_at_10", "hit@10 beside the champion's", -gate.hit_at_10_drop, form="+.1%"),
        Rule("mrr_at_20", f"MRR@{TOP} beside the champion's", -gate.hit_at_10_drop, form="+.1%"),
        Rule("coverage", f"items in anyone's first {TOP}, of the champion's number", gate.kept, form=".1%"),
    )
    reason = NO_CHAMPION if case.champion is None else told.reason or "nothing was compared"
    if case.champion is not None and told.champion != case.champion:
        reason = f"it was compared with release {told.champion}, which does not serve"
        return [Finding(rule, None, reason=reason) for rule in rules]
    if told.ranks is None or not told.num_users or not (case.root.path / told.ranks).exists():
        return [Finding(rule, None, reason=reason) for rule in rules]
    if told.num_users < MIN_COMPARED:
        reason = f"{told.num_users:,} users were compared, fewer than {MIN_COMPARED:,}"
        return [Finding(rule, None, reason=reason) for rule in rules]
    challenger, champion = np.load(case.root.path / told.ranks, allow_pickle=False)
    return [
        compare(rules[0], hits(challenger, 10), hits(champion, 10)),
        compare(rules[1], reciprocals(challenger), reciprocals(champion)),
        Finding(rules[2], _ratio(told.coverage, told.champion_coverage)),
    ]


def _counts(case: Case) -> list[Finding]:
    """Tonight's own hit@10, share of users with a vector, and numbers of users and items, of the champion's on its night."""
    gate = case.gate
    export, before = (steps.export or ExportStep() for steps in (case.steps, case.champion_steps))
    shares = [_share_with_vector(steps.corpus) for steps in (case.steps, case.champion_steps)]
    rules = (
        Rule("with_vector", "users with a vector, of the champion's share", gate.kept, form=".1%"),
        Rule("users", "users, of the champion's number", gate.kept, form=".1%"),
        Rule("items", "items, of the champion's number", gate.kept, form=".1%"),
    )
    figures = (
        _ratio(shares[0], shares[1]),
        _ratio(export.num_users, before.num_users),
        _ratio(export.num_items, before.num_items),
    )
    reason = NO_CHAMPION if case.champion is None else f"the story of release {case.champion} does not tell it"
    return [
        _own_hits(case),
        *(Finding(rule, figure, reason=reason) for rule, figure in zip(rules, figures, strict=True)),
    ]


def _own_hits(case: Case) -> Finding:
    """Tonight's hit@10 on whom it asked. An incremental night asks whoever changed, for the newest pages: that is harder."""
    told = "hit@10 on all held-out users, of the champion's on its night"
    own_limit = max(0.0, 1 - OTHER_USERS * case.gate.hit_at_10_drop)
    rule = Rule("own_hit_at_10", told, own_limit, form=".1%")
    if case.champion is None:
        return Finding(rule, None, reason=NO_CHAMPION)
    sides = [steps.evaluate or EvaluateStep() for steps in (case.steps, case.champion_steps)]
    hit, hit_before = (one.metrics.get("hit_at_10") for one in sides)
    if hit is None or not hit_before:
        return Finding(rule, None, reason=f"the story of release {case.champion} does not tell it")
    kind, kind_before = (_kind_of(steps) for steps in (case.steps, case.champion_steps))
    if kind != kind_before:
        return Finding(
            rule, None, reason=f"the night is {kind}, the champion's was {kind_before}: they ask other users"
        )
    fewest = min(one.num_users or 0 for one in sides)
    if fewest < MIN_COMPARED:
        return Finding(rule, None, reason=f"{fewest:,} users were asked, fewer than {MIN_COMPARED:,}")
    return Finding(rule, hit / hit_before)


def _kind_of(steps: Steps) -> str:
    return steps.settle.kind if steps.settle else "full"


def _share_with_vector(corpus: CorpusStep | None) -> float | None:
    funnel = dict(corpus.funnel) if corpus else {}
    return _ratio(funnel.get("users kept"), funnel.get("users in the window"))


def _ratio(now: float | None, before: float | None) -> float | None:
    return now / before if now is not None and before else None


def _vectors(case: Case) -> list[Finding]:
    """Whether the space is the champion's, how far vectors drifted in it, and how many are far too long."""
    gate, mine = case.gate, _open_released(case.root, case.run.run_id)
    assert mine is not None, "the gate comes after the export"
    norms = measure_norms(mine.export_dir, mine.manifest)
    limit = NORM_MULTIPLE * float(np.median(norms))
    longer = f"vectors longer than {NORM_MULTIPLE:g} times the median"
    outliers = Finding(
        Rule("norm_outliers", longer, MAX_OUTLIERS, is_floor=False, form=".2%"), float((norms > limit).mean())
    )
    drift = (
        Rule("cosine_p1", "cosine to the champion's vectors of unchanged users, 1st percentile", COSINE_P1),
        Rule("cosine_median", "the median of those cosines", gate.cosine_median),
    )
    space = Rule("space", "comparable with the champion's vectors (1: yes)", 1, form=".0f")
    theirs = _open_released(case.root, case.champion) if case.champion else None
    their_space = theirs.manifest["space_id"] if case.champion_space is None and theirs else case.champion_space
    is_one = mine.manifest["space_id"] == their_space
    reason = NO_CHAMPION if case.champion is None else f"the export or corpus of release {case.champion} is gone"
    found = [outliers, Finding(space, None if their_space is None else float(is_one), reason=reason)]
    if theirs is None:
        return [*found, *(Finding(rule, None, reason=reason) for rule in drift)]
    reason = "the spaces differ"
    if is_one and mine.corpus.num_partitions == theirs.corpus.num_partitions:
        cosines = measure_drift(mine, theirs)
        if len(cosines):
            low, median = np.quantile(cosines, (0.01, 0.5)).tolist()
            is_full = case.steps.settle is not None and case.steps.settle.kind == "full"
            first = Finding(
                drift[0], None if is_full else low, reason=f"a full night moves everybody a little: {low:.3f}"
            )
            return [*found, first, Finding(drift[1], median)]
        reason = "there is no user whose tokens did not change"
    elif is_one:
        reason = "the numbers of micro-partitions differ"
    return [*found, *(Finding(rule, None, reason=reason) for rule in drift)]


def _open_released(root: Root, release: str) -> Released | None:
    """The release's export and corpus; None where one of them is gone."""
    export_dir = root.export(release)
    if not (export_dir / EXPORT_MANIFEST).exists():
        return None
    manifest = read_json(export_dir / EXPORT_MANIFEST)
    corpus_dir: Path = root.corpus(manifest["created_from"]["window_id"])
    return Released(open_corpus(corpus_dir), export_dir, manifest) if (corpus_dir / CORPUS_MANIFEST).exists() else None


def _days(case: Case) -> list[Finding]:
    """Whether the newest day, and all since the champion's newest, were delivered."""
    gate = case.gate
    newest = Rule("newest_day_events", "events of the newest day, of the usual", gate.newest_day_events, form=".1%")
    missing = Rule(
        "missing_days", "days without events since the champion's newest", gate.missing_days, is_floor=False, form=".0f"
    )
    share = arrived_share(case.days, case.days_before)
    reason = "too few days before it" if case.days else "events bear no dates"
    found = [Finding(newest, share, reason=reason)]
    until = case.champion_steps.corpus.until if case.champion_steps.corpus else None
    if not until:
        reason = NO_CHAMPION if case.champion is None else "the champion's newest day is not known"
        return [*found, Finding(missing, None, reason=reason)]
    return [*found, Finding(missing, float(len(missing_days(case.days, date.fromisoformat(until)))))]
