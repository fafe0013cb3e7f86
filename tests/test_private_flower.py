"""What the installed Flower lacks of what Bouquet takes of it beyond its promises, file by file, in seconds.

To be run with any Flower, in whose environment are also Bouquet's dependencies and pytest:

    path/to/python -m pytest -rx tests/test_private_flower.py
"""

import ast
import contextlib
import importlib
import inspect
from functools import cache

import pytest

from common.system.flower_release import TESTED, is_tested
from tests.helpers.private_flower import PRIVATE_FLOWER
from tests.test_architecture import modules, tree_of

# Server and client work with one Flower, the others with every one.
OF_ONE_FLOWER = ("client.", "server.")


@cache
def found(name):
    """What a dotted name stands for, a module or what is inside of one; None when it is not there."""
    if "." not in name:
        return importlib.import_module(name)
    parent, _, last = name.rpartition(".")
    if inspect.ismodule(found(parent)):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    # A property of a class may be one that cannot be read yet.
    return inspect.getattr_static(found(parent), last, None) or getattr(found(parent), last, None)


def attributes(file, private):
    """``module.attribute`` for what a file reads from, or puts into, the private modules that it imports."""
    called = {name.rpartition(".")[2]: name for name in private}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called:
            yield f"{called[node.value.id]}.{node.attr}"


def lacking(file, private):
    """What a file takes of Flower that is not there: names that it imports, and attributes of those that are."""
    gone = {name for name in private if found(name) is None}
    return sorted(gone | {name for name in attributes(file, set(private) - gone) if found(name) is None})


@pytest.mark.parametrize("module", PRIVATE_FLOWER)
def test_the_installed_flower_has_what_a_file_takes_of_it(module):
    missing = lacking(modules()[module], PRIVATE_FLOWER[module])
    if missing and module.startswith(OF_ONE_FLOWER) and not is_tested():
        pytest.xfail(f"{module}, which works with Flower {' and '.join(TESTED)}, lacks {', '.join(missing)}")
    assert missing == []


def test_what_a_flower_lacks_is_named(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("from flwr.supercore import constant, gone\nconstant.TaskType, constant.NOT_THERE\n")
    private = ["flwr.gone.away.Name", "flwr.supercore.constant", "flwr.supercore.gone"]
    assert lacking(file, private) == ["flwr.gone.away.Name", "flwr.supercore.constant.NOT_THERE", "flwr.supercore.gone"]
