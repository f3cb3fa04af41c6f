"""Makes a command of `surf2vec` from a function of the Python API: its options, its help, and the printing of its result."""

import inspect
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from surf2vec.arguments import ROOT, Result, RootPath
from surf2vec.flows.cli.show import show_result
from surf2vec.tasks.root.wording import shown_values

app = typer.Typer(
    name="surf2vec",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: surf2vec run --logs 'logs/*.csv.gz'",
    invoke_without_command=True,
)

TYPES: dict[Any, Any] = {
    str | Path: Path,
    str | Path | None: Path | None,
    str | Sequence[str]: list[str],
    date | None: datetime | None,
}
"""Types of options where those of the API are too wide for Typer."""

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")]
CONFIG: dict[str, Any] = {
    "config": Annotated[Path | None, typer.Option(help="A TOML file with settings.")],
    "settings": Annotated[list[str] | None, typer.Option("--set", help="A setting: --set train.epochs=5. Repeatable.")],
}
SHORT: dict[str, tuple[str, Any]] = {
    "device_memory": (
        "resources.device_memory",
        typer.Option(help="Budget on the GPU, e.g. 12GB; of unequal GPUs 12GB,24GB."),
    ),
    "host_memory": ("resources.host_memory", typer.Option(help="Budget of the process, e.g. 4GB.")),
    "layout": ("ingest.layout", typer.Option(help="How the logs are laid out: a name that `surf2vec layouts` lists.")),
    "dim": ("train.vector_size", typer.Option(help="Dimensions; by default train.vector_size.")),
}
"""Options for single settings: the setting's key, and the option."""


class LogsCommand(TyperCommand):
    """Takes all the files that a shell makes of an unquoted `--logs *.csv`: those after the value of --logs, up to an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for one in args:
            given += ["--logs", one] if given[-2:-1] == ["--logs"] and not one.startswith("-") else [one]
        return super().parse_args(ctx, given)


def add_command(
    function: Callable[..., Result],
    example: str,
    show: Callable[[Result], None] = show_result,
    short: Sequence[str] = (),
    exit_code: Callable[[Result], int] = lambda result: 0,
) -> None:
    """Make a function a command. Its parameters with an Option or Argument become options; one that is not given is left out.

    Where an annotation has several helps, the last one counts. A function with a parameter `config` also gets --config, --set and
    the options of SHORT that `short` names.
    example: how to call it, which also names the command. show: prints a result for a person. exit_code: returns the exit code
    of a result; called after the result is printed.
    """
    declared = inspect.signature(function).parameters
    annotations = {name: one.annotation for name, one in declared.items()}
    kinds: dict[str, Any] = {
        name: Annotated[TYPES.get(kind, kind), helps[-1]]
        for name, annotation in ({"root": RootPath} | annotations).items()  # every command takes --root
        if hasattr(annotation, "__metadata__")
        for kind, *helps in [get_args(annotation)]
    }
    if "config" in declared:
        kinds |= CONFIG | {name: Annotated[str | None, SHORT[name][1]] for name in short}
    kinds["as_json"] = JSON
    defaults = {name: None if one.default == () else one.default for name, one in declared.items()}
    defaults |= {"settings": None, "root": ROOT}  # --set, not the keywords **settings
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind)
        for name, kind in kinds.items()
    ]

    def run(as_json: bool = False, **values: Any) -> None:
        single = {SHORT[name][0]: values.pop(name) for name in short}
        if "config" in declared:
            from surf2vec.tasks.night.config import load_config

            values["config"] = load_config(values["config"], values.pop("settings") or [], single)
        given = {name: value for name, value in values.items() if value is not None and name in declared}
        result = function(**{name: one.date() if isinstance(one, datetime) else one for name, one in given.items()})
        print_result(result, as_json, show)
        if code := exit_code(result):
            raise typer.Exit(code)

    run.__doc__ = function.__doc__
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = kinds
    kind = LogsCommand if "logs" in declared else TyperCommand
    app.command(example.split()[1], cls=kind, epilog=f"Example: {example}")(run)


def print_result(result: Result, as_json: bool, show: Callable[[Result], None]) -> None:
    if as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        show(shown_values(result))
