import json

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.baselines.fedper import FedPer
from bouquet.strategies.registry import create_strategy


def upload(layout, rows, examples):
    """Replies with the layer ``first`` only."""
    received = []
    for node, (name, value) in enumerate(sorted(rows.items())):
        vector = np.zeros(layout.dim, dtype=np.float32)
        vector[:6] = value
        received.append(ClientReply(name, node, vector, ("first",), examples[name], {}, {}))
    return Replies(layout, tuple(received))


def test_the_base_is_the_weighted_mean_and_the_personal_layers_stay_initial(layout):
    strategy = FedPer()
    state = strategy.initial_state(layout, np.full(layout.dim, 7, dtype=np.float32))
    state = strategy.update(state, 1, upload(layout, {"a": 1, "b": 5}, {"a": 30, "b": 10}))
    assert state.centers.tolist() == [[2] * 6 + [7] * 2]
    assert strategy.assignment(state) == {"a": 0, "b": 0}
    arrays, rest = dump_state(state)
    restored = load_state(strategy.state_class, arrays, json.loads(json.dumps(rest)))
    after = [strategy.update(s, 2, upload(layout, {"c": 4}, {"c": 1})).centers.tolist() for s in (state, restored)]
    assert after[0] == after[1] == [[4] * 6 + [7] * 2]


def test_personal_layers_travel_in_neither_direction(layout, scripted, play):
    seen = []
    grid = InlineGrid(
        {
            1: scripted("a", lambda sent, _: sent + 1, seen=seen),
            2: scripted("b", lambda sent, _: sent + 3),
            3: lambda message: None,
        }
    )
    strategy = FedPer(identify=True, round_timeout=0.3)
    play(strategy, grid, range(1, 3))
    assert [r.models[ARRAYS].layers for r in seen] == [("first",)] * 2
    assert [r.upload for r in seen] == [("first",)] * 2
    assert [r.newcomer for r in seen] == [True, False]
    assert strategy.centers(strategy.state).tolist() == [[4] * 6 + [0] * 2]
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0}


def test_a_reply_with_the_personal_layers_is_refused(layout, scripted, play):
    honest, too_much = scripted("a", lambda sent, _: sent + 1), scripted("b", lambda sent, _: sent + 1)

    def sends_all(message):
        if message.metadata.message_type == "train":
            del message.content["config"]["upload"]
        return too_much(message)

    strategy = FedPer(identify=True)
    play(strategy, InlineGrid({1: honest, 2: sends_all}), range(1, 2))
    assert "'last.weight' was not asked for" in strategy.train_round.failures["b"]
    assert strategy.state.clients == ["a"]


THREE = ParameterLayout.of({f"l{i}.weight": np.zeros(1, dtype=np.float32) for i in range(3)})


@pytest.mark.parametrize(
    ("personal", "base"), [(1, ("l0", "l1")), (2, ("l0",)), (("l0",), ("l1", "l2")), (("l2", "l0"), ("l1",))]
)
def test_which_layers_are_personal(personal, base):
    strategy = FedPer(personal_layers=personal)
    strategy.layout = THREE
    state = strategy.initial_state(THREE, np.zeros(3, dtype=np.float32))
    assert strategy.plan(state, 1, ["a"])["a"].upload == base


@pytest.mark.parametrize(
    ("personal", "message"),
    [
        (0, "personal_layers = 0"),
        (-1, "personal_layers = -1"),
        ((), "personal_layers"),
        (3, "leaves no layer to share; the model has 3: l0, l1, l2"),
        (("l0", "l1", "l2"), "leaves no layer"),
        (("l7",), "'l7'"),
    ],
)
def test_impossible_personal_layers(personal, message):
    with pytest.raises(BouquetError, match=message):
        FedPer(personal_layers=personal).initial_state(THREE, np.zeros(3, dtype=np.float32))


def test_settings_give_a_number_or_names():
    assert create_strategy("fedper", {"personal_layers": 2}).personal_layers == 2
    assert create_strategy("fedper", {"personal_layers": ["l1"]}).personal_layers == ("l1",)
