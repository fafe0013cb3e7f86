"""A table of four cells, and a runner that makes their runs up."""

import threading

GRID = """
name = "small"
seeds = [0, 1]
metrics = ["accuracy_macro", "bytes_up", "rounds_to_accuracy_0.8"]
[base.run]
rounds = 3
[base.simulation]
engine = "inline"
[[strategy]]
label = "FeSEM"
name = "fesem"
[[strategy]]
label = "Fed|Avg"
name = "fedavg"
[[data]]
label = "digits"
partition = "rotated"
clients = 4
groups = 2
"""


class FakeRunner:
    """Writes a made-up run at once; ``before`` is called with the cell's name first, and may raise."""

    def __init__(self, write, before=lambda name: None):
        self.write, self.before = write, before
        self.ran, self.resumed, self.stopped = [], [], threading.Event()
        self.lock = threading.Lock()

    def __call__(self, settings, out, *, resume=False):
        with self.lock:
            self.ran.append(out.name)
            self.resumed += [out.name] if resume else []
        self.before(out.name)
        best = {"fesem": 0.9, "fedavg": 0.6, "standalone": 0.7}[settings.strategy.name] + 0.02 * settings.run.seed
        self.write(out, settings, clients=4, groups=2, rounds=settings.run.rounds, accuracy=best)

    def stop(self):
        self.stopped.set()
