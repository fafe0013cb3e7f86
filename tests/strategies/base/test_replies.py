"""What a method is given of a round: what was uploaded, what had been sent, and what changed."""

import numpy as np
from flwr.app import ConfigRecord

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply, Instruction, Payload, decoding
from bouquet.common.texts import plain_values
from bouquet.strategies.base import reply_checks
from bouquet.strategies.base.exchange import exchange
from bouquet.strategies.base.replies import Replies, Rows, stacked
from tests.helpers.real_devices import Federation

LAYOUT = ParameterLayout.of(
    {
        "first.weight": np.zeros((1, 2), dtype=np.float32),
        "first.steps": np.zeros(1, dtype=np.int16),
        "last.weight": np.zeros((1, 1), dtype=np.float32),
    }
)


def reply(client, row, layers=LAYOUT.layers):
    return ClientReply(client, 1, np.array(row, dtype=np.float32), layers, 10, {}, {})


def sent(row, layers=None):
    return Instruction({ARRAYS: Payload(np.array(row, dtype=np.float32), layers)})


def test_sent_is_what_each_client_was_sent_and_zero_where_nothing_was():
    replies = Replies(
        LAYOUT,
        (reply("a", [2, 3, 9, 4]), reply("b", [1, 1, 1, 1]), reply("c", [5, 5, 5, 5])),
        {"a": sent([1, 1, 7, 1]), "b": sent([3, 3, 3, 3], ("last",)), "c": Instruction()},
    )
    assert replies.sent.tolist() == [[1, 1, 7, 1], [0, 0, 0, 3], [0, 0, 0, 0]]


def test_updates_are_of_the_parameters_that_went_both_ways():
    replies = Replies(
        LAYOUT,
        (reply("a", [2, 3, 9, 4]), reply("b", [1, 1, 1, 1]), reply("c", [0, 0, 0, 5], ("last",))),
        {"a": sent([1, 1, 7, 1]), "b": sent([3, 3, 3, 3], ("last",)), "c": sent([1, 1, 1, 1])},
    )
    # a's counter moved from 7 to 9, which is no update; b was sent one layer, c uploaded one.
    assert replies.updates.tolist() == [[1, 2, 0, 3], [0, 0, 0, -2], [0, 0, 0, 4]]


def test_a_part_of_the_replies_knows_what_was_sent():
    replies = Replies(LAYOUT, (reply("a", [2, 3, 9, 4]), reply("b", [1, 1, 1, 1])), {"b": sent([3, 3, 3, 3])})
    part = replies.only([False, True])
    assert part.clients == ("b",)
    assert part.sent.tolist() == [[3, 3, 3, 3]]


def test_models_are_written_into_one_matrix_without_gaps_for_who_did_not_answer():
    rows = Rows(LAYOUT, ["d", "a", "b", "c"])
    usable = {name: rows.take(reply(name, [i, i, 1, i]), name) for i, name in ((4, "d"), (2, "b"))}
    found = rows.replies(usable, {})
    assert found.clients == ("b", "d")
    assert found.W.tolist() == [[2, 2, 1, 2], [4, 4, 1, 4]]
    assert all(np.shares_memory(found.W, one.vector) for one in found.received)
    assert found.received[1].vector.tolist() == [4, 4, 1, 4]
    assert found.only([False, True]).W.tolist() == [[4, 4, 1, 4]]


def test_whoever_was_not_expected_or_has_another_name_now_is_in_the_matrix_too():
    rows = Rows(LAYOUT, ["a", "b"])
    stranger = rows.take(reply("z", [9, 9, 9, 9]), "")
    assert rows.replies({"z": stranger}, {}).W.tolist() == [[9, 9, 9, 9]]
    renamed = {"y": rows.take(reply("y", [1, 1, 1, 1]), "a"), "x": rows.take(reply("x", [2, 2, 2, 2]), "b")}
    assert rows.replies(renamed, {}).W.tolist() == [[2, 2, 2, 2], [1, 1, 1, 1]]


def test_rows_of_one_matrix_are_not_copied_to_make_one():
    W = np.arange(12, dtype=np.float32).reshape(4, 3).copy()
    for rows in (list(W), list(W)[1:3], [W[3]]):
        assert np.shares_memory(stacked(rows), W)
        assert stacked(rows).tolist() == [row.tolist() for row in rows]
    for rows in ([W[2], W[1]], [W[0], W[2]], [W[0], W[1].copy()], [W[0, :2], W[1, :2]], [W[0].copy()]):
        assert not np.shares_memory(stacked(rows), W)
        assert stacked(rows).tolist() == [row.tolist() for row in rows]


def test_a_reply_is_read_once_for_nodes_filters_and_checks(tmp_path, monkeypatch):
    federation = Federation(tmp_path, "strategy.name=fedavg", "wire.up=int8", "privacy.clip_norm=1.0")
    strategy, read = federation.strategy, []
    for module in (decoding, reply_checks):
        monkeypatch.setattr(module, "plain_values", lambda said: read.append(said) or plain_values(said), raising=False)
    messages = list(strategy.configure_train(1, federation.arrays, ConfigRecord(), federation.grid))
    answers, _ = exchange(federation.grid, messages, strategy.round_patience)
    read.clear()
    strategy.aggregate_train(1, answers)
    assert len(strategy.train_round.replies) == len(read) == 4
