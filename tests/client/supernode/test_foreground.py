"""The process that stays in front of a SuperNode: small, and told everything."""

import subprocess
import sys
from pathlib import Path

from client.supernode import foreground
from client.supernode.launcher import SuperNodeSettings
from client.trust.policy import AppTrust


def test_what_the_command_line_found_out_arrives(tmp_path, monkeypatch):
    settings = SuperNodeSettings(
        "server:9092",
        tmp_path,
        {"partition-id": 3, "name": "ä b"},
        root_certificates=Path("ca.crt"),
        private_key=Path("device.key"),
        health_address="127.0.0.1:9093",
        environment={"A": "1"},
        trust=AppTrust(
            frozenset({"a" * 64}),
            False,
            frozenset({"mine:make"}),
            signers=frozenset({"ssh-ed25519 " + "A" * 68}),
            memory=tmp_path / "rollout.json",
        ),
        cold=True,
    )
    given: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: given.append(arguments))
    foreground.become_foreground(settings, 12.5)
    (arguments,) = given
    assert arguments[:-1] == [sys.executable, "-P", "-m", "client.supernode.foreground"]
    assert foreground.read(arguments[-1]) == (settings, 12.5)
    plain = SuperNodeSettings("server:9092", tmp_path, insecure=True)
    foreground.become_foreground(plain, None)
    assert foreground.read(given[-1][-1]) == (plain, None)


def test_it_holds_on_to_no_library_that_it_does_not_need():
    code = "import sys, client.supernode.foreground; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"torch", "numpy", "flwr", "grpc", "pydantic", "rich", "typer", "cryptography", "scipy"}


def test_the_command_line_reads_no_flower_before():
    before = "bouquet.cli, bouquet.device.config, bouquet.keys.store, client.supernode.foreground"
    code = f"import sys, {before}, common.trust.signature\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"flwr", "grpc", "fastapi", "sqlalchemy", "torch", "scipy"}


def test_a_problem_is_one_line_and_status_2(tmp_path, capsys, monkeypatch):
    given: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: given.append(arguments))
    settings = SuperNodeSettings("127.0.0.1:1", tmp_path / "state", insecure=True)
    foreground.become_foreground(settings, 0.0)
    assert foreground.main(given[0][-1]) == 2
    assert capsys.readouterr().err.startswith("bouquet: The server 127.0.0.1:1 cannot be reached")
