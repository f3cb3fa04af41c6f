"""Power loss: what a command does to files is recorded, and the disks that it may leave are made and tried.

`recorder` runs a command under strace and returns its steps (`calls`: what each system call does); `disk` holds the steps;
`losses` draws the disks that POSIX allows after a power loss; `commands` are the commands and what must come of them; `trial`
tries a disk: doctor, then the same command again.
"""
