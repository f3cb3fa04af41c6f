"""Two workers on one card that exchange by gloo, beside one worker: they end, and learn as much."""

import json
import sys

from tests.benchmarks.acceptance.corpora import write_planted
from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.training import last_words, run_trainer, settings_of

TOGETHER = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "tests.benchmarks.acceptance.one_card",
)
LOSS_MARK = 1.05


def train_together(report: Report) -> None:
    corpus = write_planted(report, "team")
    settings = settings_of(report, epochs=report.size(5, 1), sharing="replicated", threads=1)
    losses = {}
    for name, start in (("one worker", ("-m", "surf2vec.trainer")), ("two workers", TOGETHER)):
        store = report.folder / f"team-{name.split()[0]}"
        done = run_trainer(corpus.folder, store, settings, start=start, device_bytes=4 * 10**9)
        if done.returncode:
            report.add(name, False, last_words(done))
            return
        result = json.loads(done.stdout.strip().splitlines()[-1])
        losses[name] = result["heldout_loss"] or result["loss"]
        passed = report.rehearses or losses[name] <= LOSS_MARK * losses["one worker"]
        report.add(name, passed, f"mark: held-out loss <= {LOSS_MARK} x one worker's", loss=losses[name])


if __name__ == "__main__":
    sys.exit(run_step(train_together))
