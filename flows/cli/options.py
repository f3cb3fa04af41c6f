"""Shared by the commands: common options, the `Call` made from them, and the printing of results.

A command is a function of a `Call` and of its own options. It returns the result to print. Python code can call it the same way.
Modules with a slow import are imported inside the commands, so that --help is fast.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from surf2vec.tasks.root.wording import shown, shown_values
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent

if TYPE_CHECKING:
    from surf2vec.tasks.night.config import PipelineConfig
    from surf2vec.tasks.root.run import Root

Function = TypeVar("Function", bound=Callable[..., dict[str, Any]])

app = typer.Typer(
    name="surf2vec", pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: surf2vec run --logs 'logs/*.csv.gz'", invoke_without_command=True,
)  # fmt: skip
err = Console(stderr=True, emoji=False, markup=False, highlight=False, soft_wrap=True)

Logs = Annotated[
    list[str] | None, typer.Option("--logs", help="Glob of log files; repeatable. None: what is ingested.")
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
NO_ROOT = Path()
"""The root of a command that has none."""
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


def print_event(name: str, values: dict[str, Any]) -> None:
    """Print log lines on standard error: the callback of commands that are not flows."""
    if name == "log":
        err.print(shown(values["message"]))


@dataclass(frozen=True)
class Call:
    """The arguments of every command: the folder of the root, the configuration, and the callback for progress."""

    path: Path
    config: "PipelineConfig"
    on_event: OnEvent = print_event

    @property
    def root(self) -> "Root":
        """The root. Raises InputError if the folder is not a root."""
        from surf2vec.tasks.root.run import Root

        if not (self.path / "sources.json").exists():
            raise InputError(f"{self.path} is no surf2vec root: name one with --root, or make one with `surf2vec run`")
        return Root(self.path)

    def log(self, line: str) -> None:
        """Log a line."""
        self.on_event("log", {"message": line})

    def check_logs(self, logs: Sequence[str]) -> None:
        """Raise InputError for logs with credentials in their names, before Prefect stores them as parameters, and for local
        logs that are missing or have an unreadable format.
        """
        from surf2vec.tasks.ingest.formats import check_shapes
        from surf2vec.tasks.ingest.remote_logs import refuse_credentials

        refuse_credentials(*logs)
        check_shapes(logs, self.config.ingest)


def command(
    example: str,
    show: Callable[[dict[str, Any]], None],
    options: Sequence[str] = CONFIG,
    exit_code: Callable[[dict[str, Any]], int] = lambda result: 0,
) -> Callable[[Function], Function]:
    """Decorator: makes a function of a Call and its own options a command of `surf2vec`, with these shared options in addition.

    example: an example call for the help text, which also gives the command's name. show: prints a result for a person.
    exit_code: returns the exit code of a result; called after the result is printed.
    """

    def register(function: Function) -> Function:
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
        for name in options:
            kind, option, default = _SHARED[name]
            annotation = Annotated[kind, option]  # type: ignore[valid-type]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default))

        def run(**values: Any) -> None:
            from surf2vec.tasks.night.config import load_config

            short = {key: values.get(name) for name, key in _SETTINGS.items()}
            config = load_config(values.get("config"), values.get("settings") or [], short)
            result = function(Call(values.get("root", NO_ROOT), config), **{one.name: values[one.name] for one in own})
            print_result(result, values["as_json"], show)
            if code := exit_code(result):
                raise typer.Exit(code)

        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(example.split()[1], epilog=f"Example: {example}")(run)
        return function

    return register


def print_result(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """Print a result as one JSON object, or by `show`."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        show(shown_values(result))
