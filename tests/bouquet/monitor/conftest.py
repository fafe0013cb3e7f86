import json
import time
from types import SimpleNamespace

import pytest

from bouquet.common.settings import load_settings
from bouquet.keys.store import add_device, init_keys
from tests.helpers.status_runs import STARTED, line


@pytest.fixture
def run(tmp_path):
    """A run in its third round of four: one device trains, one fails, one was never there; its lock is free."""
    keys = tmp_path / "keys"
    init_keys(keys, ["127.0.0.1"])
    for name in ("garden-pi", "window-pi", "door-pi"):
        add_device(keys, name)
    folder = tmp_path / "runs" / "plants"
    service = folder / "service"
    service.mkdir(parents=True)
    settings = load_settings(None, ["run.name=plants", "run.rounds=4", "server.min_clients=3"])
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json")))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line(number)) + "\n" for number in (1, 2)))
    now = time.time()
    noted = [
        {"node": node, "name": name, "connected": connected, "since": now - 400, "seen": now - seen}
        for node, name, connected, seen in ((1, "garden-pi", True, 5), (2, "window-pi", False, 300))
    ]
    (service / "connections.json").write_text(json.dumps(noted))
    known = {name: {"name": name, "release": "0.1.0"} for name in ("garden-pi", "window-pi")}
    (folder / "devices.json").write_text(json.dumps(known))
    status = {
        "run": "plants",
        "bouquet": "0.1.0",
        "state": "training",
        "started": STARTED,
        "round": 3,
        "rounds": 4,
        "round_started": now - 4,
        "updated": now,
        "needed": 3,
        "connected": [],
        "missing": [],
        "registered": str(keys / "registered"),
        "service": str(service),
    }

    def change(**changes):
        (folder / "status.json").write_text(json.dumps({**status, **changes}))

    change()
    return SimpleNamespace(folder=folder, keys=keys, change=change)
