"""Which faults a seed stands for: what is done to whom, after which event, and for how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

STRATEGIES = ("dc-pfl", "fedtsdp", "fedac", "gradient-loss", "fesem")
DEVICES = ("ada", "bob", "cleo", "dan")
ROUNDS = 5
ALONE_EVERY = 10  # one schedule in so many is of a server that ends with its run, and of devices of its own

# What happens, and to whom. A device is its agent, the trainer below it, and the task that the trainer has forked.
TARGETS = ("server", "device", "agent", "trainer", "task")
RESTARTS = ("server", "device")
OTHERS = ("cut", "loss", "slow", "full-server", "full-device")
DAMAGES = ("checkpoint", "state", "prepared", "tasks", "service")
# In the middle of a model's way to a device, or of its reply's way back: the link is cut, the device's power fails (it
# sends nothing more, and not that), its agent is killed, or the server.
TRANSFERS = tuple(f"{way} {what}" for way in ("down", "up") for what in ("cut", "power", "agent", "server"))
KINDS = (
    *(f"kill {what}" for what in TARGETS),
    *(f"stop {what}" for what in TARGETS),
    *(f"restart {what}" for what in RESTARTS),
    *OTHERS,
    *(f"damage {what}" for what in DAMAGES),
    *TRANSFERS,
)
# Those of the suite: each kind of fault and each strategy, the cheap ones where there was a choice, and for one fleet.
FIXED = (22, 27, 37, 45, 84, 87, 93, 101, 116, 126, 138, 152, 191)
NEEDS_ROOT = frozenset((*OTHERS, *TRANSFERS))
ON_THE_SERVER = ("kill server", "stop server", "restart server", "full-server", "damage checkpoint", "damage service")
# A round has begun; a device works on a task of it, or has a reply that is not yet at the server; its line is written,
# and its checkpoint follows; the last test.
EVENTS = ("round", "task", "reply", "line", "testing")


@dataclass(frozen=True)
class Fault:
    """One fault: ``seconds`` after ``event`` of ``round`` it begins, and it lasts ``pause`` seconds."""

    kind: str
    device: str  # of the faults that hit one device; "" otherwise
    event: str
    round: int
    seconds: float
    pause: float
    seed: int  # of what else is drawn: which byte, how much room is left

    @property
    def may_fail(self) -> bool:
        """Whether the run may end with it, clearly, and go on when its server is started again."""
        return self.kind == "full-server"

    @property
    def loses_state(self) -> bool:
        """Whether a device may come back without the layers of its last round."""
        return self.kind == "damage state"

    def __str__(self) -> str:
        whom = f" {self.device}" if self.device else ""
        return f"{self.kind}{whom} {self.seconds:g} s after {self.event} {self.round} for {self.pause:g} s"


@dataclass(frozen=True)
class Schedule:
    """What a seed stands for."""

    seed: int
    strategy: str
    alone: bool
    faults: tuple[Fault, ...]


def draw(seed: int) -> Schedule:
    """The schedule of a seed: each kind of fault comes with each strategy in turn, and up to two drawn ones beside."""
    generator = random.Random(f"faults {seed}")
    first = KINDS[seed // len(STRATEGIES) % len(KINDS)]
    kinds = [first, *(generator.choice(KINDS) for _ in range(generator.choice((0, 0, 1, 1, 2))))]
    if kinds.count("damage checkpoint") > 1:  # both that are kept: no run bears that
        kinds = [first]
    faults = tuple(_fault(kind, generator) for kind in kinds)
    return Schedule(seed, STRATEGIES[seed % len(STRATEGIES)], seed % ALONE_EVERY == ALONE_EVERY - 1, faults)


def _fault(kind: str, generator: random.Random) -> Fault:
    event = generator.choice(EVENTS)
    if kind.endswith(("trainer", "task")):
        event = "task"
    round_ = generator.randint(1, ROUNDS)
    if kind in TRANSFERS:
        event, round_ = kind.split()[0], generator.randint(1, ROUNDS - 1)
    if kind == "damage checkpoint":
        event, round_ = generator.choice(("round", "task")), generator.randint(3, ROUNDS)
    if event == "testing":
        round_ = ROUNDS
    # The checkpoint is written some milliseconds after the line.
    seconds = generator.uniform(0, 0.03) if event == "line" else generator.choice((0.0, generator.uniform(0, 1.5)))
    device = "" if kind in ON_THE_SERVER else generator.choice(DEVICES)
    pause = generator.choice((0.0, 1.0, generator.uniform(0, 8)))
    if kind.startswith(("stop", *OTHERS)) or kind.endswith("cut"):
        pause = max(1.0, pause)
    return Fault(kind, device, event, round_, round(seconds, 3), round(pause, 2), generator.randrange(2**31))
