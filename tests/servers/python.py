"""Python in a process of its own, with this checkout."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    """Return what Python prints. It has to succeed."""
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def stand_in(folder: Path, script: str) -> str:
    """A program that stands in for the Python of a process."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)
