"""What a training begins from, and the processes and devices that it runs on."""
