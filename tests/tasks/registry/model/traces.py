"""Random traces of commands. Each continues an earlier one of the same seed, so that few commands make many traces."""

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surf2vec.tasks.registry.versions import Registered
from surf2vec.tasks.root.identity import ROOT_TAG, read_root_id
from surf2vec.trainer.errors import SurfError
from tests.tasks.registry.model.spec import WRONG, RefusedError, Spec, list_needed, read_version
from tests.tasks.registry.model.world import ROOTS, USERS, KilledError, World, killed_at, shortened

LENGTH, TAIL = 16, 4
WRITES = {"night": 28, "promote": 4, "rollback": 8, "gc": 30, "forget": 150, "push": 30, "restore": 30}
"""About how many writes a command makes."""


@dataclass(frozen=True)
class Command:
    """What somebody does in a root, and the write before which the process ends."""

    root: str
    name: str
    arguments: tuple[Any, ...]
    killed: int | None = None

    def __str__(self) -> str:
        words = [self.name, *(str(one) for one in self.arguments if one is not None)]
        return f"{self.root}: {' '.join(words)}{f', killed before write {self.killed}' * bool(self.killed)}"


def draw(rng: random.Random, spec: Spec, last: Command | None) -> Command:
    """A command that somebody could give now: what was killed again, or another one before it."""
    if last and last.killed and rng.random() < 0.5:
        return replace(last, killed=None)
    root, numbers = rng.choice(ROOTS), list(spec.versions) or [1]
    own = [number for number, one in spec.versions.items() if one.root == root]
    if root in spec.lost:
        return Command(root, "restore", (rng.choice(own),)) if own else draw(rng, spec, None)
    number = rng.choice([None, rng.choice(numbers)])
    newest = max((day for name, day in spec.nights if name == root), default=0)
    newest_of_all = max((one.until for one in spec.versions.values()), default=0)
    day = rng.choice([newest + 1, newest_of_all + 1, max(newest, 1)])
    kinds: dict[str, tuple[float, tuple[Any, ...]]] = {
        "night": (8, (day, rng.choice(["passed", "passed", "held"]))),
        "promote": (3, (number, rng.choice([None, "a holiday"]))),
        "rollback": (3, (number,)),
        "gc": (1.5, ()),
        "forget": (1, (rng.choice(USERS[:-1]),)),
        "push": (1.5, ()),
        "restore": (0.7 * bool(own and root not in spec.forgetting), (rng.choice(own or [0]),)),
        "delete": (0.3 * bool(spec.versions), ("model_version", str(rng.choice(numbers)))),
        "delete ": (0.5 * bool(spec.aliases), ("registered_model_alias", rng.choice([*spec.aliases, "champion"]))),
    }
    [name] = rng.choices(list(kinds), [weight for weight, _ in kinds.values()])
    is_killed = rng.random() < 0.4 and "delete" not in name
    return Command(root, name.strip(), kinds[name][1], rng.randint(1, WRITES[name]) if is_killed else None)


class Trace:
    """A world and its model, after some commands."""

    def __init__(self, world: World) -> None:
        self.world, self.spec, self.commands = world, Spec(world.is_server), list[Command]()

    def do(self, command: Command) -> None:
        """Give a command to both, and compare. Raises AssertionError with the trace."""
        self.commands.append(command)
        with ExitStack() as stack:
            for patch in shortened(self.world):
                stack.enter_context(patch)
            try:
                self._do(command)
            except Exception as error:
                raise AssertionError(
                    "\n".join([f"{type(error).__name__}: {error}", *map(str, self.commands)])
                ) from error

    def _do(self, command: Command) -> None:
        world, arguments, versions = self.world, (command.root, *command.arguments), self.world.read().versions
        self.spec.complete = {name: {one.number for one in versions if world.is_complete(name, one)} for name in ROOTS}
        said, expected, start = "", "", self.spec.copy()
        try:
            with killed_at(command.killed):
                getattr(world, command.name)(*arguments)
        except SurfError as error:
            said = f"{type(error).__name__}: {error}"
        except KilledError:
            said = "killed"
        try:
            getattr(self.spec, command.name)(*arguments)
        except RefusedError as error:
            expected = str(error)
        states = [self.spec]
        if said == "killed":
            states, expected = [self.spec, *reversed(self.spec.before), start], said
        if command.name == "gc":
            for state in states:
                state.nights = {place: run for place, run in state.nights.items() if world.read_night(*place)}
            if said.startswith(WRONG):
                assert not any(one.root == command.root for one in self.spec.versions.values())
                expected = WRONG  # it may be the wrong registry
        assert said.partition(":")[0] == expected, f"{said or 'no error'} where the model has {expected or 'none'}"
        self._choose(states)

    def _choose(self, states: list[Spec]) -> None:
        """Go on with the state that is so. Raises AssertionError if none is."""
        registered, differences = self.world.read(), []
        for state in states:
            difference = self._compare(state, registered)
            if difference is None:
                self.spec = replace(state, before=[])
                return
            differences.append(difference)
        raise AssertionError(differences[0] if len(states) == 1 else f"killed halfway: {differences}")

    def _compare(self, spec: Spec, registered: Registered) -> str | None:
        """What is not as in the model."""
        world, roots = self.world, {read_root_id(self.world.root(name)): name for name in ROOTS}
        if registered.aliases != spec.aliases:
            return f"aliases {registered.aliases}, not {spec.aliases}"
        found = {one.number: one for one in registered.versions}
        if found.keys() != spec.versions.keys():
            return f"versions {list(found)}, not {list(spec.versions)}"
        for number, version in spec.versions.items():
            wanted = vars(version) | {"served": version.served > 0}
            seen = read_version(found[number], roots.get(found[number].tags[ROOT_TAG], version.root))
            if " " in version.release:
                wanted["release"] = seen["release"]
            if any(seen[name] != wanted[name] for name in seen):
                return f"version {number}: {seen}, not {wanted}"
        for (name, day), run in spec.nights.items():
            if (night := world.read_night(name, day)) != (run.verdict, run.version):
                return f"night {day} of {name}: {night}, not {run}"
        for name in ROOTS:
            pushed, seen_pushed = spec.pushed.get(name), world.read_pushed(name)
            if (pushed and pushed[1]) != (seen_pushed and seen_pushed[1]):
                return f"store of {name}: {seen_pushed}, not {pushed}"
            if name in spec.lost:
                continue
            if (name in spec.forgetting) != world.root(name).forgetting.exists():
                return f"{name} is being forgotten in: {name not in spec.forgetting}"
            if (forgotten := world.read_forgotten(name)) != spec.forgotten[name]:
                return f"forgotten in {name}: {forgotten}, not {spec.forgotten[name]}"
            for number in list_needed(spec, name):
                if not world.is_complete(name, found.get(number)):
                    return f"version {number} of {name} is not complete"
        return None


def explore(world: World, seed: int, number: int, saved: Path) -> None:
    """Make `number` traces of one seed. Raises AssertionError with the trace after which world and model differ."""
    rng, trace = random.Random(seed), Trace(world)
    states = [(trace.spec.copy(), list[Command]())]
    world.save(saved / "0")
    for _ in range(number):
        [place] = rng.choices(range(len(states)), [len(commands) + 1 for _, commands in states])
        world.load(saved / str(place))
        trace.spec, trace.commands = states[place][0].copy(), [*states[place][1]]
        for _ in range(rng.randint(1, TAIL)):
            trace.do(draw(rng, trace.spec, trace.commands[-1] if trace.commands else None))
            if len(trace.commands) < LENGTH:
                world.save(saved / str(len(states)))
                states.append((trace.spec.copy(), [*trace.commands]))
