"""How long a SuperNode waits, and what it does when nothing works on its message any more."""

from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message

from client.supernode.executor_link import LinkedExecutor, hear, make_link, tell_failure
from client.supernode.polling import Failure, Patience, wait_well
from common.errors import BouquetError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_grows_with_the_time_since_the_last_message_and_is_short_after_one():
    clock = Clock()
    patience = Patience(clock, jitter=lambda low, high: 1.0)
    assert patience.rest() == 0.2
    clock.now += 60
    assert patience.rest() == pytest.approx(3.0)
    clock.now += 7 * 24 * 3600
    assert patience.rest() == 30.0
    assert patience.rest(looked=clock.now - 12) == 18.0  # so long was the look held
    assert patience.rest(looked=clock.now - 45) == 0.0
    patience.note_message()
    assert patience.rest() == 0.2


def test_a_fleet_does_not_knock_at_once():
    clock = Clock()
    patience = Patience(clock)
    clock.now += 10_000
    waits = [patience.rest() for _ in range(200)]
    assert 24 <= min(waits) < 26
    assert 34 < max(waits) <= 36


class Scripted:
    """An executor of which one thing is heard after another; what is a function is called, and nothing is heard."""

    def __init__(self, *news: Any) -> None:
        self.news = list(news)
        self.announced: list[int] = []
        self.dropped: list[int] = []

    def drop(self, task: int) -> None:
        self.dropped.append(task)

    def announce(self, state: Any, run_id: int) -> None:
        self.announced.append(run_id)

    def failure(self, seconds: float) -> Failure | None:
        assert self.news, "SuperNode still waits for an answer"
        heard = self.news.pop(0)
        if callable(heard):
            heard()
            return None
        return heard


@pytest.fixture
def node():
    """A SuperNode's state with one message in hand, and Flower's two functions as far as they matter here."""
    factory = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=factory).state()
    store = factory.store()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 3, 1
    message = Message(RecordDict(), dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=3, fab_hash="abc")
    pushed: list[Any] = []

    def pull(*, state, object_store, receive):
        if receive() is None:
            return None
        state.task = task  # as where Flower makes it
        return message.metadata.run_id

    def push(*, state, object_store, send, push_object):
        pushed.extend(state.get_messages_legacy(is_reply=True))

    supernode = SimpleNamespace(
        _pull_and_store_message=pull,
        _push_messages=push,
        _insert_message=_insert_message,
        Message=Message,
        Error=Error,
        ErrorCode=ErrorCode,
        SubStatus=SubStatus,
    )
    state.store_message(message)
    assert state.get_messages_legacy(is_reply=False) == [message]

    def handle(executor, pulls=(True,)):
        slept: list[float] = []
        inbox = [(message, None) if there else None for there in pulls]
        wait_well(supernode, executor, sleep=slept.append)
        given = {"state": state, "object_store": store}
        assert supernode._pull_and_store_message(**given, receive=lambda: inbox.pop(0)) == 3
        supernode._push_messages(**given, send=None, push_object=None)
        return slept

    def reply(whole: bool = True, to: Message = message) -> Message:
        answer = Message(RecordDict({"a": ArrayRecord()}), reply_to=to)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        state.store_message(answer)
        store.preregister(3, get_object_tree(answer))
        if whole:
            complete(answer)
        return answer

    def complete(answer: Message) -> None:
        for identifier, part in get_all_nested_objects(answer).items():
            store.put(identifier, part.deflate())

    return SimpleNamespace(
        handle=handle, reply=reply, complete=complete, pushed=pushed, task=task, state=state, store=store
    )


def claim(node) -> None:
    assert node.state.claim_task(node.task) is not None


def test_nothing_is_sent_before_all_of_the_answer_is_there(node):
    answers: list[Message] = []

    def begin() -> None:
        answers.append(node.reply(whole=False))

    node.handle(executor := Scripted(begin, lambda: None, lambda: node.complete(answers[0])))
    assert node.pushed == answers
    assert not executor.news
    assert executor.announced == [3]


def test_an_answer_to_a_message_that_was_lost_is_not_sent_in_the_place_of_the_next(node):
    lost = Message(RecordDict(), dst_node_id=7, message_type="query")
    lost.metadata.__dict__["_message_id"] = lost.object_id
    late = node.reply(to=lost)
    answers: list[Message] = []
    node.handle(Scripted(lambda: answers.append(node.reply())))
    assert node.pushed == answers
    assert late.metadata.message_id not in node.store
    assert node.state.get_messages_legacy(is_reply=True) == []


def test_without_a_message_it_rests_and_looks_again(node):
    slept = node.handle(Scripted(node.reply), pulls=(False, False, True))
    assert len(slept) == 2
    assert all(0.16 <= seconds <= 0.24 for seconds in slept)


def test_after_a_look_that_the_server_held_it_looks_again_at_once():
    clock, slept = Clock(), list[float]()
    held = [25.0, 0.0, 25.0, None]  # seconds that the server held each look; the last brings a message

    def pull(*, state, object_store, receive):
        return 3 if receive() else None

    def receive() -> tuple[str] | None:
        if (seconds := held.pop(0)) is None:
            return ("message",)
        clock.now += seconds
        return None

    supernode = SimpleNamespace(_pull_and_store_message=pull, _push_messages=lambda **_: None)
    wait_well(supernode, Scripted(), Patience(clock, jitter=lambda low, high: 1.0), slept.append)
    supernode._pull_and_store_message(state=None, object_store=None, receive=receive)
    assert slept == [0.0, pytest.approx(1.25), 0.0]  # a share of the time since the last message, less what was held


def lost(node, monkeypatch, error):
    """Flower's own pull, of a message whose parts do not come; its reply, and its task."""
    monkeypatch.setattr(flower, "get_fused_config_from_fab", lambda content, run: {})
    message = Message(RecordDict({"a": ArrayRecord()}), dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    run = SimpleNamespace(run_id=3, fab_hash="abc", series_id=9, primary_task_type=TaskType.CLIENT_APP)
    fab = SimpleNamespace(hash_str="", content=b"", verifications={})
    inbox = [(message, get_object_tree(message)), KeyboardInterrupt]

    def receive():
        found = inbox.pop(0)
        if found is KeyboardInterrupt:
            raise found
        return found

    def pull_object(run_id, object_id):
        # In the meantime the executor has looked for itself.
        tasks = node.state.get_tasks(statuses=[Status.PENDING])
        taken.extend(task.task_id for task in tasks if node.state.claim_task(task.task_id))
        raise error

    taken: list[int] = []
    executor = Scripted()
    supernode = SimpleNamespace(
        _pull_and_store_message=flower._pull_and_store_message, _push_messages=flower._push_messages,
        SubStatus=SubStatus,
    )  # fmt: skip
    wait_well(supernode, executor, sleep=lambda seconds: None)
    with pytest.raises(KeyboardInterrupt):
        supernode._pull_and_store_message(
            state=node.state, object_store=node.store, node_config={}, receive=receive, get_run=lambda run_id: run,
            get_fab=lambda hash_, run_id: fab, pull_object=pull_object,
            confirm_message_received=lambda run_id, object_id: None, trusted_entities=None,
        )  # fmt: skip
    return message, taken, executor


@pytest.mark.parametrize("error", [RunNotRunningException(), RuntimeError("the server is gone")])
def test_a_message_that_is_lost_while_it_is_pulled_leaves_nothing(node, monkeypatch, error):
    node.state.delete_messages()
    node.state.set_node_id(7)
    message, taken, executor = lost(node, monkeypatch, error)
    (own,) = set(taken) - {node.task}
    assert executor.dropped == [own]
    assert executor.announced == []
    unfinished = node.state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING])
    assert own not in [task.task_id for task in unfinished]
    assert node.state.get_messages_legacy(is_reply=False) == []
    assert [part.object_id for part in parts(message) if part.object_id in node.store] == []


def parts(message):
    todo = [get_object_tree(message)]
    while todo:
        part = todo.pop()
        yield part
        todo += part.children


@pytest.mark.parametrize("partial", [False, True])
def test_a_process_that_dies_is_answered_for_with_an_error(node, partial):
    claim(node)

    def begin() -> None:
        if partial:
            node.reply(whole=False)

    node.handle(Scripted(begin, Failure("It ended.", node.task)))
    (answer,) = node.pushed
    assert (answer.error.code, answer.error.reason) == (ErrorCode.CLIENT_APP_CRASHED, "It ended.")
    assert node.state.get_tasks(task_ids=[node.task])[0].status.sub_status == SubStatus.FAILED
    assert len(node.store) == 1, "of what had come, nothing is left but the error"


def sleep_a_day(monkeypatch) -> None:
    monkeypatch.setattr(in_memory_corestate, "now", lambda: now() + timedelta(days=1))


ENDED = [pytest.param(True, id="its process"), pytest.param(False, id="the executor")]


@pytest.mark.parametrize("own", ENDED)
def test_on_a_device_that_slept_one_that_was_in_hand_is_answered_for(node, monkeypatch, own):
    """Flower has given it up: its process was not heard of for too long."""
    claim(node)
    assert node.state.activate_task(node.task)
    sleep = partial(sleep_a_day, monkeypatch)
    node.handle(Scripted(sleep, Failure("It ended.", node.task if own else None)))
    (answer,) = node.pushed
    assert answer.has_error()


@pytest.mark.parametrize("own", ENDED)
def test_and_one_that_had_not_begun_begins_again(node, monkeypatch, own):
    claim(node)

    def sleep() -> None:
        sleep_a_day(monkeypatch)
        assert not node.state.activate_task(node.task)

    node.handle(executor := Scripted(sleep, Failure("It ended.", node.task if own else None), node.reply))
    assert executor.announced == [3, 3]
    assert not node.pushed[0].has_error()


def test_one_that_counts_as_done_and_whose_answer_stays_in_parts_is_answered_for(node):
    claim(node)
    assert node.state.activate_task(node.task)

    def end() -> None:
        node.reply(whole=False)
        assert node.state.finish_task(node.task, SubStatus.COMPLETED, "")

    node.handle(Scripted(end, Failure("It ended.", node.task)))
    assert node.pushed[0].error.reason == "It ended."
    assert len(node.store) == 1, "of what had come, nothing is left but the error"


def test_the_end_of_another_task_is_nothing_to_this_message(node):
    claim(node)
    node.handle(Scripted(Failure("The one before.", node.task + 1), node.reply))
    assert not node.pushed[0].has_error()


def test_an_answer_that_was_whole_before_its_process_died_counts(node):
    claim(node)
    failures = [Failure("It ended.", node.task)]

    class Late(Scripted):
        def failure(self, seconds: float) -> Failure | None:
            node.reply()
            return failures.pop()

    node.handle(Late())
    assert not node.pushed[0].has_error()


def test_a_message_that_nobody_had_taken_goes_to_the_next_executor(node):
    executor = Scripted(Failure("The executor was ended by SIGKILL."), node.reply)
    node.handle(executor)
    assert executor.announced == [3, 3]
    assert not node.pushed[0].has_error()


def test_when_the_executor_dies_the_message_it_had_is_answered_with_an_error(node):
    claim(node)
    node.handle(Scripted(Failure("The executor was ended by SIGKILL.")))
    assert node.pushed[0].error.reason == "The executor was ended by SIGKILL."


@pytest.mark.parametrize(
    "flower",
    [
        SimpleNamespace(),
        SimpleNamespace(_pull_and_store_message=lambda state: None, _push_messages=lambda **_: None),
        SimpleNamespace(_pull_and_store_message=lambda **_: None, _push_messages=lambda state, object_store: None),
    ],
)
def test_a_flower_that_waits_otherwise_is_not_started(flower):
    with pytest.raises(BouquetError, match=r"install flwr>=1\.41"):
        wait_well(flower, Scripted())


def test_what_supernode_and_executor_tell_each_other():
    supernode, executor = make_link()
    own = SimpleNamespace(is_own=lambda content: content == b"ours")
    linked = LinkedExecutor(supernode, own)
    plain, photos = {"model.name": "mlp"}, {"model.name": "torchvision:mobilenet_v3_small"}
    runs = {
        1: SimpleNamespace(fab_hash="a", override_config=plain),
        2: SimpleNamespace(fab_hash="b", override_config=photos),
    }
    bundles = {"a": SimpleNamespace(content=b"ours"), "b": SimpleNamespace(content=b"other")}
    state = SimpleNamespace(get_run=runs.get, get_fab=bundles.get)
    for run_id in (1, 2, 9):
        linked.announce(state, run_id)
    assert [hear(executor), hear(executor), hear(executor)] == [
        {"fab": "a", "own": True, "torchvision": False},
        {"fab": "b", "own": False, "torchvision": True},
        None,
    ]
    tell_failure(executor, "x" * 10_000, 2**63 + 1)
    heard = linked.failure(0.0)
    assert heard is not None
    assert (heard.task, len(heard.reason)) == (2**63 + 1, 1000)
    assert linked.failure(0.0) is None


def test_a_link_that_nobody_reads_holds_nobody_up():
    supernode, executor = make_link()
    for _ in range(10_000):
        tell_failure(executor, "again")
    assert hear(supernode) == {"task": None, "reason": "again"}
