"""SuperLink's database locked for longer than SuperLink waits, as on a busy machine with a slow disk."""

import json
import sqlite3
import time

import pytest

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]

SETTINGS = """
[run]
name = "locked"
rounds = 4

[data]
dataset = "digits"
clients = 3

[train]
local_epochs = 1

[strategy]
name = "fedavg"

[server]
min_clients = 3
straggler_grace = 800
round_timeout = 800
"""
LOCKED_SECONDS = 7.0  # Flower's own SuperLink waits for five, and the run then ends without a result


def test_no_device_loses_its_message(commands, tmp_path):
    (tmp_path / "locked.toml").write_text(SETTINGS)
    server = commands.server("--settings", "locked.toml", "--insecure")
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure")
    for number in range(3):
        commands.start(f"c{number}", "client", *where, "--state-dir", f"state-{number}", "--partition-id", str(number))
    run = tmp_path / "runs" / "locked"

    def lines():
        record = run / "rounds.jsonl"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    locked = 0
    while server.poll() is None:
        before = len(lines())
        if 0 < before < 4:
            with sqlite3.connect(run / "superlink" / "superlink.db", timeout=60, isolation_level=None) as database:
                database.execute("BEGIN IMMEDIATE")
                time.sleep(LOCKED_SECONDS)
                database.execute("ROLLBACK")
            database.close()
            locked += 1
        commands.wait_for(lambda before=before: server.poll() is not None or len(lines()) > before, 600)

    assert server.returncode == 0
    assert locked
    assert [(line["replies"], line["failed"]) for line in lines()] == [(3, {})] * 4
