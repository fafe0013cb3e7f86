"""A server that outlives its runs, over gRPC: the next run, and the end of one between two rounds."""

import json

import pytest

from tests.helpers.two_classes import settings_of

pytestmark = pytest.mark.federation


def test_one_run_after_another_and_the_end_of_one_after_the_round_in_hand(commands, own_data):
    for name, rounds, hidden in (("first", 1, 4), ("second", 500, 6)):
        (commands.folder / f"{name}.toml").write_text(settings_of(name, rounds, hidden=hidden))
    server = commands.server("first.toml", "--insecure", "--keep-waiting")
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure")
    for name, tag in (("a", "roof"), ("b", "greenhouse")):
        own = ("--data", str(own_data(name, False)), "--state-dir", f"state-{name}", "--name", name, "--tag", tag)
        commands.start(name, "client", *where, *own)
    waiting = "Waiting for the next run"
    commands.wait_for(lambda: waiting in commands.log("server"))
    assert json.loads((commands.folder / "runs" / "first" / "summary.json").read_text())["rounds"] == 1

    # The next run, on the devices that are there: they are not started again.
    commands.run("again", "run", "first.toml", code=2)
    assert "runs/first holds a run already" in commands.log("again")
    commands.run("next", "run", "second.toml")
    second = commands.folder / "runs" / "second"
    commands.wait_for(lambda: commands.rounds("runs/second") >= 1)
    commands.run("status", "status")
    assert "second: training, round" in commands.log("status")

    commands.run("stop", "stop")
    commands.wait_for(lambda: commands.log("server").count(waiting) == 2)
    assert "as asked; --resume goes on." in commands.log("server")
    status = json.loads((second / "status.json").read_text())
    assert (status["state"], status["round"]) == ("stopped", commands.rounds("runs/second"))
    assert (second / "report.html").exists()
    assert not (second / "summary.json").exists()
    assert server.poll() is None
    commands.run("none", "stop", "runs/second", code=2)
    assert "No run is going on in runs/second: it is stopped." in commands.log("none")
    for name in ("a", "b"):
        assert commands.log(name).count("Connected.") == 1
        assert "Round 1 of 1 begins (first)." in commands.log(name)
        assert "Round 1 of 500 begins (second)." in commands.log(name)

    # A run of the devices with a tag, by which the other one is neither missing nor a failure.
    tagged = '\n[server]\nmin_clients = 1\ntags = ["greenhouse"]\n'
    (commands.folder / "third.toml").write_text(settings_of("third", 2) + tagged)
    commands.run("tags", "run", "third.toml")
    third = commands.folder / "runs" / "third"
    commands.wait_for((third / "summary.json").exists)
    for text in (third / "rounds.jsonl").read_text().splitlines():
        line = json.loads(text)
        assert ([*line["by_client"]], line["failed"], line["absent"], line["not_now"]) == (["b"], {}, [], {})
    why = "This run is of devices with one of the tags greenhouse, and this one has the tags roof."
    commands.wait_for(lambda: why in commands.log("a"))
    assert "Round 1 of 2 begins (third)." not in commands.log("a")
    commands.run("tagged", "status", "runs/third")
    rows = [line.split() for line in commands.log("tagged").splitlines()]
    tags = {row[0]: {"roof", "greenhouse"} & {*row} for row in rows if row and row[0] in ("a", "b")}
    assert tags == {"a": {"roof"}, "b": {"greenhouse"}}
    assert "other tags" in commands.log("tagged")
