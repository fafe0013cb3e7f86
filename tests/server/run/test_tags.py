"""A run that is of the devices with a tag."""

import threading

import pytest
from flwr.app import Message, RecordDict

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol.error_replies import refusal
from bouquet.common.settings import load_settings
from bouquet.common.texts import tags_of
from bouquet.device.config import checked_tags
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.monitor.status import collect
from bouquet.monitor.status_table import columns
from bouquet.server.fleet.names import Names
from bouquet.server.record.reader import read_run
from bouquet.server.record.status import read_status, sentence
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds
from bouquet.strategies.base import nodes
from tests.helpers.waiting_for import eventually

SETTINGS = ["run.rounds=2", "data.clients=3", "model.hidden=[4]", "strategy.name=fedavg"]
WHY = "This run is of devices with one of the tags greenhouse, roof, and this one {}."


class Fleet:
    """Devices on a grid; what each was sent, and its tags, which its owner may change."""

    def __init__(self, folder, *changes, **tags):
        self.settings = load_settings(None, [*SETTINGS, *changes])
        self.folder, self.tags, self.got = folder, tags, {name: [] for name in tags}
        self.layout, self.initial = state_vector(initial_model(self.settings))
        self.handlers = {node: self.device(name) for node, name in enumerate(tags, start=1)}

    def device(self, name):
        trains = scripted_client(name, self.layout, lambda model, _: model + 1)

        def handle(message):
            kind = message.metadata.message_type
            self.got[name].append(kind)
            if kind == protocol.NOTICE:
                self.got[name].append(message.content[protocol.CONFIG][protocol.TEXT])
            if kind == protocol.IDENTIFY:
                about = {protocol.DEVICE_ID: name, protocol.RELEASE: "0.1.0"}
                about |= {protocol.REFUSES: "no noise"} if name == "refuses" else {}
                tags = {protocol.TAGS: self.tags[name]} if self.tags[name] else {}
                return protocol.reply(message, name, {}, None, about | tags)
            return protocol.reply(message, name, {}) if kind == protocol.NOTICE else trains(message)

        return handle

    def run(self):
        names = Names(self.folder, tags=frozenset(self.settings.server.tags))
        grid = InlineGrid(self.handlers)
        push = grid.push_messages

        def push_messages(messages):
            messages = list(messages)
            found = list(push(messages))
            if messages and messages[0].metadata.message_type == protocol.NOTICE:
                list(grid.pull_messages(found))  # nobody waits for the answer; here a message arrives by that
            return found

        grid.push_messages = push_messages
        start = protocol.to_record(self.layout, self.initial)
        run_rounds(grid, self.settings, start, RunRecord(self.folder), names=names)


CHOSEN = "server.tags=roof,greenhouse"


def test_who_has_one_of_the_tags_takes_part_and_the_others_are_told_why(tmp_path):
    fleet = Fleet(tmp_path, CHOSEN, "server.min_clients=1", a=["greenhouse", "new"], b=["window"], c=[])
    fleet.run()
    for line in read_run(tmp_path).rounds:
        assert (list(line["by_client"]), line["failed"], line["absent"], line["not_now"]) == (["a"], {}, [], {})
    assert read_run(tmp_path).summary["not_evaluated"] == {}
    assert fleet.got["b"] == [protocol.IDENTIFY, protocol.NOTICE, WHY.format("has the tags window")]
    assert fleet.got["c"] == [protocol.IDENTIFY, protocol.NOTICE, WHY.format("has no tag")]
    assert set(read_status(tmp_path)["others"]) == {"b", "c"}
    found = collect(tmp_path)
    assert [(d["name"], d["tags"], d["expected"]) for d in found["devices"]] == [
        ("a", ["greenhouse", "new"], True),
        ("b", ["window"], False),
        ("c", [], False),
    ]
    heads, *rows = columns(found, now=0.0)
    assert [(row[1], row[heads.index("tags")]) for row in rows] == [
        ("no", "greenhouse, new"),
        ("other tags", "window"),
        ("other tags", "–"),
    ]


def test_without_tags_all_take_part_and_nobody_is_asked_twice(tmp_path):
    fleet = Fleet(tmp_path, "server.min_clients=3", a=["greenhouse"], b=["window"], c=[])
    fleet.run()
    assert [len(line["by_client"]) for line in read_run(tmp_path).rounds] == [3, 3]
    assert [got.count(protocol.IDENTIFY) for got in fleet.got.values()] == [1, 1, 1]


def test_it_waits_for_so_many_with_a_tag_and_notices_one_that_its_owner_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "ASK_TAGS_AGAIN", 0.05)
    fleet = Fleet(tmp_path, CHOSEN, "server.min_clients=2", a=["greenhouse"], b=["window"])
    thread = threading.Thread(target=fleet.run, daemon=True)
    thread.start()
    eventually(lambda: set(read_status(tmp_path).get("others", ())) == {"b"}, "it waits for another")
    assert read_status(tmp_path)["state"] == "waiting"
    assert read_run(tmp_path).rounds == ()
    assert sentence(read_status(tmp_path)) == "1 of 2 devices are connected (a); without a tag of this run: b."
    fleet.tags["b"] = ["roof"]
    thread.join(120)
    assert [set(line["by_client"]) for line in read_run(tmp_path).rounds] == [{"a", "b"}] * 2
    assert fleet.got["b"].count(protocol.NOTICE) == 1


def test_who_does_not_say_its_tags_is_sent_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "IDENTIFY_TIMEOUT", 0.1)
    fleet = Fleet(tmp_path, CHOSEN, "server.min_clients=1", "server.straggler_grace=0.1", a=["roof"], b=["roof"])
    silent = fleet.got["b"]
    fleet.handlers[2] = lambda message: silent.append(message.metadata.message_type)
    fleet.run()
    assert "train" not in silent
    assert [(list(line["by_client"]), line["failed"]) for line in read_run(tmp_path).rounds] == [(["a"], {})] * 2


def silent_at_first(fleet, node, times):
    """The device of this node says nothing to so many questions, as while it trains."""
    answer, left = fleet.handlers[node], [times]

    def handle(message):
        if message.metadata.message_type == protocol.IDENTIFY and left[0] > 0:
            left[0] -= 1
            return None
        return answer(message)

    fleet.handlers[node] = handle


def test_who_was_too_busy_to_say_its_tags_is_asked_again_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "IDENTIFY_TIMEOUT", 0.1)
    monkeypatch.setattr(nodes, "SHORTEST_REST", 0.01)
    monkeypatch.setattr("bouquet.server.run.attendance.PAUSE_FOR_LOOK", 0.0)
    fleet = Fleet(tmp_path, CHOSEN, "server.min_clients=2", "server.straggler_grace=0.1", a=["roof"], b=["roof"])
    silent_at_first(fleet, 2, times=2)
    fleet.run()
    assert [set(line["by_client"]) for line in read_run(tmp_path).rounds] == [{"a", "b"}] * 2


def test_who_said_its_tags_before_a_restart_of_the_server_takes_part_though_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "IDENTIFY_TIMEOUT", 0.1)
    names = Names(tmp_path, resumed=False, tags=frozenset({"roof"}))
    about = {protocol.CLIENT_ID: "b", protocol.DEVICE_ID: "b", protocol.RELEASE: "0.1.0"}
    names(2, about | {protocol.TAGS: ["roof"]})
    names(3, about | {protocol.CLIENT_ID: "c", protocol.DEVICE_ID: "c", protocol.TAGS: ["window"]})
    assert [names.takes(name) for name in ("b", "c", "who has not spoken")] == [True, False, True]
    found = nodes.Nodes(tags=names.tags, inside=set(filter(names.has_tag, [2, 3, 4])))
    found.learn([2, 3, 4], [], names)
    assert set(found.others([2, 3, 4])) == {3, 4}


def test_who_has_lost_its_tag_is_left_out_also_where_it_is_too_busy_to_say_it_again():
    InlineGrid({})  # gives Flower's Message its sender
    question = Message(RecordDict(), dst_node_id=1, message_type=protocol.IDENTIFY)
    found = nodes.Nodes(tags=frozenset({"roof"}))
    for tag, out in (("roof", {}), ("cellar", {1: WHY.replace("greenhouse, ", "").format("has the tags cellar")})):
        found.learn([1], [protocol.reply(question, "a", {}, config={protocol.TAGS: [tag]})], None)
        assert found.others([1]) == out
    found.learn([1], [refusal(question, "MemoryError on the device.")], None)
    assert found.others([1]) == {1: nodes.UNKNOWN_TAGS}


def test_who_says_no_tags_is_asked_ever_more_rarely_and_why_is_one_line(monkeypatch):
    monkeypatch.setattr(nodes.time, "monotonic", lambda: 0.0)
    found = nodes.Nodes(tags=frozenset({"roof"}))
    waits = []
    for _ in range(12):
        found.learn([1], [], None)
        waits.append(found.outside[1].ask_at)
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0]
    assert waits[-1] == nodes.ASK_TAGS_AGAIN


def test_a_run_has_few_tags(tmp_path):
    with pytest.raises(BouquetError, match=r"server\.tags"):
        load_settings(None, [f"server.tags={','.join(f't{k}' for k in range(21))}"])


@pytest.mark.parametrize("tag", ["", "two words", "a" * 41, "a,b", "a\nb", "x\u202ey"])
def test_what_is_no_tag_is_refused_at_either_end(tag):
    with pytest.raises(BouquetError, match="a tag has 1 to 40 letters, digits"):
        checked_tags([tag])
    if tag and "," not in tag:
        with pytest.raises(BouquetError, match=r"Setting server.tags.*is no tag: 1 to 40 letters, digits"):
            load_settings(None, [f"server.tags={[tag]}".replace("'", '"')])
    assert tags_of([tag, "Gewächshaus-2", 7]) == {"Gewächshaus-2"}


def test_a_device_has_few_tags_each_once():
    assert checked_tags(["b", "a", "b"]) == ["b", "a"]
    with pytest.raises(BouquetError, match="a device has 20 tags at most"):
        checked_tags([f"t{k}" for k in range(21)])
    assert len(tags_of([f"t{k}" for k in range(100)])) == 20
    assert tags_of("roof") == tags_of(None) == frozenset()


def test_one_of_other_tags_that_refuses_the_run_has_not_failed(tmp_path):
    fleet = Fleet(tmp_path, CHOSEN, "server.min_clients=1", a=["roof"], refuses=["window"])
    fleet.run()
    assert [line["failed"] for line in read_run(tmp_path).rounds] == [{}, {}]
