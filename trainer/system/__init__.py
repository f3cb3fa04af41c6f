"""What comes from the operating system: files, memory, signals, processes, and units to show them in."""
