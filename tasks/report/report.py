"""The morning's page: one self-contained HTML file, drawn from the run story and the export's item vectors.

It loads nothing and runs nothing: style and drawings are in the file, and a policy in its head forbids the rest. The
same story and the same vectors give the same bytes. No user id is read. The price is a few seconds for the map's layout.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.report import plots
from tasks.report.funnel import list_notes
from tasks.report.loads import COLUMNS, list_loads, tell_sharing
from tasks.report.measured import list_caveats, list_measured
from tasks.report.pictures import MAP_HEIGHT, MAP_WIDTH, draw_items, draw_training
from tasks.report.steps import list_steps
from tasks.report.tables import (
    Story,
    list_figures,
    list_funnel,
    list_quality,
    list_rules,
    list_settings,
    step_of,
    tell_gate,
    tell_status,
    tell_verdict,
)
from tasks.root.wording import UNKNOWN, brief, count, redact, shown
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

    `story` is what `Run.story()` answers; steps that did not end may be missing. Without `export_dir`, or when it holds
    no item vectors, the map and the neighbours are left out.
    """
    html = render_report(story, export_dir)
    with replace_file(report_path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def render_report(story: Story, export_dir: Path | None) -> str:
    """The report as HTML."""
    item_map, neighbours = draw_items(export_dir)
    train = step_of(story, "train")
    release = step_of(story, "export").get("release")
    return PAGES.get_template("report.html.j2").render(
        kind="Release" if release else "Run",
        title=release or story.get("run_id") or UNKNOWN,
        run_id=story.get("run_id"),
        created_at=str(story.get("created_at") or "").replace("T", " ")[:16],
        command=redact(as_command(story.get("command"))),
        status=tell_status(story),
        verdict=tell_verdict(story),
        figures=list_figures(story),
        quality=list_quality(story),
        gate={"champion": None} | step_of(story, "gate") | {"told": tell_gate(step_of(story, "gate"))},
        rules=list_rules(step_of(story, "gate")),
        funnel=list_funnel(story),
        notes=list_notes(story),
        training=draw_training(story),
        training_facts=list_training_facts(train),
        measured=list_measured(train),
        caveats=list_caveats(train, ((story.get("config") or {}).get("train") or {}).get("epochs")),
        workers={"columns": COLUMNS, "loads": list_loads(train), "sharing": tell_sharing(train)},
        item_map=item_map,
        neighbours=neighbours,
        steps=list_steps(story),
        plan_reasons=[str(reason) for reason in (train.get("plan") or {}).get("reasons") or ()],
        plan=list_settings({key: value for key, value in (train.get("plan") or {}).items() if key != "reasons"}),
        config=list_settings(story.get("config")),
        places=list_places(story),
        model=tell_model(step_of(story, "register")),
        chart=plots,
        map_size=(MAP_WIDTH, MAP_HEIGHT),
    )


def as_command(command: Any) -> str:
    """The command line as a line, whether it was recorded as a text or as a list."""
    return " ".join(str(part) for part in command) if isinstance(command, list | tuple) else str(command or "")


def list_training_facts(train: Story) -> list[tuple[str, str]]:
    """What is worth saying of a training beside its curves."""
    kernel, reason = train.get("kernel"), train.get("kernel_reason")
    facts = [
        ("tokens trained", count(train.get("tokens"))),
        ("mean rate", f"{brief(train['tokens_per_second'])} tokens/s" if train.get("tokens_per_second") else UNKNOWN),
        ("final loss", show_loss(train.get("loss"))),
        ("final loss, held out", show_loss(train.get("heldout_loss"))),
        ("kernel", f"{kernel}: {reason}" if reason and str(kernel) not in reason else str(reason or kernel or UNKNOWN)),
    ]
    return facts if train else []


def show_loss(value: float | None) -> str:
    """A loss with four decimals."""
    return UNKNOWN if value is None else f"{value:.4f}"


def list_places(story: Story) -> list[tuple[str, str]]:
    """Where the files and the registered model are."""
    export, register = step_of(story, "export"), step_of(story, "register")
    name, version = register.get("model_name"), register.get("model_version")
    places = [
        ("Vectors", export.get("export_dir") or ""),
        ("Model", f"{name} version {version}" if name else ""),
        ("Alias", register.get("alias") or ""),
        ("MLflow", redact(str(register.get("tracking_uri") or ""))),
        ("MLflow run", register.get("mlflow_run_id") or ""),
        ("Window", step_of(story, "corpus").get("window_id") or ""),
    ]
    return [(name, str(value)) for name, value in places if value]


def tell_model(register: Story) -> dict[str, str] | None:
    """`{"uri", "tracking_uri"}`: what loads the registered model; None when nothing was registered."""
    if not register.get("model_name"):
        return None
    alias, version = register.get("alias"), register.get("model_version")
    return {
        "uri": f"models:/{register['model_name']}{f'@{alias}' if alias else f'/{version}'}",
        "tracking_uri": redact(str(register.get("tracking_uri") or "")),
    }
