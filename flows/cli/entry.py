"""The entry point of `surf2vec`: errors become messages and exit codes.

With --json one JSON object goes to standard output; everything else goes to standard error. Exit codes: 0 done, 1 the run
failed or was stopped, 2 the call, the configuration or the input's shape was wrong, 3 the gate kept the release back. Ctrl-C is
SIGTERM: what can be committed is, and the same command goes on; a second Ctrl-C ends the process at once (130 in a shell).
"""

import atexit
import json
import os
import sys
import threading
import warnings
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from flows.cli import nights, releases, upkeep, users  # noqa: F401 (their commands are there once they are imported)
from flows.cli.options import app, err
from tasks.root.wording import shown
from trainer.errors import SurfError
from trainer.system.signals import heed_signals, is_stopping

INTERRUPTED = 130  # what Typer makes of KeyboardInterrupt


@app.callback()
def surf2vec(
    context: typer.Context,
    is_version: Annotated[bool, typer.Option("--version", help="Print the version, and nothing else.")] = False,
) -> None:
    """User vectors from web browsing logs, made fresh every night."""
    if is_version:
        print(version("surf2vec"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> NoReturn:
    """The entry point: an expected error becomes its message and its exit code, never a traceback."""
    # On this terminal the steps speak for themselves; Prefect's server keeps all of its lines.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    warnings.filterwarnings("ignore")  # libraries' deprecations are for us, not for the person at the terminal
    heed_signals()
    as_json, has_server = "--json" in sys.argv, True
    try:
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            code = stopped(as_json)
    except SurfError as error:
        has_server = error.code != "server_ended"
        has_own_words = error.code == "stopped" or not (has_server and is_stopping())
        code = fail(error.code, str(error), error.exit_code, as_json) if has_own_words else stopped(as_json)
    except BaseException as error:
        format_message = getattr(error, "format_message", None)  # click's usage errors
        if is_stopping() or str(error) == "Query interrupted":  # DuckDB's word for a signal
            code = stopped(as_json)
        elif format_message is None:
            raise
        else:
            code = fail("bad_call", " ".join(format_message().split()), 2, as_json)
    leave(code, has_server)


def stopped(as_json: bool) -> int:
    """Say that a signal ended the command; return the exit code."""
    return fail("stopped", "stopped by a signal: the same command goes on with what had not ended", 1, as_json)


def leave(code: int, has_server: bool = True) -> NoReturn:
    """End the process as the interpreter would, but without taking the interpreter down.

    DuckDB's bindings (nanobind) list on standard error every object that lives then, and after an error in a flow some do: also
    where the error's frames are cleared first. So the rest is done here: waiting for threads, and the exit handlers, in the last
    of which Prefect tells its server how the run ended. A server that died is told nothing: Prefect would try for a minute.
    """
    if has_server:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fail(code: str, message: str, exit_code: int, as_json: bool) -> int:
    """Print an error as asked; returns the exit code."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False))
    err.print(
        f"[bold red]error[/bold red] {escape(shown(message))}" if not as_json else shown(message),
        markup=not as_json,
        highlight=False,
        soft_wrap=True,
    )
    return exit_code
