"""A server and clients started by hand as docs/deploy-server.md says, over gRPC with mutual TLS."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.model.build import initial_model
from bouquet.common.settings import load_settings
from bouquet.keys.store import add_device, init_keys, remove_device, renew_device
from bouquet.server.service.certificates import Certificates
from bouquet.server.service.running import serving
from tests.helpers.two_classes import settings_of

pytestmark = pytest.mark.federation

SETTINGS = settings_of(
    "by-hand",
    100_000,  # so many as it is told when it goes on
    hidden=8,
    strategy="fedper",
    more="""
[train]
local_epochs = 5
learning_rate_decay = 0.001  # what a layer is after round 1 it still is at the end, unless it was lost

[server]
min_clients = 4
round_timeout = 1200
straggler_grace = 1200
""",
)


def test_who_does_not_get_in_and_why(commands, own_data, monkeypatch):
    monkeypatch.setattr("bouquet.server.service.service.PING_SECONDS", 600.0)  # in which a device answers that is there
    keys = commands.keys("pi", "stranger")
    init_keys(commands.folder / "other", ["127.0.0.1"])
    add_device(commands.folder / "other", "pi")
    for name in ("pi", "stranger"):
        (keys / "registered" / f"{name}.crt").rename(commands.folder / f"{name}.crt")
    said = []
    address = f"127.0.0.1:{commands.port}"
    files = (keys / "ca.crt", keys / "server.crt", keys / "server.key")
    with serving(
        address,
        commands.folder / "service",
        certificates=Certificates(*files),
        registered=keys / "registered",
        report=said.append,
    ):
        same = ("client", "--server", address, "--data", str(own_data("pi", False)))
        at_once = {
            "registered": ("--keys", "devices/stranger"),
            "certificate": ("--keys", "other/devices/pi"),
            "TLS, and this device was told not to": ("--insecure",),
        }
        for number, (why, how) in enumerate(at_once.items()):
            process = commands.start(f"out-{number}", *same, *how, "--wait", "0", "--state-dir", f"state-{number}")
            commands.wait_for_end(process, code=2)
            assert why in commands.log(f"out-{number}"), commands.log(f"out-{number}")

        # A device that was switched on before it was registered; one that is taken away while it is connected.
        commands.client("pi", "--data", str(commands.folder / "data-pi"))
        commands.wait_for(lambda: "does not admit this device" in commands.log("pi"))
        (commands.folder / "pi.crt").rename(keys / "registered" / "pi.crt")
        commands.wait_for(lambda: "Connected." in commands.log("pi"))
        # A second client on its state folder, and the copy of its card elsewhere.
        commands.run("second", *same, "--keys", "devices/pi", "--state-dir", "state-pi", code=2)
        assert "state-pi is in use by process" in commands.log("second")
        copy = commands.start("copy", *same, "--keys", "devices/pi", "--state-dir", "state-copy")
        commands.wait_for(lambda: "takes another device for this one" in commands.log("copy"))
        commands.wait_for(lambda: "two devices show its certificate" in commands.log("pi"))
        copy.terminate()  # else it may be the first to come when the device is registered again
        copy.wait()
        # A renewed certificate comes by itself; a file that is none disturbs nobody.
        renew_device(keys, "pi")
        commands.wait_for(lambda: "The server sent a new certificate for this device" in commands.log("pi"))
        (keys / "registered" / "torn.crt").write_text("-----BEGIN CERTIFICATE-----")
        commands.wait_for(lambda: any("torn.crt" in line for line in said))
        (keys / "registered" / "torn.crt").unlink()
        shutil.copy(keys / "registered" / "pi.crt", commands.folder / "renewed.crt")
        remove_device(keys, "pi")
        commands.wait_for(lambda: "or was removed there" in commands.log("pi").partition("Connected.")[2])
        assert commands.log("pi").count("Connected.") == 1
        (commands.folder / "renewed.crt").replace(keys / "registered" / "pi.crt")
        commands.wait_for(lambda: commands.log("pi").count("Connected.") == 2)
        assert "Traceback" not in commands.log("pi")
    lines = [line for line in said if "pi" in line]
    assert (lines[0].partition(":")[0], "removed pi: it is shut out" in lines) == ("registered pi", True), said


def personal_layer(commands, name):
    return DeviceState(FolderStore(commands.folder / f"state-{name}")).latest().slots["personal"]["fc2.weight"]


def test_power_cuts_of_a_device_and_of_the_server_and_a_broken_archive(commands, own_data):
    commands.keys("a", "b", "c", "broken")
    run = commands.folder / "run.toml"
    run.write_text(SETTINGS)
    server = commands.server("run.toml")
    # c calls up what the others call down, which FedPer leaves to its personal layers. It calls itself a, too, in vain.
    called = {"c": ("--name", "a")}
    nodes = {
        name: commands.client(name, "--data", str(own_data(name, name == "c")), *called.get(name, ()))
        for name in ("a", "b", "c")
    }
    status = commands.folder / "runs" / "by-hand" / "status.json"
    commands.wait_for(lambda: status.exists() and json.loads(status.read_text())["connected"] == ["a", "b", "c"])
    assert json.loads(status.read_text())["missing"] == ["broken"]
    broken = own_data("broken", False)
    (broken / "data.npz").write_bytes(b"not an archive")
    nodes["broken"] = commands.client("broken", "--data", str(broken))

    # A device loses power in the middle of a round, of which it may have done its part; the next one is without it.
    commands.wait_for(lambda: commands.rounds("runs/by-hand") >= 1)
    os.kill(nodes["c"].pid, signal.SIGKILL)
    nodes["c"].wait()
    without = commands.rounds("runs/by-hand") + 2
    own_layer = personal_layer(commands, "c")
    commands.wait_for(lambda: commands.rounds("runs/by-hand") >= without)
    # A round's line is there before its checkpoint; a server that ends in between repeats it, with whom it then has.
    saved = commands.folder / "runs" / "by-hand" / "checkpoint"
    commands.wait_for(lambda: any(int(one.name[6:]) >= without for one in saved.glob("round-*")))

    # The server loses power, too. Its clients wait; it goes on after its last checkpoint.
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    before = (commands.folder / "runs" / "by-hand" / "rounds.jsonl").read_text().splitlines()
    nodes["c"] = commands.client("c", "--data", str(commands.folder / "data-c"))
    last = len(before) + 2
    commands.wait_for_end(commands.server("run.toml", "--resume", "--set", f"run.rounds={last}"))

    folder = commands.folder / "runs" / "by-hand"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    assert [line["round"] for line in lines] == list(range(1, last + 1))
    assert [json.loads(line)["round"] for line in before] == [line["round"] for line in lines[: len(before)]]
    # what the broken device said is in the record and on the server's screen, and the others trained
    assert lines[0]["replies"] == 3
    assert "The device's log says more." in lines[0]["failed"]["broken"]
    assert "data.npz" not in lines[0]["failed"]["broken"]  # names of files stay on the device
    assert "round 1 without broken" in commands.log("server")
    assert lines[without - 1]["replies"] == 2
    # The device came back as itself,
    assert commands.log("c").count("Connected.") == 2
    assert commands.log("server").count("devices  registered ") == 2 * 4
    # and with its personal layers: those of before, which are not the ones that every device begins with.
    np.testing.assert_allclose(personal_layer(commands, "c"), own_layer, atol=2e-3)
    assert np.abs(initial_model(load_settings(run)).fc2.weight.detach().numpy() - own_layer).max() > 0.02
    assert set(summary["accuracy_by_client"]) == {"a", "b", "c"}
    assert min(summary["accuracy_by_client"][name] for name in ("a", "b")) > 0.9
    assert (folder / "report.html").stat().st_size > 10_000
    # the logs say what was, on the device and on the server, also of before the server was restarted
    assert "Data: 48 samples to train on, 12 to test on; down 30, up 30." in commands.log("a")
    assert f"Round {last} ended: loss" in commands.log("a")
    commands.wait_for(lambda: "The run by-hand has ended." in commands.log("a"))
    assert "Round 1 failed, and the run goes on without this device: " in commands.log("broken")
    assert "data.npz" in commands.log("broken")
    assert "3 of 4 devices are connected (a, b, c); missing: broken" in commands.log("server")
    assert "two devices" not in commands.log("server")
    assert "\x1b" not in (folder / "server.log").read_text()
    # a run that is over goes on for more rounds, with the devices that are there, and says what may not change
    other = ("run.toml", "--resume", "--set", "train.momentum=0.5")
    commands.run("changed", "server", *other, code=2)
    assert "cannot go on with other settings: train.momentum was 0.9, now 0.5" in commands.log("changed")
    more = ("run.toml", "--resume", "--set", f"run.rounds={last + 1}", "--set", "server.min_clients=2")
    commands.wait_for_end(commands.server(*more))
    assert json.loads((folder / "summary.json").read_text())["rounds"] == last + 1
    assert commands.rounds("runs/by-hand") == last + 1
    # what the device keeps, for the next round and for use without a server; a loaded machine may have made it late
    kept = DeviceState(FolderStore(commands.folder / "state-a")).latest()
    assert kept.round >= max(line["round"] for line in lines if "a" not in line["failed"])
