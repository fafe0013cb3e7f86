"""The owner's conditions before SuperNode takes a message: work is refused, and questions are not."""

from types import SimpleNamespace

import pytest
from flwr.app import Error, Message, RecordDict

from client.supernode.not_now import heed
from common import protocol
from common.protocol.error_replies import NotNow, rest_of
from experiments.simulation.inline_grid import InlineGrid

InlineGrid({})  # gives Flower's Message its sender


@pytest.fixture
def supernode():
    """Flower's, as far as it is looked at: ``stored`` has what it took, ``replies`` what it was given to send."""

    def pull_and_store_message(*, receive, **_):
        made.stored.append(receive())
        return 7

    made = SimpleNamespace(Error=Error, Message=Message, stored=[], replies=[], watch=SimpleNamespace())
    made._pull_and_store_message = pull_and_store_message
    made._insert_message = lambda reply, state, store: made.replies.append(reply)
    made.watch.refusal = lambda: NotNow("on battery; again on mains", 90.0)
    heed(made.watch, made)
    made.takes = lambda kind: made._pull_and_store_message(
        receive=lambda: kind and (Message(RecordDict(), dst_node_id=2, message_type=kind), None),
        state=None,
        object_store=None,
    )
    return made


@pytest.mark.parametrize("kind", ["train", "train.trial", "evaluate", "evaluate.again"])
def test_work_is_refused_with_the_time_to_ask_again(supernode, kind):
    supernode.takes(kind)
    assert not supernode.stored
    (reply,) = supernode.replies
    rest = rest_of(reply, {})
    assert (rest.reason, rest.seconds) == ("on battery; again on mains", 90.0)


@pytest.mark.parametrize("kind", [protocol.IDENTIFY, protocol.NOTICE, None])
def test_questions_are_answered_and_no_message_is_none(supernode, kind):
    assert supernode.takes(kind) == 7
    assert (len(supernode.stored), supernode.replies) == (1, [])


def test_a_reason_is_said_once_until_there_is_another_or_it_worked_meanwhile(supernode, capsys):
    refuses = supernode.watch.refusal
    for _ in range(3):
        supernode.takes("train")
    assert capsys.readouterr().out.count("on battery; again on mains") == 1
    supernode.watch.refusal = lambda: None
    assert supernode.takes("train") == 7
    supernode.watch.refusal = refuses
    supernode.takes("train")
    assert capsys.readouterr().out.count("on battery; again on mains") == 1
