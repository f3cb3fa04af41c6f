"""`python -m surf2vec.flows.cli`: the command where it is not installed."""

from surf2vec.flows.cli import main

main()
