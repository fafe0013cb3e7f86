"""A table of four cells, and a runner that makes their runs up."""

from functools import partial

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


class FakeCell:
    """In the place of a process: has done its work when it begins."""

    def __init__(self, work, ended=lambda: True):
        self.ended, self.error = ended, ""
        try:
            work()
        except Exception as error:
            self.error = str(error)

    @property
    def has_ended(self):
        return self.ended()

    def failure(self):
        return self.error

    def send(self, number):
        pass

    def wait(self, seconds):
        pass


class FakeRunner:
    """Writes made-up runs. ``before`` is called with a cell's name first, and may raise; ``ended``: when they are."""

    def __init__(self, write, before=lambda name: None, ended=lambda runner: True):
        self.write, self.before, self.ended = write, before, ended
        self.ran = []

    def __call__(self, settings, out):
        self.ran.append(out.name)
        return FakeCell(partial(self.work, settings, out), partial(self.ended, self))

    def work(self, settings, out):
        self.before(out.name)
        self.make(settings, out)

    def make(self, settings, out):
        best = {"fesem": 0.9, "fedavg": 0.6, "standalone": 0.7}[settings.strategy.name] + 0.02 * settings.run.seed
        self.write(out, settings, clients=4, groups=2, rounds=settings.run.rounds, accuracy=best)
