"""The entry point of the command `surf2vec`: turns errors into messages and exit codes.

With --json one JSON object goes to standard output; everything else goes to standard error. The README has the exit codes.
Ctrl-C acts like SIGTERM: the run commits what it can. A second Ctrl-C ends the process at once (130).
"""

import atexit
import json
import os
import sys
import traceback
import warnings
from importlib.abc import MetaPathFinder
from typing import Annotated, Any

import typer

from surf2vec.flows.cli.command import app
from surf2vec.flows.cli.table import err
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.system.signals import install_handlers, is_stopping

INTERRUPTED = 130  # what Typer makes of KeyboardInterrupt
STOPPED = ("stopped", "stopped by a signal: run the same command to resume", 1)


@app.callback()
def surf2vec(
    context: typer.Context,
    is_version: Annotated[bool, typer.Option("--version", help="Print the version, and nothing else.")] = False,
) -> None:
    """User vectors from web browsing logs, made fresh every night."""
    if is_version:
        from importlib.metadata import version

        print(version("surf2vec"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """The entry point: an expected error becomes its message and its exit code, never a traceback. A bug has all three."""
    # On the terminal the steps print their own lines; Prefect's server keeps all of Prefect's.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    if {"similar", "explain", "doctor", "as-of"} & set(sys.argv[1:2]):
        skip_pandas()
    warnings.filterwarnings("ignore")  # libraries' deprecation warnings are for developers
    install_handlers()
    exit_code = 1  # if even the message cannot be printed

    def leave() -> None:
        """End the process before the interpreter shuts down.

        At shutdown DuckDB's bindings (nanobind) print every leaked object on standard error; an error in a flow leaks some.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    # The first registered is called last: after Prefect has reported the end of the run to its server.
    atexit.register(leave)
    try:
        exit_code = app(standalone_mode=False) or 0
        if exit_code == INTERRUPTED:
            exit_code = fail(*STOPPED)
    except SystemExit as error:  # of shell completion
        exit_code = int(error.code or 0)
    except BaseException as error:
        exit_code = fail(*describe_error(error))


class NoPandas(MetaPathFinder):
    """Pretends that pandas is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def skip_pandas() -> None:
    """Let pyarrow do without pandas in this process: it would import it at its first array, for half a second."""
    import pyarrow

    sys.meta_path.insert(0, NoPandas())
    pyarrow.scalar(0)  # it looks for pandas now, and never again
    sys.meta_path.pop(0)


def describe_error(error: BaseException) -> tuple[str, str, int]:
    """Return the code, the message and the exit code of an error. Prints the traceback of one that is not expected."""
    format_message = getattr(error, "format_message", None)  # click's usage errors
    if isinstance(error, SurfError) and (error.code == "stopped" or not is_stopping()):
        return error.code, str(error), error.exit_code
    if is_stopping() or str(error) == "Query interrupted":  # DuckDB's message after a signal
        return STOPPED
    if format_message:
        return "bad_call", " ".join(format_message().split()), 2
    traceback.print_exception(error)
    message = (
        f"{type(error).__name__}: {error}: this is a bug; run the same command again, and report it with the traceback"
    )
    return SurfError.code, message, 1


def fail(code: str, message: str, exit_code: int) -> int:
    """Print an error, with --json also as an object. Returns the exit code."""
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False))
    else:
        err.print("error ", style="bold red", end="")
    err.print(shown(message))
    return exit_code
