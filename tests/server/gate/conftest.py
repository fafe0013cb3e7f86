"""A federation whose devices may do anything on the wire."""

import uuid

import pytest
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.object_store import object_store_factory
from flwr.superlink.servicer.fleet import fleet_handlers

from server.gate.waiting import LOOKS
from server.superlink import grid, link_state
from tests.helpers.gated_federation import Federation


@pytest.fixture
def federation(monkeypatch, layout, tmp_path):
    monkeypatch.setattr(grid, "SOON", 0.05)
    # A run that nobody has started: a started one ends when its ServerApp is not heard of for a minute.
    monkeypatch.setattr(fleet_handlers, "check_abort", lambda *_: None)
    monkeypatch.setattr(linkstate_factory, "SqlLinkState", linkstate_factory.SqlLinkState)
    monkeypatch.setattr(object_store_factory, "SqlObjectStore", object_store_factory.SqlObjectStore)
    monkeypatch.setenv(LOOKS, f"bouquet-test-{uuid.uuid4().hex}")
    link_state.install()
    made = Federation(layout, tmp_path)
    yield made
    made.end()
