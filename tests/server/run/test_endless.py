"""A run without an end goes on when nobody gives a usable reply any more: devices that are broken do not end it."""

import threading

import pytest

from bouquet.common import protocol
from bouquet.common.errors import RunStopped
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol.error_replies import refusal
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.server.fleet.names import Names
from bouquet.server.record.status import read_status
from bouquet.server.record.writer import RunRecord
from bouquet.server.run import health
from bouquet.server.run.loop import run_rounds
from bouquet.server.run.stop import ask_to_stop
from tests.helpers.waiting_for import eventually

SETTINGS = ["run.rounds=endless", "model.hidden=[4]", "strategy.name=fedavg", "server.min_clients=1"]


@pytest.mark.parametrize(("pause", "mended"), [(0.01, True), (1e6, False)], ids=["it is mended", "another one works"])
def test_a_device_that_is_broken_does_not_end_it(tmp_path, monkeypatch, pause, mended):
    monkeypatch.setattr(health, "SHORTEST_PAUSE", pause)
    monkeypatch.setattr(health, "LONGEST_PAUSE", pause)
    settings = load_settings(None, SETTINGS)
    layout, initial = state_vector(initial_model(settings))
    is_well, may_work, folder, ended = threading.Event(), threading.Event(), tmp_path / "run", []
    trains = {name: scripted_client(name, layout, lambda model, _: model + 1) for name in ("broken", "other")}

    def broken(message):
        if message.metadata.message_type == "train" and RunRecord(folder).rounds() and not is_well.is_set():
            return refusal(message, "its card is read-only")
        return trains["broken"](message)

    def other(message):
        if message.metadata.message_type != protocol.IDENTIFY:
            return trains["other"](message)
        told = {} if may_work.is_set() else {protocol.NOT_NOW: "nothing new", protocol.AGAIN_IN: 0.0}
        return protocol.reply(message, "other", {}, None, {protocol.CONDITIONS: True, **told})

    def run():
        with pytest.raises(RunStopped):
            run_rounds(grid, settings, protocol.to_record(layout, initial), RunRecord(folder), names=names)
        ended.append(True)

    grid, names = InlineGrid({1: broken, 2: other}), Names(folder, nodes={1: "broken", 2: "other"})
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: len(RunRecord(folder).rounds()) >= 4, "three rounds failed")
    if not mended:
        eventually(lambda: read_status(folder)["state"] == "waiting", "it waits")
    (is_well if mended else may_work).set()
    eventually(lambda: RunRecord(folder).rounds()[-1]["replies"] == 1, "a round has a reply again")
    ask_to_stop(folder)
    thread.join(120)
    assert ended
    assert [line["replies"] for line in RunRecord(folder).rounds()][:4] == [1, 0, 0, 0]
