"""Real devices of two kinds over gRPC: one joins in mid-run, the data of another become those of the other kind."""

import json
import os

import pytest

from tests.helpers.two_classes import settings_of

pytestmark = pytest.mark.federation

MORE = "num_clusters = 2\n[server]\nmin_clients = 5\nstraggler_grace = 1200\nround_timeout = 1200\n"
SETTINGS = settings_of("run", 100_000, hidden=16, strategy="fesem", more=MORE)


def test_who_joins_and_who_changes_is_in_the_right_cluster_at_once(commands, own_data):
    (commands.folder / "run.toml").write_text(SETTINGS)
    kinds = {"a": False, "b": False, "turns": False, "c": True, "d": True, "joins": True, "other": True}
    data = {name: own_data(name, kind) for name, kind in kinds.items()}
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure")
    commands.server("run.toml", "--insecure")

    def start(name):
        commands.start(name, "client", *where, "--data", str(data[name]), "--state-dir", f"s-{name}", "--name", name)

    def lines():
        path = commands.folder / "runs" / "run" / "rounds.jsonl"
        found = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in found if line.endswith("}")]

    def last(name):
        return (lines() or [{"by_client": {}}])[-1]["by_client"].get(name)

    for name in ("a", "b", "turns", "c", "d"):
        start(name)
    commands.wait_for(lambda: (last("d") or {}).get("accuracy", 0) > 0.9)
    start("joins")
    commands.wait_for(lambda: last("joins"))
    first = next(line for line in lines() if "joins" in line["by_client"])
    assert first["by_client"]["joins"]["accuracy"] > 0.9  # before it has trained
    assert first["assignment"]["joins"] == first["assignment"]["c"] != first["assignment"]["a"]
    assert "fits it best" in commands.log("joins")

    os.replace(data["other"] / "data.npz", data["turns"] / "data.npz")
    commands.wait_for(lambda: any("moved" in line for line in lines()))
    changed = next(line for line in lines() if "moved" in line)
    assert changed["moved"] == {"turns": first["assignment"]["a"]}
    assert changed["assignment"]["turns"] == first["assignment"]["c"]
    assert changed["by_client"]["turns"]["accuracy"] > 0.9
    before = lines()[changed["round"] - 2]
    assert before["by_client"]["turns"]["accuracy"] < 0.5
    assert [text for text in before["warnings"] if "jumped on turns (" in text]
    commands.run("stop", "stop", "runs/run")
    assert changed["by_client"]["a"]["accuracy"] > 0.9
