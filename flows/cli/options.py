"""What the commands share: the options that many of them take, the call that they make of them, and how results are printed.

A command is a function of a `Call` and of its own options; it returns what is printed. Python code calls it the same way. Modules
that take long to import are imported in the commands, so that --help is there at once.
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

from tasks.root.wording import shown, shown_values
from trainer.errors import InputError
from trainer.events import OnEvent

if TYPE_CHECKING:
    from flows.config import PipelineConfig
    from tasks.root.run import Root

Function = TypeVar("Function", bound=Callable[..., dict[str, Any]])

app = typer.Typer(
    name="surf2vec", pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: surf2vec run --logs 'logs/*.csv.gz'", invoke_without_command=True,
)  # fmt: skip
err = Console(stderr=True, emoji=False)

Logs = Annotated[
    list[str] | None, typer.Option("--logs", help="Glob of log files; repeatable. None: what is ingested.")
]
Release = Annotated[str, typer.Argument(help="Which release: models:/NAME@champion or models:/NAME/VERSION.")]
TrackingUri = Annotated[str | None, typer.Option(help="MLflow; by default the root's own.")]
User = Annotated[str, typer.Argument(help="The user, as in the logs.")]

Since = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First UTC day, of a window or of nights.")]
Until = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last UTC day.")]
_SHARED: dict[str, tuple[Any, Any]] = {
    "root": (
        Annotated[Path, typer.Option("--root", help="The project root: everything is kept in it.")],
        Path("surf2vec-root"),
    ),
    "config": (Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")], None),
    "settings": (
        Annotated[list[str] | None, typer.Option("--set", help="A setting: --set train.epochs=5. Repeatable.")],
        None,
    ),
    "device_memory": (
        Annotated[str | None, typer.Option(help="Budget on the GPU, e.g. 12GB; of unequal GPUs 12GB,24GB.")],
        None,
    ),
    "host_memory": (Annotated[str | None, typer.Option(help="Budget of the process, e.g. 4GB.")], None),
    "as_json": (
        Annotated[
            bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
        ],
        False,
    ),
}
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
"""Options that are short for a setting."""


def say(name: str, values: dict[str, Any]) -> None:
    """The callback of commands that are no flows: log lines on standard error."""
    if name == "log":
        err.print(shown(values["message"]), highlight=False, markup=False)


@dataclass(frozen=True)
class Call:
    """What every command is told: the folder of the root, the configuration, and whom to report to."""

    path: Path
    config: "PipelineConfig"
    on_event: OnEvent = say

    @property
    def root(self) -> "Root":
        """The root. Raises InputError when nothing was ever run there."""
        from tasks.root.run import Root

        if not (self.path / "sources.json").exists():
            raise InputError(f"{self.path} is no surf2vec root: name one with --root, or make one with `surf2vec run`")
        return Root(self.path)

    @property
    def host_memory_bytes(self) -> int:
        """The budget of the process."""
        from trainer.system.units import parse_bytes

        return parse_bytes(self.config.resources.host_memory)

    def log(self, line: str) -> None:
        """Report a line."""
        self.on_event("log", {"message": line})


def command(
    example: str,
    show: Callable[[dict[str, Any]], None],
    options: Sequence[str] = CONFIG,
    finish: Callable[[dict[str, Any]], None] | None = None,
) -> Callable[[Function], Function]:
    """Make a function of a Call and of its own options a command of `surf2vec`, with these shared options beside its own.

    example: a call of it, for its help, which also names the command. show: prints a result for a person. finish: comes once
    the result is printed, and raises typer.Exit for another exit code than 0.
    """

    def register(function: Function) -> Function:
        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=_SHARED[name][0], default=_SHARED[name][1])
            for name in options
        ]
        parameters = [*(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own), *shared]

        def run(**values: Any) -> None:
            result = function(make_call(values), **{parameter.name: values[parameter.name] for parameter in own})
            answer(result, values["as_json"], show)
            if finish:
                finish(result)

        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(example.split()[1], epilog=f"Example: {example}")(run)
        return function

    return register


def make_call(values: dict[str, Any]) -> Call:
    """The call that a command's options describe. Raises ConfigError for settings that are none."""
    from flows.config import load_config

    overrides = {key.replace(".", "__"): values.get(name) for name, key in _SETTINGS.items()}
    return Call(values["root"], load_config(values.get("config"), values.get("settings") or [], **overrides))


def answer(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """Print a result: one JSON object, or what `show` makes of it."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        show(shown_values(result))


def check_logs(logs: Sequence[str], call: Call) -> None:
    """Raise InputError for logs with credentials in their names, before Prefect keeps them as parameters, and for those on this
    machine that are not there or not of a shape that can be read.
    """
    from tasks.ingest.formats import check_shapes
    from tasks.ingest.remote_logs import refuse_credentials

    refuse_credentials(*logs)
    check_shapes(logs, call.config.ingest)
