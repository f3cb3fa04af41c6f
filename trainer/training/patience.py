"""Early stopping: whether an epoch was the best so far, and whether to wait for a better one."""

from dataclasses import dataclass

from trainer.training.record import Record


@dataclass(frozen=True)
class Verdict:
    """is_best: the epoch's generation is to be kept; is_over: the training ends with the best one, which is another."""

    is_best: bool
    is_over: bool


def judge_epoch(record: Record, epoch: int, patience: int, is_last: bool, generation: int) -> Verdict:
    """Judge an epoch, from 0, by its held-out loss; the record notes the best. generation: the one that it will be."""
    heldout_loss = record.curve.epoch_losses()["heldout_loss"]
    if heldout_loss is not None and (record.best is None or heldout_loss < record.best["heldout_loss"]):
        record.best = {"epoch": epoch + 1, "heldout_loss": heldout_loss, "generation": generation}
        return Verdict(is_best=True, is_over=False)
    if record.best is None:
        return Verdict(is_best=False, is_over=False)
    is_hopeless = epoch + 1 - record.best["epoch"] >= patience
    return Verdict(is_best=False, is_over=is_last or is_hopeless)
