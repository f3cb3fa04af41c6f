"""What is here: versions, compiler, driver, card, packages; and whether the kernel runs at all and agrees with the reference."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.acceptance.report import Report, device_name, run_step

FOR_TRAINING = ("pyarrow", "numba")
FOR_TESTS = ("pytest", "hypothesis", "pyarrow")
TOLERANCE = 5e-4
"""A card's exp, division and root are approximate."""
DRIVER_FIELDS = "driver_version,name,memory.total,memory.used,clocks.sm,clocks.mem,pcie.link.gen.current,power.limit"


def look(report: Report) -> None:
    import triton

    report.add(
        "versions", True, python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda,
        triton=triton.__version__, numpy=np.__version__, cores=os.cpu_count(),
    )  # fmt: skip
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    has_headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    missing = "" if compiler and has_headers else "apt install gcc python3-dev"
    report.add("C compiler and Python's headers, for Triton's driver", not missing, missing, compiler=compiler)
    for purpose, names in (("training", FOR_TRAINING), ("the tests", FOR_TESTS)):
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        if absent:
            report.skip(f"packages for {purpose}", f"not installed: {', '.join(absent)}")
        else:
            report.add(f"packages for {purpose}", True, packages=", ".join(names))
    look_at_card(report)
    check_agreement(report)


def look_at_card(report: Report) -> None:
    if not torch.cuda.is_available():
        report.skip("card", "torch sees none")
        return
    card = torch.cuda.get_device_properties(0)
    report.add(
        "card", True, name=card.name, capability=f"{card.major}.{card.minor}", bytes=card.total_memory,
        processors=card.multi_processor_count, l2_bytes=getattr(card, "L2_cache_size", None),
    )  # fmt: skip
    command = ["nvidia-smi", f"--query-gpu={DRIVER_FIELDS}", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
        report.add("driver", True, found=found)
    except (OSError, subprocess.SubprocessError) as error:
        report.skip("driver", f"nvidia-smi: {error}")


def check_agreement(report: Report) -> None:
    """The tile beside the reference. A failure of Triton or the driver is reported as the trainer would."""
    from surf2vec.trainer.errors import ResourceError
    from surf2vec.trainer.kernels.failures import explain_failures
    from tests.benchmarks.acceptance.tiles import compare_tiles

    for optimizer in ("adagrad", "sgd"):
        name = f"agrees with the reference, {optimizer}"
        settings = {"vector_size": 33, "negative": 5, "tile_users": 3, "optimizer": optimizer}
        try:
            with explain_failures(lambda: "a made-up failure"):
                vectors, squares = compare_tiles(settings, 3, 12, "tf32x3")
        except ResourceError as error:
            report.add(name, False, str(error))
            return
        passed = max(vectors, squares) <= TOLERANCE
        report.add(name, passed, f"on {device_name()}; mark: {TOLERANCE}", vectors=vectors, squares=squares)


if __name__ == "__main__":
    sys.exit(run_step(look))
