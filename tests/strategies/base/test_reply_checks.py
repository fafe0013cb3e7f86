"""Metrics of a reply: what must be a share, what a stock app may call as it likes; and errors, as they are told."""

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from bouquet.common.protocol import F1, NUM_EXAMPLES, TEST_EXAMPLES, ProtocolError
from bouquet.common.task.score import ACCURACY, Score
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base.reply_checks import read_metrics, told

InlineGrid({})  # gives Flower's Message its sender
OF_SCORE = ("key", "trained", "served", "of_method", "own", "alone", "received", "validation")


def read(**metrics):
    content = RecordDict({"metrics": MetricRecord({NUM_EXAMPLES: 10, **metrics})})
    return read_metrics(Message(content, dst_node_id=1, message_type="evaluate"))


def test_a_stock_apps_own_percents_are_no_share_and_are_taken_as_they_are():
    said = {"accuracy_percent": 87.5, "accuracy-in-percent": 87.5, "accuracy_drop": -0.2}
    assert read(**said) == {NUM_EXAMPLES: 10, **said}


@pytest.mark.parametrize("value", [-1, 1e10])
def test_test_samples_are_no_fewer_than_none_nor_more_than_can_be(value):
    with pytest.raises(ProtocolError, match="it must be from 0 to 1000000000"):
        read(**{TEST_EXAMPLES: value})


@pytest.mark.parametrize("name", [F1, *(getattr(ACCURACY, one) for one in OF_SCORE)])
@pytest.mark.parametrize("value", [87.5, -0.01, 1.01])
def test_our_own_shares_are_from_0_to_1(name, value):
    with pytest.raises(ProtocolError, match=f"Metric '{name}' is {value}; it must be from 0 to 1"):
        read(**{name: value})
    assert read(**{name: 1.0})[name] == 1.0


def test_each_metric_that_the_score_names_is_looked_at():
    names = [name for name, value in vars(Score).items() if isinstance(value, property) and name != "title"]
    assert {*names, "key"} == set(OF_SCORE)


def test_a_test_has_a_number_of_samples():
    content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5})})
    with pytest.raises(ProtocolError, match="'num-examples' is missing"):
        read_metrics(Message(content, dst_node_id=1, message_type="evaluate"))


def test_of_a_traceback_the_line_is_told_that_says_what_failed():
    of_flower = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor.run()\x1b[39m\n"
        '  File "client_app.py", line 163, in __call__\n'
        "Exception ClientAppException occurred. Message: No query function registered with name 'identify''>"
    )
    said = told(of_flower)
    assert said.startswith("The device reported: Exception ClientAppException occurred.")
    assert said.endswith("Message: No query function registered with name 'identify'")
    assert told("The disk is full.\nIt has 2 GB.") == "The device reported: The disk is full. It has 2 GB."
