"""Random traces of commands. Each continues an earlier one of the same seed, so that few commands make many traces."""

import random
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surf2vec.tasks.root.identity import ROOT_TAG, read_root_id
from surf2vec.trainer.errors import SurfError
from tests.tasks.registry.model.spec import WRONG, RefusedError, Spec, read_version
from tests.tasks.registry.model.world import ROOTS, USERS, KilledError, World, killed_at, shortened

LENGTH, TAIL, WRITES = 12, 3, 40


@dataclass(frozen=True)
class Command:
    """What somebody does in a root, and the write before which the process ends: it is repeated then."""

    root: str
    name: str
    arguments: tuple[Any, ...]
    killed: int | None = None

    def __str__(self) -> str:
        words = [self.name, *(str(one) for one in self.arguments if one is not None)]
        return f"{self.root}: {' '.join(words)}{f', killed before write {self.killed}, and again' * bool(self.killed)}"


def draw(rng: random.Random, spec: Spec) -> Command:
    """A command that somebody could give now."""
    root, numbers = rng.choice(ROOTS), list(spec.versions) or [1]
    number = rng.choice([None, rng.choice(numbers)])
    own = max((day for name, day in spec.nights if name == root), default=0)
    newest = max((one.until for one in spec.versions.values()), default=0)
    kinds: dict[str, tuple[float, tuple[Any, ...]]] = {
        "night": (8, (rng.choice([own + 1, newest + 1, max(own, 1)]), rng.choice(["passed", "passed", "held"]))),
        "promote": (3, (number, rng.choice([None, "a holiday"]))),
        "rollback": (3, (number,)),
        "gc": (1.5, ()),
        "forget": (1, (rng.choice(USERS[:-1]),)),
        "delete": (0.3 * bool(spec.versions), ("model_version", str(rng.choice(numbers)))),
        "delete ": (0.5 * bool(spec.aliases), ("registered_model_alias", rng.choice([*spec.aliases, "champion"]))),
    }
    [name] = rng.choices(list(kinds), [weight for weight, _ in kinds.values()])
    is_killed = rng.random() < 0.5 and "delete" not in name
    return Command(root, name.strip(), kinds[name][1], rng.randint(1, WRITES) if is_killed else None)


class Trace:
    """A world and its model, after some commands."""

    def __init__(self, world: World) -> None:
        self.world, self.spec, self.commands = world, Spec(), list[Command]()

    def do(self, command: Command) -> None:
        """Give a command to both, and compare. Raises AssertionError with the trace."""
        self.commands.append(command)
        with ExitStack() as stack:
            for patch in shortened(self.world):
                stack.enter_context(patch)
            try:
                self._do(command)
                self._compare()
            except Exception as error:
                raise AssertionError(
                    "\n".join([f"{type(error).__name__}: {error}", *map(str, self.commands)])
                ) from error

    def _do(self, command: Command) -> None:
        world, arguments, said, expected = self.world, (command.root, *command.arguments), "", ""
        act, versions = getattr(world, command.name), world.read().versions
        if command.killed:
            with suppress(KilledError, SurfError), killed_at(command.killed):
                act(*arguments)
        self.spec.complete = {name: {one.number for one in versions if world.is_complete(name, one)} for name in ROOTS}
        try:
            act(*arguments)
        except SurfError as error:
            said = f"{type(error).__name__}: {error}"
        try:
            getattr(self.spec, command.name)(*arguments)
        except RefusedError as error:
            expected = str(error)
        if command.name == "gc" and not any(one.root == command.root for one in self.spec.versions.values()):
            expected = said and WRONG  # it may be the wrong registry
        assert said.partition(":")[0] == expected, f"{said or 'no error'} where the model has {expected or 'none'}"

    def _compare(self) -> None:
        registered, spec, world = self.world.read(), self.spec, self.world
        assert registered.aliases == spec.aliases, f"aliases {registered.aliases}, not {spec.aliases}"
        roots = {read_root_id(world.root(name)): name for name in ROOTS}
        found = {one.number: read_version(one, roots[one.tags[ROOT_TAG]]) for one in registered.versions}
        assert found.keys() == spec.versions.keys(), f"versions {list(found)}, not {list(spec.versions)}"
        for number, version in spec.versions.items():
            wanted = vars(version) | {"served": version.served > 0}
            wanted["release"] = version.release or found[number]["release"]
            assert wanted == found[number] | {"users": version.users}, (
                f"version {number}: {found[number]}, not {wanted}"
            )
        for name in ROOTS:
            for number in spec.needed(name):
                assert world.is_complete(name, registered.get(number)), f"version {number} of {name} is not complete"


def explore(world: World, seed: int, number: int, saved: Path) -> None:
    """Make `number` traces of one seed. Raises AssertionError with the trace after which world and model differ."""
    rng, trace = random.Random(seed), Trace(world)
    states = [(deepcopy(trace.spec), list[Command]())]
    world.save(saved / "0")
    for _ in range(number):
        [place] = rng.choices(range(len(states)), [len(commands) + 1 for _, commands in states])
        world.load(saved / str(place))
        trace.spec, trace.commands = deepcopy(states[place])
        for _ in range(rng.randint(1, TAIL)):
            trace.do(draw(rng, trace.spec))
            if len(trace.commands) < LENGTH:
                world.save(saved / str(len(states)))
                states.append(deepcopy((trace.spec, trace.commands)))
