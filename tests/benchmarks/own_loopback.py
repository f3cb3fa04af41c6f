"""Run a command and count the bytes that it sends over the loopback interface, TCP and IP headers included.

    unshare --net python -m tests.benchmarks.own_loopback COUNTED.json COMMAND ...

In a network namespace of its own nothing else counts; without `unshare` all that the machine sends to itself meanwhile does.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from surf2vec.trainer.system.files import write_json

COUNTERS = Path("/proc/self/net/dev")
SENT_BYTES_FIELD = 8


@cache
def can_isolate() -> bool:
    """Whether this process may make a network namespace and bring up its loopback interface."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    command = ["unshare", "--net", "ip", "link", "set", "lo", "up"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def counted(command: Sequence[str], counts: Path) -> list[str]:
    """The command under this module, which leaves `{"sent_bytes", "isolated"}` in the file `counts`."""
    isolate = ["unshare", "--net"] if can_isolate() else []
    return [*isolate, sys.executable, "-m", "tests.benchmarks.own_loopback", str(counts), *command]


def sent_bytes() -> int:
    """What the loopback interface of this namespace has sent so far."""
    line = next(line for line in COUNTERS.read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[SENT_BYTES_FIELD])


def main() -> int:
    counts, command = Path(sys.argv[1]), sys.argv[2:]
    before = sent_bytes()
    is_own = before == 0  # the host's has always sent something
    if is_own:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    code = subprocess.run(command, check=False).returncode
    write_json(counts, {"sent_bytes": sent_bytes() - before, "isolated": is_own})
    return code


if __name__ == "__main__":
    sys.exit(main())
