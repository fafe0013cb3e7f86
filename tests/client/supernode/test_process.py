"""What keeps an idle device small, without changing what it does."""

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


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
