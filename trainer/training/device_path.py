"""The path where a device trains it, beside the interest: its item table stays there, and goes to the host before a commit."""

from trainer.errors import TrainingError
from trainer.kernels.device import Accelerator, DevicePass, PathSample, copy_home, copy_path
from trainer.training.course import Visit
from trainer.training.device_memory import Seat
from trainer.training.path_slot import PathSlot


class DevicePathSlot:
    """The path of `slot`, copied to the device of the accelerator."""

    def __init__(self, slot: PathSlot, accelerator: Accelerator) -> None:
        if accelerator.launch_path is None or accelerator.score_path is None:
            raise TrainingError("the kernel trains no path on its device: train it on the host")
        self.slot, self.launch, self.score = slot, accelerator.launch_path, accelerator.score_path
        self.path = copy_path(slot.items, slot.tables, accelerator.device)

    def draw(self, visit: Visit) -> PathSample:
        """Return what the curve measures of a visit, on the host."""
        return PathSample(*self.slot.draw(visit.sample, visit.resident.histories))

    def train(self, visit: Visit, work: DevicePass, seat: Seat, drawn: PathSample | None) -> None:
        """Train the users of a visit, and score its sample before others change the rows, in the current stream."""
        self.launch(self.path, work, seat.scratch, visit.backward, visit.step.epoch)
        assert drawn is not None
        self.score(self.path, work, seat.path_sample(len(drawn.rows)), seat.path_scores)

    def sum_losses(self, visit: Visit, drawn: PathSample | None, seat: Seat) -> list[float]:
        """Return `PathSlot.sum_losses` of a visit that has landed."""
        assert drawn is not None
        return self.slot.sum_losses(visit.sample, drawn.rows, seat.landed_scores[: len(drawn.rows)])

    def copy_home(self) -> None:
        copy_home(self.path, self.slot.items)
