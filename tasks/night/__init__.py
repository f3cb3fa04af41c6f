"""The night: its steps in order, what it reports, its settings, its runs, and the dry run."""
