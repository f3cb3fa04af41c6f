"""Three launches under torch's profiler: which program takes how long on the card."""

import sys

import torch

from tests.benchmarks.acceptance.copies import synchronize
from tests.benchmarks.acceptance.pairs import config_of, draw_tokens, make_pass
from tests.benchmarks.acceptance.report import Report, run_step

LAUNCHES = 3
MOST_LINES = 8


def profile_launches(report: Report) -> None:
    from torch.profiler import ProfilerActivity, profile

    from surf2vec.trainer.kernels import gpu

    device, num_items, num_users = gpu.find_device(), report.size(100_000, 40), report.size(200_000, 3)
    config = config_of(negative=report.size(16, 2), vector_size=report.size(128, 16))
    work = make_pass(config, *draw_tokens(num_users, num_items, "equal"), num_items)
    on_device = gpu.copy_pass(work, gpu.copy_sampling(work.sampling, device))
    users, outputs = (
        gpu.DeviceRows(torch.full((n, config.interest_size), 0.01, device=device), torch.zeros(n, device=device))
        for n in (num_users, num_items)
    )
    scratch = gpu.make_scratch(len(work.hashes), len(work.tokens), device)
    gpu.launch(users, outputs, on_device, scratch)  # compiles
    synchronize()
    on_card = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_card else [])]) as told:
        for _ in range(LAUNCHES):
            gpu.launch(users, outputs, on_device, scratch)
        synchronize()
    if not on_card:
        report.skip(
            "programs by time", f"no card; the profiler saw {len(told.key_averages())} kinds of calls on the host"
        )
        return
    seconds = {event.key: event.self_device_time_total / 1e6 for event in told.key_averages()}
    known = {name: value for name, value in seconds.items() if value > 0}
    if not known:
        report.skip("programs by time", "the profiler tells no times of the card (CUPTI is missing, or not permitted)")
    for name, value in sorted(known.items(), key=lambda item: -item[1])[:MOST_LINES]:
        report.add(name[:60], True, seconds_a_launch=value / LAUNCHES, of_all=value / sum(known.values()))


if __name__ == "__main__":
    sys.exit(run_step(profile_launches))
