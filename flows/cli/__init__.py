"""The command `surf2vec`: a file a group of commands."""

from flows.cli.entry import app, main

__all__ = ["app", "main"]
