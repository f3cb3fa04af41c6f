"""The pages of docs/ that are made from the code: `python -m tests.reference_pages` writes commands.md, settings.md,
the reference in python.md and the layouts in logs.md.

Run it after a change of a setting or of the command line; `make docs` does, and tests/test_docs.py compares.
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

import surf2vec
from surf2vec.flows.cli import app
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.layouts import describe_fields, list_layouts
from surf2vec.tasks.night.config import Setting, list_sections
from surf2vec.trainer.config import TrainConfig

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Made by `python -m tests.reference_pages`. Do not edit. -->"
ALONE = (
    "`python -m surf2vec.trainer --config` takes these too. In `surf2vec` they have the default, or follow from others."
)


def settings_page() -> str:
    """Every setting with its default, its bounds and what it does, a table for each section."""
    lines = [
        "# Settings", "", NOTE, "",
        "A setting comes from a TOML file (`--config night.toml`, one table for each section) or from the command line",
        "(`--set train.epochs=5`), and a root remembers those of `ingest` and `publish`",
        "([A root remembers](logs.md#a-root-remembers)). An unknown setting is refused, and the nearest known ones are named.",
        "The form in Prefect's UI has the same settings, and `surf2vec settings` prints them, `--toml` as a file to start from.",
        "`python -m surf2vec.trainer --help` prints those of `train`.",
    ]  # fmt: skip
    sections = list_sections()
    for section in sections:
        lines += [
            "",
            f"## {section.title}" + (f": `{section.name}`" if section.name else ""),
            "",
            section.description,
            "",
        ]
        lines += ["| setting | default | values | what it does |", "|---|---|---|---|", *map(_row, section.settings)]
    lines += ["", "## The trainer by itself", "", ALONE, "", "| setting | default | what it does |", "|---|---|---|"]
    lines += _trainers_own({one.name for section in sections for one in section.settings})
    return "\n".join(lines) + "\n"


def _trainers_own(known: set[str]) -> list[str]:
    """Rows of the settings that only `python -m surf2vec.trainer` takes."""
    fields = [field for field in dataclasses.fields(TrainConfig) if f"train.{field.name}" not in known]
    return [f"| `{one.name}` | `{one.default}` | {_cell(one.metadata['description'])} |" for one in fields]


def _cell(text: str) -> str:
    """Text that may stand in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _default(value: Any) -> str:
    """The default as a person would write it; nothing where there is none."""
    if value in (None, "", []):
        return ""
    if isinstance(value, list):
        return ", ".join(f"`{one}`" for one in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _row(setting: Setting) -> str:
    values = setting.values
    if " | " in values:
        values = ", ".join(f"`{value}`" for value in values.split(" | "))
    cells = (f"`{setting.name}`", _default(setting.default), values, setting.description)
    return f"| {' | '.join(map(_cell, cells))} |"


def commands_page() -> str:
    """Every command with its help, its example and its options."""
    group = typer.main.get_command(app)
    lines = [
        "# Commands", "", NOTE, "",
        "`surf2vec COMMAND -h` prints the same. Exit codes are in [Your logs](logs.md#options-of-every-command).",
        "", "| command | what it does |", "|---|---|",
    ]  # fmt: skip
    commands = group.commands  # type: ignore[attr-defined]
    lines += [f"| [`surf2vec {name}`](#{name}) | {_summary(command)} |" for name, command in commands.items()]
    for name, command in commands.items():
        example = (command.epilog or "").removeprefix("Example: ")
        lines += ["", f"## {name}", "", " ".join((command.help or "").split()), "", "```", example, "```", ""]
        lines += ["| option | default | what it does |", "|---|---|---|", *map(_parameter, command.params)]
    return "\n".join(lines) + "\n"


def _summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return _cell(" ".join((command.help or "").split()).split(". ")[0].rstrip(".") + ".")


def _parameter(parameter: Any) -> str:
    """The row of an option or argument."""
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    default = "" if parameter.default in (None, False) or callable(parameter.default) else f"`{parameter.default}`"
    if parameter.required:
        default = "required"
    return f"| {names} | {default} | {_cell(' '.join((parameter.help or '').split()))} |"


def python_page() -> str:
    """The page as it is down to the note, then every function and class of `surf2vec`: signature and docstring."""
    by_hand = (DOCS / "python.md").read_text(encoding="utf-8").partition(NOTE)[0]
    lines = [NOTE, "", "## Reference"]
    for name in surf2vec.__all__:
        found = getattr(surf2vec, name)
        if inspect.isfunction(found):
            lines += _describe(f"### {name}", found)
        elif name == "Release":
            lines += ["", f"### {name}", "", inspect.getdoc(found) or ""]
            methods = {key: value for key, value in vars(found).items() if not key.startswith("_")}
            for key, value in methods.items():
                if inspect.isfunction(value):
                    lines += _describe(f"#### {name}.{key}", value)
    return by_hand + "\n".join(lines) + "\n"


def logs_page() -> str:
    """The page as it is down to the note, then a recipe for each layout."""
    by_hand = (DOCS / "logs.md").read_text(encoding="utf-8").partition(NOTE)[0]
    lines = [NOTE, "", "## Layouts that are recognised"]
    for name, layout in list_layouts(IngestConfig()).items():
        lines += ["", f"### {layout.title}", "", f"`--layout {name}`; {describe_fields(layout)}."]
        if layout.views:
            lines[-1] += f" Of its events only {', '.join(f'`{one}`' for one in layout.views)} count as page views."
        lines += ["", "```text", *layout.sample.strip().splitlines(), "```"]
    return by_hand + "\n".join(lines) + "\n"


def _describe(title: str, function: Any) -> list[str]:
    """The signature of a function, without modules and helps, its docstring, and the help of its parameters."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    plain = [one.replace(annotation=_type(one.annotation)) for one in parameters]
    text = re.sub(r"<function (\w+) at \w+>", r"\1", str(signature.replace(parameters=plain)))
    text = re.sub(
        r"\w*Path\(('[^']*')\)", r"\1", re.sub(r"'(\w+ \| None)'", r"\1", re.sub(r"(?:\w+\.)+(?=[A-Z])", "", text))
    )
    helps = {
        one.name: one.annotation.__metadata__[-1].help
        for one in parameters
        if _type(one.annotation) is not one.annotation
    }
    about = (inspect.getdoc(function) or "").replace("<", "&lt;")
    listed = [f"* `{name}`: {help_text}" for name, help_text in helps.items()]
    return ["", title, "", "```text", function.__name__ + text, "```", "", about, *([""] if listed else []), *listed]


def _type(annotation: Any) -> Any:
    """The type of a parameter without its help."""
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def pages() -> dict[Path, str]:
    """The generated pages: path and text."""
    return {
        DOCS / "commands.md": commands_page(),
        DOCS / "settings.md": settings_page(),
        DOCS / "python.md": python_page(),
        DOCS / "logs.md": logs_page(),
    }


def main() -> int:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
