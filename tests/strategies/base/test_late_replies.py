"""Rounds that end when enough replies are in: who is still at work goes on, and counts when it comes."""

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.settings import load_settings
from bouquet.common.wire.flower import content_of
from bouquet.experiments.simulation.timed_grid import TimedGrid
from bouquet.server.run.build import build_strategy
from bouquet.strategies.base.exchange import Patience, replies_to
from bouquet.strategies.base.late_replies import LateReplies
from bouquet.strategies.baselines.fedavg import FedAvg
from bouquet.strategies.baselines.fl_hc import FLHC
from bouquet.strategies.fedac.strategy import FedAC
from bouquet.strategies.fesem.strategy import FeSEM
from bouquet.strategies.gradient_loss.strategy import GradientLoss

CANNOT = {"fedsgd", "cfl", "gradient-loss", "ifca", "fedtsdp", "dc-pfl", "feddane"}


def play(strategy, grid, initial, *rounds):
    """As the server's loop does. A scripted client has ten samples, so that at speed 10 it takes a second."""
    for round_ in rounds:
        messages = list(strategy.configure_train(round_, initial, {}, grid))
        older = {message: task.node for message, task in strategy.late.awaited.items()}
        enough, silent = strategy.replies_to_end(len(messages) + len(older)), {}
        replies = list(replies_to(grid, messages, strategy.round_patience, silent, None, older, enough))
        strategy.give_up(silent)
        strategy.aggregate_train(round_, replies)
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        strategy.end_round(round_, messages, answered, silent, grid.clock())


def plus(amount):
    return lambda start, received: start + amount


def made(kind=FedAvg, buffer=0.5, **options):
    strategy = kind(identify=True, **options)
    strategy.late = LateReplies(buffer)
    return strategy


def two(scripted, slow=plus(5)):
    """One device that takes a second, and one that takes two and a half."""
    return TimedGrid({1: scripted("a", plus(1)), 2: scripted("b", slow)}, speeds=(10, 4))


def test_one_that_is_silent_holds_up_no_round():
    assert [LateReplies(0.9).enough(at_work) for at_work in (1, 2, 3, 4, 20)] == [1, 1, 2, 3, 18]


def test_a_late_reply_counts_with_its_update_from_the_model_of_today(scripted, initial):
    grid, strategy = two(scripted), made()
    centers = []
    for round_ in (1, 2, 3):
        play(strategy, grid, initial, round_)
        centers.append(
            (round(grid.clock(), 3), strategy.train_round.replies.clients, strategy.centers(strategy.state)[0, 0])
        )
    assert centers == [(1, ("a",), 1), (2, ("a",), 2), (2.5, ("b",), 7)]  # b made 5 of 0, and is taken as 2 + 5
    assert strategy.train_round.came_late == {"b": 2}
    assert strategy.train_round.replies.updates[:, 0].tolist() == [5]
    assert list(grid._sent) == list(grid._due)  # a day's messages would not fit into memory


def test_who_is_at_work_is_not_asked_again(scripted, initial):
    grid, strategy = two(scripted), made()
    play(strategy, grid, initial, 1)
    assert strategy.late.clients == {"b"}
    assert [m.metadata.dst_node_id for m in strategy.configure_train(2, initial, {}, grid)] == [1]


def test_what_a_checkpoint_holds_of_a_task_is_made_once_and_shared(scripted, initial):
    devices = {1: scripted("a", plus(1)), 2: scripted("b", plus(5)), 3: scripted("c", plus(5))}
    grid, strategy, held = TimedGrid(devices, speeds=(10, 1, 1)), made(buffer=0.3), []
    for round_ in (1, 2):
        play(strategy, grid, initial, round_)
        held.append([task.content for task in strategy.late.awaited.values()])
    (b, c), later = held
    assert b is c is later[0] is later[1]
    assert content_of(b)["arrays"]["first.weight"].numpy().max() == 0


def test_a_fast_device_is_in_a_buffer_once(scripted, initial):
    devices = {1: scripted("a", plus(1)), 2: scripted("b", plus(5)), 3: scripted("c", plus(5))}
    strategy = made(buffer=0.6)
    play(strategy, TimedGrid(devices, speeds=(1000, 4, 4)), initial, 1)
    assert strategy.train_round.replies.clients == ("a", "b", "c")  # of three at work .6 are two, and b came with c


def test_without_a_buffer_a_round_waits_for_all_and_drops_who_is_too_late(scripted, initial):
    grid, strategy = two(scripted), FedAvg(identify=True)
    play(strategy, grid, initial, 1)
    assert (grid.clock(), strategy.train_round.replies.clients) == (2.5, ("a", "b"))
    strategy.round_patience = Patience(2)
    play(strategy, grid, initial, 2, 3)
    assert (strategy.train_round.came_late, strategy.train_round.replies.clients) == ({}, ("a",))


def test_for_no_longer_than_the_timeout(scripted, initial):
    grid, strategy = TimedGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, speeds=(10, 0.01)), made()
    strategy.round_patience = Patience(3)
    play(strategy, grid, initial, 1, 2, 3, 4)
    assert strategy.late.clients == {"b"}
    play(strategy, grid, initial, 5)
    assert (strategy.late.clients, strategy.train_round.failures) == (set(), {"b": "No reply within 3 s."})


def test_a_late_reply_that_is_malformed_is_refused_by_name(scripted, initial):
    grid, strategy = two(scripted, lambda start, received: np.full_like(start, np.nan)), made()
    play(strategy, grid, initial, 1, 2, 3)
    assert strategy.train_round.failures == {"b": "Tensor 'first.weight' holds values that are not finite."}
    assert strategy.train_round.refused == {"b"}


@pytest.mark.parametrize(
    ("kind", "options", "common"), [(FLHC, {"warmup_rounds": 2, "num_clusters": 2}, 3), (FeSEM, {"num_clusters": 2}, 1)]
)
def test_while_a_method_compares_models_of_one_start_a_round_waits_for_all(scripted, initial, kind, options, common):
    grid, strategy = two(scripted), made(kind, **options)
    came = []
    for round_ in range(1, common + 3):
        play(strategy, grid, initial, round_)
        came.append((round(grid.clock(), 3), strategy.train_round.replies.clients))
    together = [(2.5 * (i + 1), ("a", "b")) for i in range(common)]
    end = 2.5 * common
    assert came == [*together, (end + 1, ("a",)), (end + 2, ("a",))]
    assert not strategy.train_round.failures
    assert len(set(strategy.assignment(strategy.state).values())) == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_cannot_use_it_refuses_the_setting_by_name(method):
    settings = load_settings(None, [f"strategy.name={method}", "server.buffer=0.5", "data.public_fraction=0.1"])
    if method in CANNOT:
        with pytest.raises(BouquetError, match=f"buffer = 0.5 does not fit '{method}'.*take 1"):
            build_strategy(settings)
    else:
        assert build_strategy(settings).late == LateReplies(0.5)


def test_where_devices_choose_a_late_update_is_of_the_cluster_that_was_trained(scripted, initial):
    def train(amount):
        return lambda start, received: received.models["center-1"].vector + amount

    said = {"cluster": 1, "trained-cluster": 1}
    devices = {1: scripted("a", train(1), said), 2: scripted("b", train(5), said)}
    strategy = made(GradientLoss, num_clusters=2, gradient_weight=0.5, local_update="epochs")
    play(strategy, grid := TimedGrid(devices, speeds=(10, 4)), initial, 1, 2)
    before = strategy.centers(strategy.state)[1]
    play(strategy, grid, initial, 3)
    assert strategy.train_round.came_late == {"b": 2}
    assert strategy.centers(strategy.state)[1] - before == pytest.approx(5)
    assert set(strategy.state.held) == {"a"}  # b is sent how the centers moved: those it compared are gone


def test_a_late_model_of_a_devices_own_counts_as_it_is(scripted, initial):
    devices = {1: scripted("a", plus(1)), 2: scripted("b", plus(1)), 3: scripted("c", plus(5))}
    grid, strategy = TimedGrid(devices, speeds=(10, 10, 4)), made(FedAC, 0.6, num_clusters=1, tuning="off")
    strategy.similarity = "l2"
    play(strategy, grid, initial, 1, 2, 3, 4)
    assert strategy.train_round.came_late == {"c": 2}
    rows = dict(zip(strategy.train_round.replies.clients, strategy.train_round.replies.W[:, 0], strict=True))
    assert rows["c"] == pytest.approx(7 / 3 + 5)  # 7/3 is what it was sent; and not as many more as today's center is


@pytest.mark.parametrize("method", ["ifca", "gradient-loss"])
def test_clusters_that_come_and_go_have_no_use_for_an_older_choice(method):
    build_strategy(load_settings(None, [f"strategy.name={method}", "server.buffer=0.5", "strategy.num_clusters=3"]))
    with pytest.raises(BouquetError, match=f"does not fit '{method}'"):
        build_strategy(load_settings(None, [f"strategy.name={method}", "server.buffer=0.5"]))


def test_compressed_a_late_reply_is_read_by_the_copy_that_its_device_was_sent():
    """Nobody else holds that copy: it is kept as long as the device is at work, and is not in a checkpoint."""
    from bouquet.common.compression.delta import Copy
    from bouquet.common.parameters.layout import ParameterLayout
    from bouquet.strategies.base.filters.compression import Compression
    from bouquet.strategies.base.method import one_model

    layout = ParameterLayout.of({"a.weight": np.zeros(4, np.float32)})
    compression = Compression("int8", "int8")
    compression.begin(1)
    model = np.arange(4, dtype=np.float32)
    _, received = compression.pack(layout, "slow", one_model(model), is_train=True)
    digest = Copy(received.models["arrays"].vector, layout.layers).digest
    compression.await_late(["slow"])
    assert compression.dump()[0] == {}
    for round_ in (2, 3):
        compression.begin(round_)
        assert compression.find(digest) is not None
        compression.await_late(["slow"])
    compression.await_late([])
    compression.begin(4)
    assert compression.find(digest) is None


def test_a_share_of_replies_is_of_those_that_end_a_round(scripted, initial):
    devices = {
        1: scripted("a", plus(1)),
        2: scripted("b", plus(5)),
        3: scripted("c", plus(5)),
        4: scripted("d", plus(5)),
    }
    strategy = made(min_replies=0.8)
    play(strategy, TimedGrid(devices, speeds=(1000, 1000, 4, 4)), initial, 1)
    assert strategy.train_round.warnings == []
    assert strategy.centers(strategy.state)[0, 0] == 3
