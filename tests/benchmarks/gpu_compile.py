"""Compiles the GPU's programs for several cards, without a card, and prints a table of what they need, for docs/card.md.

    python -m tests.benchmarks.gpu_compile [--targets 80 90] [--used] [--json]    --used: only the warps that `gpu.launch` takes

A pair is a token of one user with its negatives. Instructions are those of the compiled loop over tokens (or steps, of 32 pairs
in a tile), all branches counted, times the warps of a program; the trail's loops over the pages before a token count as often as
they run. Spilled: bytes of a thread's numbers that found no register.
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
        ("16 shared by 32", {"negative": 16}, (4, 8)),
        ("32 shared by 32", {"negative": 32}, (4, 8)),
    )
} | {
    f"{negatives} shared by 32, {dims} dimensions": ({"vector_size": dims, "negative": negatives}, (4, 8))
    for dims, negatives in ((64, 64), (64, 256), (256, 16), (256, 64))
} | {
    f"trail: {negatives} shared by 32, {dims} dimensions": (
        {"parts": "trail", "vector_size": dims, "trail_negative": negatives}, (4, 8),
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
UNUSED = {False: ("inputs", "input_squares", "lags", "lag_squares", "l2s"), True: ("users", "user_squares")}
"""Arguments that are None, of the interest and of the trail."""
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
OPCODE = r"(?:@!?U?P\w+ )?"


def compile_program(config: TrainConfig, target: int, warps: int) -> Any:
    """The training program of these settings, compiled as `gpu.launch` would have it for this target."""
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
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": warps})


def measure(config: TrainConfig, target: int, warps: int) -> dict[str, Any]:
    """What a compiled program needs; code: its instructions, as text."""
    binary = compile_program(config, target, warps)
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
    loop = longest_loop(code, config.trail_window if config.trail_size else 1)
    a_pair = warps / (TRAIL_TILE_USERS if config.trail_size else config.tile_users)
    atomics = sum(bool(re.match(OPCODE + r"(RED|REDG|ATOM|ATOMG)\.", line)) for line in loop)
    return (
        {"target": target, "warps": warps, "is_used": warps == used_warps(config, target)}
        | {"registers": registers, "spilled": stack + local, "shared": binary.metadata.shared}
        | {"instructions_a_pair": len(loop) * a_pair, "atomics_a_pair": atomics * a_pair, "code": code}
    )


def used_warps(config: TrainConfig, target: int) -> int:
    """The warps that a launch takes."""
    return gpu.num_warps(config, target, config.trail_size > 0)


def longest_loop(code: str, repeats: int = 1) -> list[str]:
    """The instructions between a jump back and its target, of the jump that goes back farthest; those of loops in it `repeats`
    times.
    """
    lines = [(int(at, 16), line) for at, line in re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", code, re.M)]
    jumps = ((at, re.match(OPCODE + r"BRA\S*\s.*?0x([0-9a-f]+)", line)) for at, line in lines)
    loops = [(int(jump[1], 16), at) for at, jump in jumps if jump and int(jump[1], 16) < at]
    first, last = max(loops, key=lambda loop: loop[1] - loop[0])
    inner = [(a, b) for a, b in loops if first <= a and b <= last and b - a < (last - first) / 2]

    def times(at: int) -> int:
        return repeats if any(a <= at <= b for a, b in inner) else 1

    return [line for at, line in lines if first <= at <= last for _ in range(times(at))]


def print_table(cases: dict[str, list[dict[str, Any]]], targets: list[int]) -> None:
    """Instructions a pair (registers, spilled bytes if any) by program, warps and target; bold: warps that a launch takes."""
    print("| negatives | warps |", " | ".join(f"sm_{target}" for target in targets), "| shared | atomics a pair |")
    print("|---|--:|" + "--:|" * len(targets) + "--:|--:|")
    for name, found in cases.items():
        for warps in sorted({case["warps"] for case in found}):
            row = {case["target"]: case for case in found if case["warps"] == warps}
            cells = [cell(row[target]) if target in row else "" for target in targets]
            shared = max(case["shared"] for case in row.values())
            atomics = sorted({round(case["atomics_a_pair"], 1) for case in row.values()})
            print(f"| {name} | {warps} |", " | ".join(cells), f"| {shared:,} | {atomics[0]:g} to {atomics[-1]:g} |")


def cell(case: dict[str, Any]) -> str:
    spilled = f", {case['spilled']:,} B" if case["spilled"] else ""
    text = f"{case['instructions_a_pair']:,.0f} ({case['registers']}{spilled})"
    return f"**{text}**" if case["is_used"] else text


def main() -> int:
    assert isinstance(gpu.train_stream, triton.JITFunction), "Triton was imported to interpret, not to compile"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", type=int, default=list(TARGETS), help="compute capabilities")
    parser.add_argument("--used", action="store_true", help="only the warps that a launch takes")
    parser.add_argument("--json", action="store_true", help="a line of JSON a program, with its code")
    arguments = parser.parse_args()
    cases: dict[str, list[dict[str, Any]]] = {}
    for name, (settings, compared) in PROGRAMS.items():
        config = TrainConfig(**{"parts": "interest"} | settings)
        for target in arguments.targets:
            used = used_warps(config, target)
            for warps in [used] if arguments.used else sorted({*compared, used}):
                case = measure(config, target, warps)
                cases.setdefault(name, []).append(case)
                if arguments.json:
                    print(json.dumps({"program": name} | case), flush=True)
    if not arguments.json:
        print_table(cases, arguments.targets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
