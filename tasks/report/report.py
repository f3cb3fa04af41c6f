"""The morning's page: one self-contained HTML file, drawn from the run story and the export's item vectors.

It loads nothing and runs nothing: style and drawings are in the file, and a policy in its head forbids the rest. The
same story and the same vectors give the same bytes. No user id is read. The price is a few seconds for the map's layout.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.report import plots
from tasks.report.funnel import list_notes
from tasks.report.loads import COLUMNS, list_loads, tell_sharing
from tasks.report.measured import list_caveats, list_measured
from tasks.report.pictures import MAP_HEIGHT, MAP_WIDTH, draw_items, draw_training
from tasks.report.steps import list_steps
from tasks.report.tables import (
    list_figures,
    list_funnel,
    list_quality,
    list_rules,
    list_settings,
    tell_gate,
    tell_status,
    tell_verdict,
)
from tasks.root.credentials import mask_credentials
from tasks.root.story import RegisterStep, Story, TrainStep
from tasks.root.wording import UNKNOWN, brief, count, shown
from trainer.system.files import replace_file

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: shown(value) if type(value) is str else value,  # not what a macro drew
)


def write_report(story: Story, export_dir: Path | None, report_path: Path) -> None:
    """Write the report of a run to `report_path`.

    Steps that did not end may be missing. Without `export_dir`, or when it holds no item vectors, the map and the neighbours
    are left out.
    """
    html = render_report(story, export_dir)
    with replace_file(report_path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def render_report(story: Story, export_dir: Path | None) -> str:
    """The report as HTML."""
    item_map, neighbours = draw_items(export_dir)
    train, gate = story.steps.train or TrainStep(), story.steps.gate
    release = story.steps.export.release if story.steps.export else ""
    return PAGES.get_template("report.html.j2").render(
        kind="Release" if release else "Run",
        title=release or story.run_id,
        run_id=story.run_id,
        created_at=story.created_at.replace("T", " ")[:16],
        command=mask_credentials(story.command),
        status=tell_status(story),
        verdict=tell_verdict(story),
        figures=list_figures(story),
        quality=list_quality(story),
        gate={"champion": gate.champion if gate else None, "told": tell_gate(gate)},
        rules=list_rules(gate),
        funnel=list_funnel(story),
        notes=list_notes(story),
        training=draw_training(story),
        training_facts=list_training_facts(train) if story.steps.train else [],
        measured=list_measured(train),
        caveats=list_caveats(train, story.setting("train", "epochs")),
        workers={"columns": COLUMNS, "loads": list_loads(train), "sharing": tell_sharing(train)},
        item_map=item_map,
        neighbours=neighbours,
        steps=list_steps(story),
        plan_reasons=[str(reason) for reason in train.plan.get("reasons") or ()],
        plan=list_settings({key: value for key, value in train.plan.items() if key != "reasons"}),
        config=list_settings(story.config),
        places=list_places(story),
        model=tell_model(story.steps.registered),
        chart=plots,
        map_size=(MAP_WIDTH, MAP_HEIGHT),
    )


def list_training_facts(train: TrainStep) -> list[tuple[str, str]]:
    """What is worth saying of a training beside its curves."""
    kernel, reason = train.kernel, train.kernel_reason
    return [
        ("tokens trained", count(train.tokens)),
        ("mean rate", f"{brief(train.tokens_per_second)} tokens/s" if train.tokens_per_second else UNKNOWN),
        ("final loss", show_loss(train.loss)),
        ("final loss, held out", show_loss(train.heldout_loss)),
        ("kernel", f"{kernel}: {reason}" if reason and str(kernel) not in reason else str(reason or kernel or UNKNOWN)),
    ]


def show_loss(value: float | None) -> str:
    """A loss with four decimals."""
    return UNKNOWN if value is None else f"{value:.4f}"


def list_places(story: Story) -> list[tuple[str, str]]:
    """Where the files and the registered model are."""
    registered = story.steps.registered or RegisterStep()
    name, version = registered.model_name, registered.model_version
    places = [
        ("Vectors", story.steps.export.export_dir if story.steps.export else ""),
        ("Model", f"{name} version {version}" if name else ""),
        ("Alias", registered.alias or ""),
        ("MLflow", mask_credentials(registered.tracking_uri)),
        ("MLflow run", registered.mlflow_run_id),
        ("Window", story.steps.corpus.window_id if story.steps.corpus else ""),
    ]
    return [(name, value) for name, value in places if value]


def tell_model(registered: RegisterStep | None) -> dict[str, str] | None:
    """`{"uri", "tracking_uri"}`: what loads the registered model; None when nothing was registered."""
    if registered is None or not registered.model_name:
        return None
    version = f"@{registered.alias}" if registered.alias else f"/{registered.model_version}"
    return {
        "uri": f"models:/{registered.model_name}{version}",
        "tracking_uri": mask_credentials(registered.tracking_uri),
    }
