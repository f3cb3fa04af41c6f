"""Shared by the commands: common options, what they give, and the printing of results.

A command is a function of `Given` and of its own options. It calls the function of the same name in the Python API, whose summary
is its help, and returns the result to print.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from surf2vec import commands, operations
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.root.wording import shown_values

Function = TypeVar("Function", bound=Callable[..., dict[str, Any]])
Given = dict[str, Any]
"""What the shared options of a command give to its function: root and config."""

app = typer.Typer(
    name="surf2vec", pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: surf2vec run --logs 'logs/*.csv.gz'", invoke_without_command=True,
)  # fmt: skip
err = Console(stderr=True, emoji=False, markup=False, highlight=False, soft_wrap=True)

Logs = Annotated[
    list[str] | None,
    typer.Option("--logs", help="Glob of log files; repeatable. Omit to use only logs that were read before."),
]
NewLogs = Annotated[list[str], typer.Option("--logs", help="Glob of log files; repeatable.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
TrackingUri = Annotated[str | None, typer.Option(help="MLflow; by default the root's own.")]
User = Annotated[str, typer.Argument(help="The user, as in the logs.")]
Since = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First UTC day, of a window or of nights.")]
Until = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last UTC day.")]

_SHARED: dict[str, tuple[Any, Any, Any]] = {
    "root": (Path, typer.Option("--root", help="The project root: everything is kept in it."), Path("surf2vec-root")),
    "config": (Path | None, typer.Option("--config", help="A TOML file with settings."), None),
    "settings": (
        list[str] | None, typer.Option("--set", help="A setting: --set train.epochs=5. Repeatable."), None,
    ),
    "device_memory": (
        str | None, typer.Option(help="Budget on the GPU, e.g. 12GB; of unequal GPUs 12GB,24GB."), None,
    ),
    "host_memory": (str | None, typer.Option(help="Budget of the process, e.g. 4GB."), None),
    "as_json": (
        bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there."), False,
    ),
}  # fmt: skip
ROOT = ("root", "as_json")
CONFIG = ("root", "config", "settings", "as_json")
HOST_MEMORY = ("root", "config", "settings", "host_memory", "as_json")
MEMORY = tuple(_SHARED)
_SETTINGS = {
    "device_memory": "resources.device_memory",
    "host_memory": "resources.host_memory",
    "dim": "train.vector_size",
    "partitions": "store.partitions",
}
"""Options that set a single setting."""


def command(
    example: str,
    show: Callable[[dict[str, Any]], None],
    options: Sequence[str] = CONFIG,
    exit_code: Callable[[dict[str, Any]], int] = lambda result: 0,
) -> Callable[[Function], Function]:
    """Decorator: makes a function of `Given` and its own options a command of `surf2vec`, with these shared options in addition.

    example: an example call for the help text, which also gives the command's name. show: prints a result for a person.
    exit_code: returns the exit code of a result; called after the result is printed.
    """

    def register(function: Function) -> Function:
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters, name = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own], example.split()[1]
        for shared in options:
            kind, option, default = _SHARED[shared]
            annotation = Annotated[kind, option]  # type: ignore[valid-type]
            parameters.append(Parameter(shared, Parameter.KEYWORD_ONLY, annotation=annotation, default=default))

        def run(**values: Any) -> None:
            short = {key: values.get(name) for name, key in _SETTINGS.items()}
            given: Given = {"root": values["root"]} if "root" in options else {}
            if "config" in options:
                given["config"] = load_config(values["config"], values["settings"] or [], short)
            result = function(given, **{one.name: values[one.name] for one in own})
            print_result(result, values["as_json"], show)
            if code := exit_code(result):
                raise typer.Exit(code)

        run.__doc__ = summarize(name)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, epilog=f"Example: {example}")(run)
        return function

    return register


def summarize(name: str) -> str:
    """Return the help of a command: the first paragraph about the function of the same name."""
    name = name.replace("-", "_")
    function = getattr(commands, name, None) or getattr(operations, name)
    return (inspect.getdoc(function) or "").split("\n\n")[0]


def print_result(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """Print a result as one JSON object, or by `show`."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        show(shown_values(result))
