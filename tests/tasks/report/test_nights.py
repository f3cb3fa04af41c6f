"""The nights of a root are listed by day, with what each made or why it made nothing."""

from pathlib import Path

from surf2vec.tasks.report.nights import describe_night, list_nights, write_nights_report
from surf2vec.tasks.root.records import (
    CorpusStep,
    EvaluateStep,
    ExportStep,
    GateStep,
    IngestStep,
    RegisterStep,
    RunRecord,
    SettleStep,
    Steps,
    UnchangedStep,
)
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.system.files import write_json


def made(run_id: str, until: str, **values: object) -> RunRecord:
    steps = Steps(
        ingest=IngestStep(events=900, seconds=1.0),
        corpus=CorpusStep(until=until, seconds=2.0),
        evaluate=EvaluateStep(metrics={"hit_at_10": 0.25}),
        settle=SettleStep(kind="incremental"),
        export=ExportStep(release=run_id, num_users=40, num_items=9),
        gate=GateStep(
            passes=False, verdict="held", held_by=["hit_at_10"], days={until: 30}, metrics={"gate_cosine_p1": 0.99}
        ),
        register=RegisterStep(model_version=3),
    )
    return RunRecord(run_id=run_id, created_at=f"{until}T03:00:00+00:00", steps=steps)


def test_a_night_has_what_its_table_and_page_need() -> None:
    night = describe_night(made("r1", "2026-01-03"), {3: "challenger"})
    assert night == {
        "day": "2026-01-03", "run_id": "r1", "release": "r1", "kind": "incremental", "events": 30, "users": 40, "items": 9,
        "metrics": {"hit_at_10": 0.25, "gate_cosine_p1": 0.99}, "seconds": {"ingest": 1.0, "corpus": 2.0}, "model_version": 3,
        "alias": "challenger", "gate": {"verdict": "held", "held_by": ["hit_at_10"]},
    }  # fmt: skip


def test_a_run_without_a_release_has_the_reason() -> None:
    unchanged = RunRecord(run_id="r2", created_at="2026-01-04T03", steps=Steps(unchanged=UnchangedStep(release="r1")))
    assert describe_night(unchanged, {})["skipped"] == "nothing to do: no user's pages changed since release r1"
    steps = Steps(ingest=IngestStep(lines=1), corpus=CorpusStep(num_users=1))
    begun = RunRecord(run_id="r3", created_at="2026-01-05T03", steps=steps)
    assert describe_night(begun, {})["skipped"] == "run r3 did not end; done: ingest, corpus"
    assert describe_night(begun, {})["day"] == "2026-01-05"


def test_a_night_whose_release_was_removed_keeps_its_figures(tmp_path: Path) -> None:
    run = Run(Root(tmp_path), "r1")
    run.update(**dict(made("r1", "2026-01-03")))
    night = describe_night(run.record(), {})
    run.forget_steps()
    assert describe_night(run.record(), {}) == night
    run.record_steps(UnchangedStep(release="r0"))  # the same command again, after its users were forgotten
    assert describe_night(run.record(), {}) == night


def test_nights_are_listed_by_day_and_their_page_links_the_reports(tmp_path: Path) -> None:
    root = Root(tmp_path)
    for run_id, until in (("b", "2026-01-02"), ("a", "2026-01-03"), ("c", "2026-01-01")):
        root.run(run_id).mkdir(parents=True)
        write_json(root.run(run_id) / "run.json", made(run_id, until).to_json())
    nights = list_nights(root, {})
    assert [night["run_id"] for night in nights] == ["c", "b", "a"]
    write_nights_report(nights, root.nights_page)
    page = root.nights_page.read_text(encoding="utf-8")
    assert '<a href="a/report.html">2026-01-03</a>' in page
    assert "held by hit_at_10" in page
