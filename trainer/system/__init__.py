"""Operating system services: files, memory, signals, processes, and units of bytes."""
