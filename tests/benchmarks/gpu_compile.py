"""Compiles the GPU's programs for several cards, without a card, and prints a table of what they need, for docs/card.md.

    python -m tests.benchmarks.gpu_compile [--targets 80 90] [--used | --registers 128 168] [--json]

--used: only the warps that `gpu.launch` takes; --registers: the shipped programs alone, with at most so many registers a thread,
too. A pair is a token of one user with its negatives. Instructions are those of the compiled loop over steps, of 32 pairs, all
branches counted, times the warps of a program; loops over the pages before a token, or over blocks of negatives, count as often
as they run. Spilled: bytes of a thread's numbers that found no register.

The prediction is arithmetic, not a measurement: a step takes CYCLES for each instruction of a warp and each barrier, and what
rows take to arrive; as many programs share a multiprocessor as its registers and shared memory allow; and the issue slots and the
first-level cache, which holds shared memory and what is spilled, are bounds. The cycles were fitted to a simulation of an
earlier program for an H100 (776 M pairs a second by 346 instructions and 180 barriers, 1,231 M by 200 and 107).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"  # read when Triton is imported, in the next lines

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import gpu
from surf2vec.trainer.kernels.signature import TRAIL_TILE_USERS

TARGETS = (75, 80, 86, 89, 90, 120)
"""Compute capabilities: T4; A100; RTX 3060 to 3090; RTX 4070, L4; H100, H200; RTX 50."""

PROGRAMS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    f"{name}, {dims} dimensions": ({"vector_size": dims, **settings}, warps)
    for dims in (64, 128)
    for name, settings, warps in (
        ("16 shared by 32", {"negative": 16}, (1, 2, 4)),
        ("32 shared by 32", {"negative": 32}, (1, 2, 4)),
    )
} | {
    f"{negatives} shared by 32, {dims} dimensions": ({"vector_size": dims, "negative": negatives}, (2, 4, 8))
    for dims, negatives in ((64, 64), (64, 256), (256, 16), (256, 64))
} | {
    f"trail: {negatives} shared by 32, {dims} dimensions": (
        {"parts": "trail", "vector_size": dims, "trail_negative": negatives}, (2, 4, 8),
    ) for dims, negatives in ((64, 64), (64, 256), (128, 64), (256, 64))
}  # fmt: skip
"""Settings of a program, and the warps that are compared."""

TYPES = (
    dict.fromkeys(("users", "user_squares", "outputs", "output_squares", "alphas", "corrections"), "*fp32")
    | dict.fromkeys(("inputs", "input_squares", "lags", "lag_squares", "l2s"), "*fp32")
    | dict.fromkeys(("tokens", "targets", "num_targets", "aliases", "coming", "num_coming"), "*i32")
    | dict.fromkeys(("starts", "ends", "keys", "order", "thresholds", "streams"), "*i64")
    | dict.fromkeys(("recency_rate", "l2", "item_l2", "handicap"), "fp32")
    | {"num_items": "i32"}
)
SHIPPED = ("32 shared by 32, 64 dimensions", "trail: 64 shared by 32, 64 dimensions")
CYCLES = {"instruction": 4, "barrier": 30, "rows": 2800}
LEFT_KB = 16  # of the first-level cache, for what is read
CARDS = {
    80: (108, 1.41e9, 164, 192),
    86: (28, 1.78e9, 100, 128),
    90: (132, 1.76e9, 228, 256),
    120: (170, 2.41e9, 100, 128),
}
"""By compute capability, an A100, RTX 3060, H100 and RTX 5090: multiprocessors, clock, and of each the kilobytes of shared memory
and of the first-level cache, which has it.
"""
UNUSED = {False: ("inputs", "input_squares", "lags", "lag_squares", "l2s"), True: ("users", "user_squares")}
"""Arguments that are None, of the interest and of the trail."""
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
OPCODE = r"(?:@!?U?P\w+ )?"


def compile_program(config: TrainConfig, target: int, warps: int, registers: int | None = None) -> Any:
    """The training program of these settings, compiled as `gpu.launch` would have it for this target; registers: at most."""
    is_trail = config.trail_size > 0
    negatives = config.trail_negative if is_trail else config.negative
    constants: dict[str, Any] = dict.fromkeys(UNUSED[is_trail]) | {
        "D": config.vector_size, "K": negatives, "B": gpu.negatives_at_once(negatives, config.vector_size),
        "M": TRAIL_TILE_USERS if is_trail else config.tile_users, "W": config.trail_window if is_trail else 0,
        "NUM_FREE": config.trail_size or config.num_free, "IS_TRAIL": is_trail,
        "IS_ADAGRAD": is_trail or config.optimizer == "adagrad", "IS_FROZEN": False,
        "HAS_WIDE_ATOMICS": target >= gpu.WIDE_ATOMICS, "PRECISION": gpu.PRECISION,
    }  # fmt: skip
    types = TYPES | dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in gpu.train_stream.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(gpu.train_stream, signature, constexprs=constants, attrs=aligned)
    return triton.compile(
        source, target=GPUTarget("cuda", target, 32), options={"num_warps": warps, "maxnreg": registers}
    )


def measure(config: TrainConfig, target: int, warps: int, most_registers: int | None = None) -> dict[str, Any]:
    """What a compiled program needs; code: its instructions, as text."""
    binary = compile_program(config, target, warps, most_registers)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("--dump-resource-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, usage
    registers, stack, local = (int(number) for number in found.groups())
    loop = longest_loop(code, num_repeats(config))
    a_pair = warps / (TRAIL_TILE_USERS if config.trail_size else config.tile_users)
    atomics, barriers = (
        sum(bool(re.match(OPCODE + kind, line)) for line in loop) for kind in (r"(RED|REDG|ATOM|ATOMG)\.", "BAR")
    )
    return (
        {"target": target, "warps": warps, "is_used": warps == used_warps(config, target) and not most_registers}
        | {"registers": registers, "spilled": stack + local, "shared": binary.metadata.shared, "barriers": barriers}
        | {"instructions_a_pair": len(loop) * a_pair, "atomics_a_pair": atomics * a_pair, "code": code}
    )


def predict(case: dict[str, Any]) -> tuple[int, float]:
    """Programs of a multiprocessor, and pairs a second of the card of a case."""
    processors, hertz, shared_kb, cache_kb = CARDS[case["target"]]
    threads, most_shared, cache = 32 * case["warps"], 1024 * shared_kb, 1024 * (cache_kb - LEFT_KB)
    instructions = case["instructions_a_pair"] * TRAIL_TILE_USERS / case["warps"]
    programs = min(65536 // (-(-case["registers"] // 8) * 8 * threads), most_shared // max(case["shared"], 1))
    while programs > 1 and programs * (case["shared"] + case["spilled"] * threads) > cache:
        programs -= 1
    cycles = instructions * CYCLES["instruction"] + case["barriers"] * CYCLES["barrier"] + CYCLES["rows"]
    cycles = max(cycles, programs * instructions * case["warps"] / 4)
    return programs, programs * TRAIL_TILE_USERS / cycles * processors * hertz


def used_warps(config: TrainConfig, target: int) -> int:
    """The warps that a launch takes."""
    return gpu.num_warps(config, target, config.trail_size > 0)


def num_repeats(config: TrainConfig) -> tuple[int, int]:
    """How often loops over lags run, and loops over blocks of negatives, which are those with products of matrices."""
    size, negatives = config.vector_size, config.trail_negative if config.trail_size else config.negative
    return config.trail_window if config.trail_size else 1, -(-negatives // gpu.negatives_at_once(negatives, size))


def longest_loop(code: str, repeats: tuple[int, int]) -> list[str]:
    """The instructions between a jump back and its target, of the jump that goes back farthest; those of loops in it as often as
    `num_repeats` says.
    """
    lines = [(int(at, 16), line) for at, line in re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", code, re.M)]
    jumps = ((at, re.match(OPCODE + r"BRA\S*\s.*?0x([0-9a-f]+)", line)) for at, line in lines)
    loops = [(int(jump[1], 16), at) for at, jump in jumps if jump and int(jump[1], 16) < at]
    first, last = max(loops, key=lambda loop: loop[1] - loop[0])
    inner = [(a, b) for a, b in loops if (a, b) != (first, last) and first <= a and b <= last]

    def times(at: int) -> int:
        around = min(((b - a, a, b) for a, b in inner if a <= at <= b), default=None)
        if around is None:
            return 1
        has_products = any("HMMA" in line for place, line in lines if around[1] <= place <= around[2])
        return repeats[has_products]

    return [line for at, line in lines if first <= at <= last for _ in range(times(at))]


def print_table(cases: list[dict[str, Any]]) -> None:
    """A row a program, target, warps and limit of registers; bold: what a launch takes."""
    print("| program | target | warps | registers | spilled | instructions a pair | barriers a step | atomics a pair | "
          "programs | M pairs/s |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in cases:
        programs, per_second = predict(case) if case["target"] in CARDS else ("", float("nan"))
        cells = [
            f"sm_{case['target']}", case["warps"], case["registers"], f"{case['spilled']:,} B",
            f"{case['instructions_a_pair']:,.0f}", case["barriers"], f"{case['atomics_a_pair']:.1f}", programs,
            "" if programs == "" else f"{per_second / 1e6:,.0f}",
        ]  # fmt: skip
        name = f"**{case['program']}**" if case["is_used"] else case["program"]
        print(f"| {name} |", " | ".join(map(str, cells)), "|")


def main() -> int:
    assert isinstance(gpu.train_stream, triton.JITFunction), "Triton was imported to interpret, not to compile"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", type=int, default=list(TARGETS), help="compute capabilities")
    parser.add_argument("--used", action="store_true", help="only the warps that a launch takes")
    parser.add_argument(
        "--registers", nargs="+", type=int, default=[], help="limits that the shipped programs are tried with"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON a program, with its code")
    arguments = parser.parse_args()
    cases = []
    for name, (settings, compared) in PROGRAMS.items():
        if arguments.registers and name not in SHIPPED:
            continue
        config = TrainConfig(**{"parts": "interest"} | settings)
        for target in arguments.targets:
            used = used_warps(config, target)
            for warps in [used] if arguments.used else sorted({*compared, used}):
                for registers in (None, *arguments.registers):
                    cases.append({"program": name} | measure(config, target, warps, registers))
                    if arguments.json:
                        print(json.dumps(cases[-1]), flush=True)
    if not arguments.json:
        print_table(cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
