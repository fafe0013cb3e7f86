"""What a procedure's author is given on the device: gradients, streams of randomness, what was kept, clear errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from bouquet.client.context import ClientContext
from bouquet.client.rounds.session import Session
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import STATE_LOST, Encoder
from bouquet.common.settings import load_settings, parse_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import one_model

SETTINGS = parse_settings({}, {"data.samples_per_client": 40, "model.hidden": [8], "data.clients": 4})
InlineGrid({})  # gives Flower's Message its sender


@pytest.fixture
def open_session(tmp_path):
    layout, initial = state_vector(initial_model(SETTINGS))

    def make(round_=1, kind="train", **config):
        told = {"learning-rate": 0.1, "momentum": 0.0, **config}
        content = Encoder(layout).content(one_model(initial), round_, "r", told)
        config = {"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path)}
        node = ClientContext(SETTINGS, Context(1, 2, config, RecordDict(), {}))
        return Session.open(Message(content, dst_node_id=2, message_type=kind), node)

    return make


def test_only_the_layers_that_are_named_are_trained(open_session):
    session = open_session()
    first, last = session.layout.layers
    trained, _ = session.train(session.initial, layers=[last])
    moved = trained != session.initial
    assert not moved[session.layout.columns([first])].any()
    assert moved[session.layout.columns([last])].any()
    with pytest.raises(BouquetError, match="Unknown layer 'fc9'"):
        session.train(session.initial, layers=["fc9"])


def test_streams_are_independent_and_always_the_same(open_session):
    def draw(session, stream):
        return torch.rand(3, generator=session.generator(stream)).tolist()

    first = open_session()
    assert draw(first, "inner") == draw(open_session(), "inner")
    assert len({tuple(draw(s, name)) for s in (first, open_session(2)) for name in ("", "inner", "outer")}) == 6
    same = first.train(first.initial)[0]
    np.testing.assert_array_equal(same, first.train(first.initial)[0])
    assert np.any(same != first.train(first.initial, stream="other")[0])


def test_a_misspelt_option_of_training_is_named(open_session):
    session = open_session()
    with pytest.raises(BouquetError, match=r"no option 'local_epoch'; there are local_epochs, batch_size"):
        session.train(session.initial, local_epoch=3)


def test_what_was_kept_in_a_round_is_there_in_the_evaluation_after_it(open_session):
    session = open_session(round_=3)
    session.keep(session.initial)
    assert open_session(round_=3).recall() is None  # the round may be repeated
    assert open_session(round_=3, kind="evaluate").recall().round == 3
    assert open_session(round_=4).recall().round == 3


def test_the_start_says_whether_the_devices_own_layers_are_lost(open_session):
    session = open_session(round_=3)
    np.testing.assert_array_equal(session.start(), session.initial)
    assert session.metrics[STATE_LOST] == 0  # the whole model was sent
    session = open_session(round_=3)
    session.received = replace(session.received, start="personal")
    session.start()
    assert session.metrics[STATE_LOST] == 1
    kept = session.initial + 1
    open_session(round_=2).keep(kept)
    np.testing.assert_array_equal(session.start(), kept)
    assert session.metrics[STATE_LOST] == 0


@pytest.mark.parametrize(
    ("config", "environment", "threads"),
    [
        ({}, "", 1),  # a simulation, also Flower's own
        ({"state-dir": "s"}, "", 7),
        ({"state-dir": "s"}, "3", 3),
        ({"state-dir": "s"}, "4,2", 7),
        ({"state-dir": "s", "threads": 5}, "3", 5),
        ({"state-dir": "s", "when": "when.toml", "threads": 5}, "3", 2),
    ],
)
def test_a_device_has_the_idle_cores_or_what_its_owner_says(tmp_path, monkeypatch, config, environment, threads):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    monkeypatch.setattr("bouquet.client.context.idle_cores", lambda: 7)
    (tmp_path / "when.toml").write_text("[when]\nthreads = 2\n")
    settings = load_settings(None, [])
    assert ClientContext(settings, Context(1, 2, config, RecordDict(), {})).threads == threads
    assert ClientContext(settings, Context(1, 2, config, RecordDict(), {}), tmp_path).threads == 1
