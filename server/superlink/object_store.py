"""The objects of messages, in memory: how much is held, and who is believed about them.

Objects are named by their content's digest and shared by all messages that have them. They are announced before they
are there, each with its children's names, and Flower believes whoever is the first to announce one: a device that
names the server's next object with other children has the server's own message turned away, which ends the run. It
deletes a message with the last object that has it as a child, whoever said so.

Here the server is believed, and a device not where it speaks of somebody else's message. Of two devices the one is that
says that an object has nothing below it: what another can know beforehand are such objects, a reply's few numbers.

Each object is a message or below one, so that with the messages all goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_object_children_ids_from_object_content,
    is_valid_sha256_hash,
    iterate_object_tree,
)
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

Claims = dict[str, list[str]]  # by object, its children
ENTRY_BYTES = 512  # of an object beside its content: its name, its children's, and who has it
# Objects of a message one below the other, of which Flower's have five, and in all. Messages can share what is below.
MOST_DEEP, MOST_OBJECTS = 32, 100_000


def claims_of(object_tree: ObjectTree) -> Claims | None:
    """What a tree says of each object; None where it contradicts itself or names what cannot be an object."""
    claims: Claims = {}
    for part in iterate_object_tree(object_tree):
        children = [child.object_id for child in part.children]
        if not is_valid_sha256_hash(part.object_id) or claims.setdefault(part.object_id, children) != children:
            return None
    return claims


class ObjectStore(InMemoryObjectStore):
    """Flower's own, which counts the bytes that it holds, and who brought them."""

    def __init__(self, _: str = "") -> None:
        super().__init__()
        self._content_bytes = 0
        self._of_server: set[str] = set()
        self._devices: dict[str, int] = {}  # that brought an object, by its name
        self._brought: Counter[int] = Counter()  # bytes, by device

    def initialize(self) -> None:
        """Nothing is opened: where Flower makes a store it makes one in a database."""

    @property
    def held_bytes(self) -> int:
        """What all objects take, those that are only announced among them."""
        return self._content_bytes + ENTRY_BYTES * len(self.store)

    def brought_by(self, device: int) -> int:
        """What the objects take that a device was the last to bring, or to announce."""
        return self._brought[device]

    def count_for(self, device: int, names: Iterable[str]) -> None:
        """These objects are what a device brings, from now on; not those that are gone, or the server's."""
        with self.lock_store:
            for name in names:
                if name in self.store and name not in self._of_server:
                    self._count_for_nobody(name)
                    self._devices[name] = device
                    self._brought[device] += self._taken(name)

    def _count_for_nobody(self, name: str) -> None:
        if (device := self._devices.pop(name, None)) is not None:
            self._brought[device] -= self._taken(name)
            if not self._brought[device]:
                del self._brought[device]

    def _taken(self, name: str) -> int:
        return ENTRY_BYTES + len(self.store[name].content)

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Note a message's objects; those that are to come. One that is known keeps the children that it has."""
        with self.lock_store:  # Flower takes it for each object anew, between which another's are deleted
            missing = super().preregister(run_id, object_tree)
            for part in iterate_object_tree(object_tree):
                if part.object_id != object_tree.object_id:
                    self.delete(part.object_id)  # where it is below nothing
            return list(dict.fromkeys(each for each in missing if each in self.store))

    def put(self, object_id: str, object_content: bytes) -> None:
        """Keep the content of an object that is announced."""
        with self.lock_store:
            known = self.store.get(object_id)
            new = known is not None and not known.is_available
            super().put(object_id, object_content)
            if new:
                self._content_bytes += len(object_content)
                if (device := self._devices.get(object_id)) is not None:
                    self._brought[device] += len(object_content)

    def delete(self, object_id: str) -> None:
        """Forget an object that no other has, and then its children in the same way."""
        with self.lock_store:
            names = [object_id]
            while names:
                name = names.pop()
                entry = self.store.get(name)
                if entry is None or entry.ref_count:
                    continue
                self._count_for_nobody(name)
                del self.store[name]
                self._content_bytes -= len(entry.content)
                self._of_server.discard(name)
                for run_id in entry.runs:
                    self.run_objects_mapping[run_id].discard(name)
                for child in entry.child_object_ids:
                    self.store[child].ref_count -= 1
                names += entry.child_object_ids

    def get_object_tree(self, object_id: str) -> ObjectTree:
        """What is below an object; one of which messages made a tower counts as one that is not there."""
        with self.lock_store:
            tree = ObjectTree(object_id=object_id)
            level, count = [tree], 1
            for _ in range(MOST_DEEP):
                below: list[ObjectTree] = []
                for part in level:
                    if (entry := self.store.get(part.object_id)) is None:
                        raise NoObjectInStoreError(f"Object {part.object_id} is not there.")
                    count += len(entry.child_object_ids)
                    if count > MOST_OBJECTS:
                        raise NoObjectInStoreError(f"The objects below {object_id} are too many.")
                    below += [part.children.add(object_id=child) for child in entry.child_object_ids]
                if not below:
                    return tree
                level = below
            raise NoObjectInStoreError(f"The objects below {object_id} are too deep.")

    def believe(self, claims: Claims) -> None:
        """Note that the server announced these."""
        with self.lock_store:
            there = [name for name in claims if name in self.store]
            self._of_server.update(there)
            for name in there:
                self._count_for_nobody(name)

    def forget_what_differs(self, claims: Claims) -> None:
        """Delete the objects that others announced with other children, and with them what only they have."""
        with self.lock_store:
            known = {name: self.store[name] for name in claims if name in self.store}
            wrong = {name for name, entry in known.items() if set(entry.child_object_ids) != set(claims[name])}
            if not wrong:
                return
            for entry in self.store.values():  # what has them says so wrongly, too, and goes on without them
                if not wrong.isdisjoint(entry.child_object_ids):
                    entry.child_object_ids = [child for child in entry.child_object_ids if child not in wrong]
            for name in wrong:
                known[name].ref_count = 0
                self.delete(name)

    def roots(self, names: Iterable[str]) -> set[str]:
        """Those of these objects that no other has and that have others, as messages do."""
        with self.lock_store:
            known = {name: self.store[name] for name in names if name in self.store}
            return {name for name, entry in known.items() if entry.ref_count == 0 and entry.child_object_ids}

    def forget_parts(self, claims: Claims) -> None:
        """Of objects that a device says have no children, forget those that another announced.

        Not where the content says so, or the server did, whose content may be on its way.
        """
        with self.lock_store:
            for name in [name for name, children in claims.items() if not children]:
                known = self.store.get(name)
                if known is None or not known.child_object_ids or name in self._of_server:
                    continue
                if known.content and get_object_children_ids_from_object_content(known.content):
                    continue
                parts, known.child_object_ids = known.child_object_ids, []
                for child in parts:
                    self.store[child].ref_count -= 1
                for child in parts:
                    self.delete(child)
