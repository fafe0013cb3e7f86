"""A budget of work: a slow device does fewer steps in a round, so that nobody waits for it, and counts as others do.

The server learns the seconds that each device takes for a step, and has each do as many as fit the time in which the
median device does all of its epochs. Times are learned, steps are what is asked for: a run is what its steps were.

An update of few steps is a small one, and a mean of such would be of the fast devices' data. FedNova (Wang, Liu, Liang,
Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization. NeurIPS 2020, Eq. 7)
takes each update over its own number of steps, times the mean number. A step counts as 1 here, also with momentum, of
which few steps gather little: to count that, as the paper does, ended lower on digits. So did the mean number of a
cluster in the place of all devices': slow devices with a cluster of their own would stay behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from bouquet.common.protocol import LOCAL_STEPS, TRAIN_SECONDS, ClientReply, Instruction
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.mathematics.robust import capped

FIRST_STEPS = 2  # of a device whose speed is not known: the slowest shall not hold up the first round
FASTEST = 1e-6  # seconds of a step, whatever a device says
MOST_STEPS = 10  # times the median number: what a device claims to hold sets its steps, and they would scale all others


@dataclass
class WorkBudget:
    """Steps for each client, from what is known of it; ``epochs`` and ``batch_size`` are those of local training.

    A fast device does all of its epochs, and no more.
    """

    epochs: int
    batch_size: int
    seconds: dict[str, float] = field(default_factory=dict)  # client → of a step, a mean in which the last counts half
    whole: dict[str, int] = field(default_factory=dict)  # client → steps of all its epochs
    steps: dict[str, int] = field(default_factory=dict)  # client → those that it was asked for last

    def ask(self, instructions: Mapping[str, Instruction]) -> dict[str, Instruction]:
        """The instructions, each with its client's number of steps."""
        times = [seconds * self.whole[client] for client, seconds in self.seconds.items()]
        time = median(times) if times else 0.0
        for client in instructions:
            self.steps[client] = FIRST_STEPS
            if client in self.seconds:
                self.steps[client] = min(self.whole[client], max(1, int(time / self.seconds[client] + 1e-9)))
        return {
            client: replace(one, config={**one.config, LOCAL_STEPS: self.steps[client]})
            for client, one in instructions.items()
        }

    def note(self, reply: ClientReply) -> None:
        """Learn from a reply how fast its client is, and how much it has to do."""
        client, took = reply.client, reply.metrics.get(TRAIN_SECONDS, 0.0)
        if took <= 0 or client not in self.steps:
            return
        self.whole[client] = self.epochs * -(-reply.num_examples // self.batch_size)
        self.steps[client] = min(self.steps[client], self.whole[client])
        now = max(took / self.steps[client], FASTEST)
        self.seconds[client] = (self.seconds.get(client, now) + now) / 2

    def normalised(self, replies: Replies, records: Mapping[str, str]) -> Replies:
        """The replies as if all had done the mean number of steps; ``records`` as in `Replies.each_update`.

        Before any protection looks at norms: what counts is limited, not what it was made of.
        """
        if not self.steps:
            return replies
        mean = float(capped(np.array([*self.steps.values()]), MOST_STEPS).mean())
        return replies.scaled([mean / self.steps.get(client, mean) for client in replies.clients], records)
