"""DC-PFL on scripted devices whose models are points: training takes one half of the way to a device's own goal.

The layer ``first`` (six numbers) has almost the same goal everywhere, so it becomes slow; ``last`` (two numbers) tells
the groups apart.
"""

import json

import numpy as np

from bouquet.common import protocol
from bouquet.common.protocol import ARRAYS
from bouquet.strategies.dcpfl import LOSS_NEW, LOSS_OLD, NEW, TAKE, WHOLE_ROUND
from bouquet.strategies.dcpfl.strategy import DCPFL

QUICK = {"discrepancy_rounds": 2, "loss_window": 1, "observe_rounds": 1}


class Device:
    """A device with a memory; ``seen`` holds what it was sent, ``answers`` what it says instead."""

    def __init__(self, name, layout, last, first=0.0):
        self.name, self.layout = name, layout
        self.goal = np.array([first] * 6 + list(last), dtype=np.float32)
        self.own, self.whole_round, self.tried = None, None, {}
        self.seen = {}
        self.trial_losses = None
        self.silent_in = set()

    def __call__(self, message):
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, self.name, {})
        received = protocol.read_instruction(message, self.layout)
        self.seen.setdefault(received.round, []).append(received)
        if (received.round, len(self.seen[received.round])) in self.silent_in:
            return None
        if TAKE in received.config or NEW in received.models:
            return self.trial(message, received)
        metrics = {protocol.NUM_EXAMPLES: 10, protocol.STATE_LOST: 0}
        start = self.start(received)
        if start is None:
            metrics[protocol.STATE_LOST] = 1
            return self.reply(message, received, np.zeros(8), metrics)
        self.own = self.trained(start)
        if self.is_whole(received):
            self.whole_round = received.round
        return self.reply(message, received, self.own, {**metrics, protocol.LOSS: self.loss(start)})

    def trial(self, message, received):
        if TAKE in received.config:
            self.own, self.whole_round = self.tried[received.config[TAKE]], received.round
            return self.reply(
                message, received, self.own, {protocol.NUM_EXAMPLES: 10, protocol.LOSS: self.loss(self.own)}
            )
        assert received.upload == ()
        self.tried = {False: self.trained(received.models[ARRAYS].vector)}
        self.tried[True] = self.trained(received.models[NEW].vector)
        losses = self.trial_losses or (self.loss(self.tried[False]), self.loss(self.tried[True]))
        reported = {LOSS_OLD: losses[0], LOSS_NEW: losses[1]}
        metrics = {protocol.NUM_EXAMPLES: 10, **{name: loss for name, loss in reported.items() if loss is not None}}
        return protocol.reply(message, self.name, metrics)

    def start(self, received):
        payload = received.models.get(ARRAYS)
        if self.is_whole(received):
            return payload.vector
        expected = received.config.get(WHOLE_ROUND)
        if self.own is None or expected not in (None, self.whole_round):
            return None
        start = self.own.copy()
        if payload is not None:
            columns = self.layout.columns(payload.layers)
            start[columns] = payload.vector[columns]
        return start

    def is_whole(self, received):
        return ARRAYS in received.models and received.models[ARRAYS].layers == self.layout.layers

    def trained(self, start):
        return (start + 0.5 * (self.goal - start)).astype(np.float32)

    def loss(self, model):
        return float(((model - self.goal) ** 2).mean())

    def reply(self, message, received, vector, metrics):
        record = (
            protocol.to_record(self.layout, vector.astype(np.float32), received.upload) if received.upload else None
        )
        return protocol.reply(message, self.name, metrics, record)

    def sent(self, round_, message=0):
        """The layers in the message of a round, and those it asked for."""
        if round_ not in self.seen:
            return None
        received = self.seen[round_][message]
        payload = received.models.get(ARRAYS)
        return () if payload is None else payload.layers, received.upload


LASTS = {"a": (4, 0.2), "b": (4, -0.2), "c": (-4, 0.4), "d": (-4, -0.4)}
BOTH, FAST = ("first", "last"), ("last",)


def strategy_of(gamma_step=0.5, retry_rounds=2, **options):
    strategy = DCPFL(**{**QUICK, "identify": True, **options})
    strategy.gamma_step, strategy.retry_rounds = gamma_step, retry_rounds
    return strategy


def trial_rounds(strategy, play, grid, rounds):
    """Play round by round; the record of each."""
    records = {}
    for round_ in rounds:
        play(strategy, grid, range(round_, round_ + 1))
        records[round_] = json.loads(json.dumps(strategy.record(strategy.state), allow_nan=False))
    return records
