"""The trail where a device trains it, beside the interest: its item table stays there, and goes to the host before a commit."""

from surf2vec.trainer.kernels.device import Accelerator, DevicePass, TrailSample, copy_home, copy_trail
from surf2vec.trainer.training.course import Visit
from surf2vec.trainer.training.device_memory import Seat
from surf2vec.trainer.training.trail_slot import TrailSlot


class DeviceTrailSlot:
    """The trail of `slot`, copied to the device of the accelerator."""

    def __init__(self, slot: TrailSlot, accelerator: Accelerator) -> None:
        self.slot, self.gpu = slot, accelerator.gpu
        self.trail = copy_trail(slot.items, slot.tables, accelerator.device)

    def draw(self, visit: Visit) -> TrailSample:
        """Return what the curve measures of a visit, on the host."""
        return TrailSample(*self.slot.draw(visit.sample, visit.resident.histories))

    def train(self, visit: Visit, work: DevicePass, seat: Seat, drawn: TrailSample | None) -> None:
        """Train the users of a visit, and score its sample before others change the rows, in the current stream."""
        self.gpu.launch_trail(self.trail, work, seat.scratch, visit.backward, visit.step.epoch)
        assert drawn is not None
        self.gpu.score_trail(self.trail, work, seat.trail_sample(len(drawn.rows)), seat.trail_scores)

    def sum_losses(self, visit: Visit, drawn: TrailSample | None, seat: Seat) -> list[float]:
        """Return `TrailSlot.sum_losses` of a visit that has landed."""
        assert drawn is not None
        return self.slot.sum_losses(visit.sample, drawn.rows, seat.landed_scores[: len(drawn.rows)])

    def copy_home(self) -> None:
        copy_home(self.trail, self.slot.items)
