import pytest

from bouquet.server.service import connections
from tests.helpers.served_fleet import Fleet


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """What is looked at every second is looked at ten times as often."""
    monkeypatch.setattr("bouquet.server.service.upkeep.LOOK_SECONDS", 0.1)
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 3600.0)


@pytest.fixture
def fleets(tmp_path):
    """Starts a service: with keys where it is given the names of devices, else without."""
    made = []

    def start(*names):
        folder = tmp_path / f"fleet-{len(made)}"
        folder.mkdir()
        made.append(Fleet(folder, names or None))
        return made[-1]

    yield start
    for fleet in made:
        fleet.end()


@pytest.fixture
def fleet(fleets):
    """A service without keys."""
    return fleets()
