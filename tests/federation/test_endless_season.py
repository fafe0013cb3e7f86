"""A season over gRPC: a run without an end that rests, a late device, a night, a restart, a bad model, going back."""

import json
import os
import signal

import numpy as np
import pytest

from bouquet.client.data.new_samples import ROUNDS
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.server.record.status import read_status
from tests.helpers.two_classes import settings_of

pytestmark = pytest.mark.federation

MORE = """
[train]
local_epochs = 1

[personal]
serve = "own"

[server]
min_clients = 2
straggler_grace = 1200
round_timeout = 1200
"""
SETTINGS = settings_of("run", '"endless"', hidden=16, more=MORE)


class Season:
    """A server and its devices; ``lines`` are those of the record."""

    def __init__(self, commands):
        self.commands, self.folder, self.clients = commands, commands.folder / "runs" / "run", {}
        (commands.folder / "run.toml").write_text(SETTINGS)
        self.serve()

    def serve(self, *options):
        self.server = self.commands.server("run.toml", "--insecure", *options)

    def holds(self, name, samples, opposite=False):
        """The device has so many samples from now on, the first of which are those that it had."""
        generator = np.random.default_rng(sum(name.encode()))
        y = np.arange(samples) % 2
        x = generator.normal(size=(samples, 1, 2, 2)) + np.where(y == 1, 1.5, -1.5)[:, None, None, None]
        folder = self.commands.folder / f"data-{name}"
        folder.mkdir(exist_ok=True)
        np.savez(folder / "new.npz", x=x.astype(np.float32), y=1 - y if opposite else y)
        os.replace(folder / "new.npz", folder / "data.npz")

    def start(self, *names):
        for name in names:
            where = ("--server", f"127.0.0.1:{self.commands.port}", "--insecure", "--state-dir", f"s-{name}")
            self.clients[name] = self.commands.start(name, "client", *where, "--data", f"data-{name}", "--name", name)

    def end(self, *names):
        for name in names:
            self.clients[name].terminate()
            self.clients[name].wait()

    @property
    def lines(self):
        path = self.folder / "rounds.jsonl"
        found = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in found if line.endswith("}")]

    def rests(self, *names):
        """Wait until these, and nobody else who is there, lack new samples; the rounds that are behind."""

        def all_rest():
            status = read_status(self.folder)
            said = {name: found["reason"] for name, found in status.get("not_now", {}).items()}
            return status.get("state") == "waiting" and {*said} == {*names} and "0 of 10 new" in "".join(said.values())

        self.commands.wait_for(all_rest)
        return len(self.lines)

    def in_use(self, name):
        return DeviceState(FolderStore(self.commands.folder / f"s-{name}")).in_use().facts["round"]


def test_a_season(commands):
    season = Season(commands)
    for name in ("garden", "porch", "late"):
        season.holds(name, 60)
    season.start("garden", "porch")
    assert season.rests("garden", "porch") == ROUNDS
    assert season.lines[-1]["by_client"]["garden"]["accuracy"] > 0.9

    season.start("late")  # works, but alone: the round begins when a second one has something new
    commands.wait_for(lambda: "late" in read_status(season.folder)["connected"])
    season.holds("garden", 70)
    assert season.rests("garden", "porch", "late") == 2 * ROUNDS
    first = season.lines[ROUNDS]
    assert ({*first["by_client"]}, {*first["not_now"]}) == ({"garden", "late"}, {"porch"})
    assert first["by_client"]["late"]["accuracy"] > 0.9  # with the model that it was sent

    season.end("garden", "porch", "late")  # a night, in which the server's power fails
    commands.wait_for(lambda: not read_status(season.folder)["connected"])
    assert season.server.poll() is None
    season.server.send_signal(signal.SIGKILL)
    season.server.wait()
    season.serve("--resume")
    season.start("garden", "porch", "late")
    assert season.rests("garden", "porch", "late") == 2 * ROUNDS  # the morning has nothing new

    season.holds("bad", 2000, opposite=True)  # outweighs the others, whose models are then bad
    season.start("bad")
    season.holds("garden", 80)
    season.rests("garden", "porch", "late", "bad")
    worse = [line["by_client"]["garden"] for line in season.lines[2 * ROUNDS :]]
    assert worse[-1]["accuracy_trained"] < 0.5, worse
    assert worse[-1]["in_use"] == season.in_use("garden") <= 2 * ROUNDS + 1
    assert f"serves its model of round {season.in_use('garden')}, which stays in use" in commands.log("garden")

    good, rounds = f"{season.in_use('garden')}.0", len(season.lines)  # the owner goes back to what they have in use
    commands.run("models", "models", "runs/run")
    in_use = next(line for line in commands.log("models").splitlines() if line.split()[0] == good)
    assert in_use.partition("in use on ")[2].startswith("garden")
    season.end("bad")
    commands.run("rollback", "rollback", "runs/run", "--cluster", "0", "--to", good)
    season.holds("garden", 90)
    season.holds("porch", 70)
    commands.wait_for(lambda: len(season.lines) > rounds, 400)
    again = season.lines[rounds]
    assert f"Cluster 0 has its version {good} again." in again["warnings"]
    assert again["by_client"]["garden"]["accuracy"] > 0.9
    assert "in_use" not in again["by_client"]["garden"]

    commands.run("stop", "stop", "runs/run")
    commands.wait_for_end(season.server)
    assert read_status(season.folder)["state"] == "stopped"
    assert "accuracy" in commands.log("server")
