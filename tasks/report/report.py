"""The report of a run: one self-contained HTML file, drawn from the run record and the export's item vectors.

It loads nothing and runs no script: style and drawings are in the file, and its content security policy forbids the rest.
The same record and vectors give the same bytes. No user id is read. The layout of the map takes a few seconds.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from surf2vec.tasks.report.measured import describe_sharing, list_caveats, list_loads, list_measured
from surf2vec.tasks.report.pictures import draw_items, draw_training
from surf2vec.tasks.report.tables import (
    describe_status,
    describe_verdict,
    explain_held,
    list_facts,
    list_losses,
    list_notes,
    list_settings,
    list_steps,
)
from surf2vec.tasks.root import wording
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.system.files import replace_file

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: shown(value) if type(value) is str else value,  # a macro's output is Markup, escaped already
)
PAGES.filters |= {name: value for name, value in vars(wording).items() if name.startswith("format_")}
PAGES.filters["mask_credentials"] = mask_credentials


def write_report(record: RunRecord, export_dir: Path | None, report_path: Path) -> None:
    """Write the report of a run to `report_path`.

    Steps that did not end may be missing. Without `export_dir`, or if it has no item vectors, the map and the neighbours are
    left out.
    """
    html = render_report(record, export_dir)
    with replace_file(report_path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def render_report(record: RunRecord, export_dir: Path | None) -> str:
    """Return the report as HTML."""
    item_map, neighbours = draw_items(export_dir)
    train = record.steps.train
    return PAGES.get_template("report.html.j2").render(
        dict(record.steps),
        record=record,
        status=describe_status(record),
        verdict=describe_verdict(record),
        held=explain_held(record),
        facts=list_facts(record),
        losses=list_losses(record),
        notes=list_notes(record),
        training=draw_training(train),
        measured=list_measured(train),
        caveats=list_caveats(train, record.setting("train", "epochs")),
        loads=list_loads(train),
        sharing=describe_sharing(train),
        item_map=item_map,
        neighbours=neighbours,
        steps=list_steps(record),
        plan=list_settings({key: value for key, value in train.plan.items() if key != "reasons"}),
        config=list_settings(record.config),
    )
