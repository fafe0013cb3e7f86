"""A sensor that froze, a unit that changed, a camera that turned black: seen against the device's own last rounds."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from bouquet.client.context import ClientContext, own_data
from bouquet.client.data.drift import KEPT, drifted, stuck
from bouquet.client.data.loading import ClientData
from bouquet.client.state.store import FolderStore
from bouquet.common.data.scaling import Scaling
from bouquet.common.settings import load_settings

RNG = np.random.default_rng(0)


def table(mean, std):
    x = np.zeros((4, 1), dtype=np.float32)
    return ClientData(x, x, x, x, 0, scaling=Scaling((mean,), (std,), (mean,), (std,)))


def photos(bright, black):
    x = np.concatenate([RNG.integers(0, 256, (bright, 3, 8, 8)), RNG.integers(0, 9, (black, 3, 8, 8))]).astype(np.uint8)
    y = np.zeros(len(x), dtype=np.int64)
    return ClientData(x[1:], y[1:], x[:1], y[:1], 2)


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        ([(20, 2), (21, 2.1), (19, 1.9)], False),  # a season
        ([(20, 2), (20_000, 2000)], True),  # metres in place of kilometres
        ([(20, 2), (68, 3.6)], True),  # Fahrenheit
        ([(20, 2), (20, 0.001)], True),
        ([(0, 1), (0.1, 0.05)], False),  # it has not rained before
    ],
)
def test_a_unit_that_changed_is_seen_and_with_time_it_is_the_unit(rounds, says, tmp_path):
    store = FolderStore(tmp_path, durable=False)
    first, *later = rounds
    assert drifted(store, table(*first), ["a"]) == ()
    for figures in later:
        found = drifted(store, table(*figures), ["a"])
        assert drifted(store, table(*figures), ["a"]) == found  # the same data, in the next round
    assert bool(found) == says
    if says:
        assert "'a' are far from those of the last rounds" in found[0]
    for k in range(1, KEPT + 1):
        found = drifted(store, table(figures[0] * (1 + k / 1e4), figures[1]), ["a"])
    assert found == ()


def test_what_is_kept_may_be_damaged(tmp_path):
    store = FolderStore(tmp_path, durable=False)
    for content in (b"{", b"[1]", b'[{"a": 3}]', b"[]", b'{"a": [1, 2]}'):
        store.write("figures.json", content)
        assert drifted(store, table(1, 1), ["a"]) == ()


def test_a_camera_that_turned_black_is_seen(tmp_path):
    store = FolderStore(tmp_path, durable=False)
    said = [drifted(store, photos(*counts), ()) for counts in ((50, 1), (60, 2), (61, 3), (62, 30), (63, 31))]
    assert [bool(found) for found in said] == [False, False, False, True, True]
    assert "is the camera dark, or covered?" in said[-1][0]


def test_a_sensor_that_is_stuck_is_seen_and_a_valve_that_is_shut_is_not():
    moving, valve = RNG.normal(0, 1, 300), np.repeat([0.0, 1, 0, 1], (100, 20, 100, 80))
    frozen = np.append(moving[:260], np.full(40, moving[260]))
    said = list(stuck(np.stack([moving, valve, frozen], axis=1), ("a", "valve", "level")))
    assert said == ["The newest values of 'level' are all the same, longer than ever before: is the sensor stuck?"]
    assert list(stuck(np.zeros((99, 1)), ("a",))) == []  # nothing is known of it


def test_a_device_says_it_of_its_own_table(tmp_path):
    settings = load_settings(None, ["task.kind=forecast", "data.dataset=own", "table.inputs=a", "table.targets=a",
                                    "table.time=t", "table.history=3"])  # fmt: skip
    config = {"state-dir": str(tmp_path / "state"), "data": str(tmp_path / "a.csv"), "name": "tank"}

    def warnings(values):
        (tmp_path / "a.csv").write_text("t,a\n" + "".join(f"{60 * i},{v:.3f}\n" for i, v in enumerate(values)))
        own_data.cache_clear()  # each message is a process of its own
        context = Context(1, 1, config, RecordDict(), {})
        return ClientContext(settings, context).data_warnings

    values = RNG.normal(20, 2, 300)
    assert warnings(values) == ()
    (said,) = warnings([*values, *[21.5] * 30])
    assert "'a' are all the same" in said
    (said,) = warnings(values * 1000)
    assert "'a' are far from those of the last rounds" in said
