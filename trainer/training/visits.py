"""What visits need, brought into memory in time: the users of a chunk, an item block, and those that come next."""

from trainer.model.rows import Items
from trainer.plan.schedule import Step
from trainer.training.course import Course, Visit
from trainer.training.curve import Targets
from trainer.training.slots import Slots


class Visits:
    """Makes the visits of a course, with all that they need in memory. items, targets: of the item block that is trained."""

    def __init__(self, course: Course, slots: Slots) -> None:
        self.course, self.slots = course, slots
        self.items: Items
        self.targets: Targets | None = None

    def bring_users(self, position: int, step: Step) -> None:
        """At a chunk's first micro-partition: evict the chunk before, and begin to read this one and the next."""
        slots, partitions = self.slots, self.course.partitions(step)
        if self.targets is None:
            slots.items.prefetch(step.block)  # before the users: with it the first of them can be trained
        if self.course.plan.is_resident:
            slots.prefetch(partitions)
        elif step.is_chunk_start or not slots.residents:
            wanted = partitions if step.turn else self.course.partitions_from(step)
            slots.evict([p for p in slots.residents if p not in wanted])
            slots.prefetch(wanted)
            following = self.course.step(position + self.course.steps_left(step))
            if following:
                slots.prefetch(self.course.partitions(following))

    def is_other_block(self, step: Step) -> bool:
        """Whether the step's item block is not the one that is trained."""
        return self.targets is None or step.block != self.slots.items.block

    def change_block(self, position: int, step: Step) -> tuple[Items, Targets]:
        """Evict the item block that was trained, whose rows are at home, for the step's; begin to read the one after it."""
        self.targets = self.course.blocks.targets(step.block)  # while the block is still being read
        self.items = self.slots.items.admit(step.block)
        following = self.course.step(position + step.chunk.stop - step.place)
        if following:
            self.slots.items.prefetch(following.block)
        return self.items, self.targets

    def take(self, position: int, index: int, step: Step, ahead: Visit | None) -> Visit:
        """One of the visits at a position, whose users are free to change; ahead: the same, where it was made before."""
        assert self.targets is not None
        resident = self.slots.admit(self.course.partitions_at(step)[index])  # a commit may be writing one made ahead
        return ahead or self.course.visit(position, index, step, resident, self.targets)

    def make_ahead(self, visit: Visit) -> Visit | None:
        """The visit after this one; None where it needs what this one changes, or another item block."""
        position, index, step = visit.position, visit.index + 1, self.course.step(visit.position)
        if visit.is_last:
            position, index, step = visit.position + 1, 0, self.course.step(visit.position + 1)
        if step is None or step.block != visit.step.block:
            return None
        here = self.course.partitions_at(step)
        if not here or here[index] == visit.partition:
            return None
        return self.course.visit(position, index, step, self.slots.admit(here[index]), visit.targets)
