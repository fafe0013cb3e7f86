"""A server whose devices' owners say when they work: it waits for them, and no round fails for it."""

import json
import threading

from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol.error_replies import NotNow, refusal
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.server.fleet.names import Names
from bouquet.server.record.reader import read_run
from bouquet.server.record.status import read_status
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds
from tests.helpers.waiting_for import eventually

SETTINGS = [
    "run.rounds=3",
    "data.clients=2",
    "model.hidden=[4]",
    "strategy.name=fedavg",
    "server.min_clients=2",
    "server.wait_for_clients=0.1",
]
WHY = "outside its hours; again after 22:00"


def resting(name, trains, may_work, when_asked):
    """A device that works while ``may_work`` is set; ``when_asked``: it says so when it is asked who it is."""

    def handle(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            rests = when_asked and not may_work.is_set()
            told = {protocol.NOT_NOW: WHY, protocol.AGAIN_IN: 1.0} if rests else {}
            return protocol.reply(message, name, {}, None, {protocol.CONDITIONS: True, **told})
        return trains(message) if may_work.is_set() else refusal(message, NotNow(WHY, 1.0))

    return handle


def run_in_thread(tmp_path, when_asked):
    settings = load_settings(None, SETTINGS)
    layout, initial = state_vector(initial_model(settings))
    may_work, folder = threading.Event(), tmp_path / "run"
    handlers = {}
    for node, name in ((1, "a"), (2, "b")):
        trains = scripted_client(name, layout, lambda model, _: model + 1)
        handlers[node] = resting(name, trains, may_work, when_asked)
    names = Names(folder, nodes={1: "a", 2: "b"})
    arguments = (InlineGrid(handlers), settings, protocol.to_record(layout, initial), RunRecord(folder))
    thread = threading.Thread(target=run_rounds, args=arguments, kwargs={"names": names}, daemon=True)
    thread.start()
    return thread, may_work, folder


def test_nobody_may_work_and_the_round_is_moved_to_when_they_can(tmp_path):
    """Longer than it waits for devices that are not there, and with no round that failed."""
    thread, may_work, folder = run_in_thread(tmp_path, when_asked=True)
    eventually(lambda: set(read_status(folder).get("not_now", ())) == {"a", "b"}, "both are said to rest")
    assert read_status(folder)["state"] == "waiting"
    assert read_status(folder)["not_now"]["a"]["reason"] == WHY
    assert RunRecord(folder).rounds() == []
    may_work.set()
    thread.join(120)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["rounds"], summary["not_evaluated"]) == (3, {})
    lines = RunRecord(folder).rounds()
    assert [(line["replies"], line["failures"], line["not_now"]) for line in lines] == [(2, 0, {})] * 3


def test_all_stop_in_the_round_in_hand_and_it_is_begun_again(tmp_path):
    thread, may_work, folder = run_in_thread(tmp_path, when_asked=False)
    eventually(lambda: set(read_status(folder).get("not_now", ())) == {"a", "b"}, "both stopped in round 1")
    may_work.set()
    thread.join(120)
    assert [(line["round"], line["replies"], line["failed"]) for line in read_run(folder).rounds] == [
        (1, 2, {}),
        (2, 2, {}),
        (3, 2, {}),
    ]
