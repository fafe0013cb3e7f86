"""What keeps an idle device small, without changing what it does."""

import subprocess
import sys


def run(code: str, *arguments: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def test_a_supernode_has_its_store_in_memory_and_no_database_module():
    code = """
import sys
from client.supernode.process import without_database
without_database()
from flwr.supernode.cli import flower_supernode
from flwr.supercore.object_store import ObjectStoreFactory
print(type(ObjectStoreFactory().store()).__name__, "sqlalchemy" in sys.modules, "alembic" in sys.modules)
try:
    ObjectStoreFactory("objects.db").store()
except RuntimeError as error:
    print(error)
"""
    assert run(code).splitlines() == ["InMemoryObjectStore False False", "This SuperNode keeps its objects in memory."]


def test_code_that_was_given_back_runs_on():
    code = """
import numpy as np, ssl
from client.supernode.process import settle
before = np.linalg.inv(np.eye(40) * 2).sum()
for _ in range(3):
    settle()
print(before == np.linalg.inv(np.eye(40) * 2).sum() == 20.0, bool(ssl.create_default_context()))
"""
    assert run(code).split() == ["True", "True"]


def test_a_device_that_stood_still_goes_on_with_its_message():
    """Without it both lapse: what has just been handed out, and what is in hand."""
    code = """
import sys
from datetime import timedelta
from client.supernode.process import keep_what_is_in_hand, without_database
without_database()
if sys.argv[1:] == ["kept"]:
    keep_what_is_in_hand()
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory
state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
begun, handed_out = (state.create_task(task_type=TaskType.CLIENT_APP, run_id=3, fab_hash="abc") for _ in range(2))
tokens = [state.claim_task(task) for task in (begun, handed_out)]
assert state.activate_task(begun)
real = in_memory_corestate.now
in_memory_corestate.now = lambda: real() + timedelta(seconds=600)
print([state.get_task_by_token(token) is not None for token in tokens], state.acknowledge_task_heartbeat(begun))
"""
    assert run(code, "kept") == "[True, True] True\n"
    assert run(code) == "[False, False] False\n"
