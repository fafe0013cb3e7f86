"""What is taken of Flower beyond its promises: by one file, in few names, each with its reason, and all of it there.

To be run with any Flower, in whose environment are also Bouquet's dependencies and pytest.
"""

import ast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from bouquet.common.wire import flower
from tests.test_architecture import modules, tree_of

# What Flower says is for everybody; the rest may be gone with its next release.
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation", "flwr.common.logger")
MOST_NAMES = 8


def private_names(tree):
    """What code imports of Flower that is not public, and what it reaches for in the ``__dict__`` of something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            yield from (alias.name for alias in node.names if not _is_public(f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("flwr.") and not _is_public(a.name))
        elif isinstance(node, ast.Subscript):
            of, _, name = ast.unparse(node.value).rpartition(".")
            if name == "__dict__" and of != "self":
                yield ast.literal_eval(node.slice)


def _is_public(name):
    return "._" not in name and f"{name}.".startswith(tuple(f"{one}." for one in PUBLIC))


def test_one_file_takes_few_private_names_and_says_why():
    found = {module: {*private_names(tree_of(file))} for module, file in modules().items()}
    found = {module: names for module, names in found.items() if names}
    assert set(found) == {"bouquet.common.wire.flower"}
    names = found["bouquet.common.wire.flower"]
    assert len(names) <= MOST_NAMES
    reasons = ast.get_docstring(tree_of(modules()["bouquet.common.wire.flower"]))
    assert [name for name in names if name.removeprefix("Proto") not in reasons] == []


def test_private_names_are_found_however_they_are_taken():
    code = (
        "import flwr.supercore.constant\nfrom flwr.app import Message, _hidden\nfrom flwr.supercore.run import Run\n"
        "message.metadata.__dict__['_src_node_id'] = 1\nself.__dict__['_own'] = 1"
    )
    assert {*private_names(ast.parse(code))} == {"flwr.supercore.constant", "_hidden", "Run", "_src_node_id"}


def test_the_installed_flower_carries_a_message_there_and_back():
    content = RecordDict({"arrays": ArrayRecord([]), "config": ConfigRecord({"round": 3})})
    data = flower.content_bytes(content)
    assert flower.wire_bytes(content) == len(data)
    task = flower.instruction(data, "a" * 32, run=7, node=9, kind="train", group="3", ttl=60.0)
    about = task.metadata
    assert (about.message_id, about.run_id, about.dst_node_id) == ("a" * 32, 7, 9)
    assert (about.message_type, about.group_id, about.ttl) == ("train", "3", 60.0)
    assert task.content["config"]["round"] == 3
    for reply in (flower.reply_to(task, data), flower.error_reply(task, 1001, "full")):
        back = reply.metadata
        assert (back.reply_to_message_id, back.src_node_id, back.dst_node_id) == ("a" * 32, 9, flower.SERVER_NODE)
    assert (reply.error.code, reply.error.reason) == (1001, "full")
    sent = flower.sent(Message(content, dst_node_id=9, message_type="train"), "b" * 32)
    assert sent.metadata.message_id == "b" * 32
    assert type(flower.empty_run()).__name__ in str(Grid.run.fget.__annotations__["return"])
