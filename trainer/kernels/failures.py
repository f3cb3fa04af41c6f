"""Puts failures of torch, Triton and NVIDIA's driver into words, with what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from surf2vec.trainer.errors import ResourceError, SurfError

REMEDIES: dict[str, str] = {
    "c compiler": "Triton builds its driver with a C compiler and found none: apt install gcc python3-dev, or set CC",
    "calledprocesserror": "the C compiler could not build Triton's driver: apt install gcc python3-dev",
    "out of memory": "the GPU has too little free memory: end what else runs on it (nvidia-smi lists it)",
    "too old": "update NVIDIA's driver, or install a torch for an older CUDA",
    "driver version is insufficient": "update NVIDIA's driver, or install a torch for an older CUDA",
    "unsupported toolchain": "update NVIDIA's driver, it does not know the code of this Triton",
    "no kernel image": "this torch has no code for this card: install one that has",
    "libcuda.so": "NVIDIA's driver is not installed, or not where ldconfig finds it: install it, or run ldconfig",
    "outofresources": "the card is too small for the settings: lower train.negative or train.vector_size",
    "compilationerror": "this Triton cannot compile the kernel for this card: install the one in constraints.txt",
    "illegal memory access": "a program or the card has a fault: run it with CUDA_LAUNCH_BLOCKING=1 to see where, and report it",
    "ecc error": "the card's memory is defective (nvidia-smi -q -d ECC): restart the machine, or use another card",
    "ptxas": "this Triton cannot compile the kernel for this card: install the one in constraints.txt",
}
"""What to do, by a part of the classes' names or of the message, in lower case. The first that is found counts."""


@contextmanager
def explain_failures(find_work: Callable[[], str], part: str = "") -> Iterator[None]:
    """Raise ResourceError with a remedy for any error but our own, if its message has the part.

    find_work: what the kernel was doing. CUDA reports an error late: at any call after the program that failed.
    """
    try:
        yield
    except SurfError:
        raise
    except Exception as error:
        if part not in str(error):
            raise
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        text = " ".join([*(kind.__name__ for kind in type(error).__mro__), str(error)]).lower()
        remedy = next((remedy for part, remedy in REMEDIES.items() if part in text), "docs/gpu.md says what it needs")
        raise ResourceError(
            f"the GPU kernel failed on {find_work()} ({type(error).__name__}: {first[:300]}): {remedy}; or train on the CPU"
        ) from error
