"""`python -m flows.cli`: the command where it is not installed."""

from flows.cli import main

main()
