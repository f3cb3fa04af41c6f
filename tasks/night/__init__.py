"""The night: its steps in order, what it reports, its settings, its runs, nights of past days, and the dry run."""
