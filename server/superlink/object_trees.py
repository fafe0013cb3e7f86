"""Who is believed about the objects in SuperLink's database.

Objects are named by their content's digest and shared by all messages that have them. They are announced before they
are there, each with its children's names, and flwr 1.39 believes whoever is the first to announce one: a device that
names the server's next object with other children has the server's own message turned away, which ends the run. It
deletes a message with the last object that has it as a child, whoever said so.

Here the server is believed, and a device not where it speaks of somebody else's message. Of two devices the one is that
says that an object has nothing below it: what another can know beforehand are such objects, a reply's few numbers.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.inflatable.inflatable_object import (
    get_object_children_ids_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes
from flwr.supercore.state.schema.objectstore_models import ObjectChild, StoredObject
from flwr.supercore.utils import uint64_to_int64
from sqlalchemy import delete, literal, select, update

Claims = dict[str, set[str]]  # by object, its children


def forget_what_differs(store: Any, claims: Claims) -> None:
    """Delete the objects that others announced with other children, and with them what only they have."""
    with store._mutation_session() as session:
        known: Claims = {name: set() for name in _scalars(session, StoredObject.object_id, claims)}
        rows = select(ObjectChild.parent_id, ObjectChild.child_id).where(ObjectChild.parent_id.in_(list(known)))
        for parent, child in session.execute(rows):
            known[parent].add(child)
        for name, children in known.items():
            if children != claims[name]:
                # Those that have it say so wrongly, too; they go without it, by the table's own rule.
                session.execute(update(StoredObject).where(StoredObject.object_id == name).values(ref_count=0))
                store.delete(name)


def speaks_of_others(state: Any, message: Message, claims: Claims) -> bool:
    """Whether the message or a part of it is a message already; its own, announced once more, does not count."""
    with state.session() as session:
        found = set(_scalars(session, StoredObject.object_id, claims, StoredObject.ref_count == 0))
        own = MessageRes.src_node_id == uint64_to_int64(message.metadata.src_node_id)
        return bool(found - set(_scalars(session, MessageRes.message_id, [message.metadata.message_id], own)))


def forget_parts(state: Any, claims: Claims) -> None:
    """Of objects that a device says have no children, forget those that another announced.

    Not where the content says so, or where the server did, whose content is on its way.
    """
    with state.session() as session:
        for name in set(_scalars(session, ObjectChild.parent_id, [name for name in claims if not claims[name]])):
            content = state.object_store.get(name)
            if get_object_children_ids_from_object_content(content) if content else _is_servers(session, name):
                continue
            parts = list(session.scalars(select(ObjectChild.child_id).where(ObjectChild.parent_id == name)))
            session.execute(delete(ObjectChild).where(ObjectChild.parent_id == name))
            counted = update(StoredObject).where(StoredObject.object_id.in_(parts))
            session.execute(counted.values(ref_count=StoredObject.ref_count - 1))


def _is_servers(session: Any, name: str) -> bool:
    """Whether an instruction has this object."""
    above = select(literal(name).label("name")).cte(recursive=True)
    above = above.union(select(ObjectChild.parent_id).where(ObjectChild.child_id == above.c.name))
    found = select(MessageIns.message_id).where(MessageIns.message_id.in_(select(above.c.name)))
    return session.scalar(found.limit(1)) is not None


def _scalars(session: Any, column: Any, names: Any, *conditions: Any) -> list[str]:
    return list(session.scalars(select(column).where(column.in_(list(names)), *conditions)))


def install() -> None:
    """Have the SuperLink that this process runs from now on believe the server first."""
    store = SqlLinkState.store_message_and_object_tree

    def believing(self: Any, message: Message, object_tree: ObjectTree, session_id: str) -> tuple[bool, list[str]]:
        parts = iterate_object_tree(object_tree)
        claims = {part.object_id: {child.object_id for child in part.children} for part in parts}
        # The second takes the database's lock at once: a transaction that reads first may not get it later.
        with self.session(), self.object_store._mutation_session():
            if message.metadata.src_node_id == SUPERLINK_NODE_ID:
                forget_what_differs(self.object_store, claims)
            elif speaks_of_others(self, message, claims):
                return False, []
            else:
                forget_parts(self, claims)
            return store(self, message, object_tree, session_id)

    SqlLinkState.store_message_and_object_tree = believing  # type: ignore[method-assign]
