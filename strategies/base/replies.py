"""What a round's update works on: the uploaded models as a matrix, and public data where a method has some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, STATE_LOST, ClientReply, Instruction
from bouquet.common.protocol.names import CHOSEN

Matrix = NDArray[np.float32]
Columns = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Replies:
    """The usable replies of a round, ordered by client.

    ``W`` is the matrix (n, d) of uploaded models; columns of layers that a client did not upload are zero.

    Examples
    --------
    A method whose server keeps the mean of the models, weighted by samples:

    >>> class Mean(bouquet.FedAvg):
    ...     def update(self, state, round_, replies):
    ...         return replace(state, model=np.average(replies.W, axis=0, weights=replies.num_examples))
    """

    layout: ParameterLayout
    received: tuple[ClientReply, ...]
    instructions: Mapping[str, Instruction] = field(default_factory=dict)  # what each client was sent
    rows: Matrix | None = None  # (n, d), where the replies' vectors are the rows of a matrix already
    late: Mapping[str, int] = field(default_factory=dict)  # client → by how many rounds its task was older

    @property
    def clients(self) -> tuple[str, ...]:
        """Client identities, in the order of the rows."""
        return tuple(reply.client for reply in self.received)

    @cached_property
    def lost(self) -> set[str]:
        """The clients that say that they had lost layers of their own when the round began."""
        return {reply.client for reply in self.received if reply.metrics.get(STATE_LOST)}

    @cached_property
    def W(self) -> Matrix:
        """The uploaded models as rows, (n, d) float32."""
        if not self.received:
            return np.zeros((0, self.layout.dim), dtype=np.float32)
        if self.rows is not None:
            return self.rows
        return np.stack([reply.vector for reply in self.received])

    @cached_property
    def sent(self) -> Matrix:
        """The model that each client was sent as ``arrays``, (n, d) float32; zero in layers that it was not sent."""
        rows = np.zeros((len(self), self.layout.dim), dtype=np.float32)
        for row, columns, vector in self._payloads():
            rows[row, columns] = vector[columns]
        return rows

    @cached_property
    def updates(self) -> Matrix:
        """What each client changed in what it was sent, W − `sent`, (n, d) float32, in the parameters alone.

        Zero in buffers, and in layers that were not sent or not uploaded. A client that began from its own model
        (``start="personal"``) has moved from there, which the server does not know.
        """
        rows = np.zeros((len(self), self.layout.dim), dtype=np.float32)
        for row, columns, vector in self._payloads():
            rows[row, columns] = self._update(row, columns, vector)
        return rows

    def each_update(self, records: Mapping[str, str]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Each client that was sent a model, with its row (d,) of `updates`; a client at a time.

        ``records`` names for each client the record of the model that it trained, where that is not ``arrays``.
        """
        for row, columns, vector in self._payloads(records):
            update = np.zeros(self.layout.dim, dtype=np.float32)
            update[columns] = self._update(row, columns, vector)
            yield self.clients[row], update

    def update_norms(self) -> NDArray[np.float64]:
        """‖`updates`‖₂ of each client, (n,), a client at a time, so that no second matrix is held."""
        norms = np.zeros(len(self))
        for row, columns, vector in self._payloads():
            update = self._update(row, columns, vector)
            # einsum, not BLAS (np.linalg.norm), whose threads wait for each other: 3 ms in place of 41 for 50 mlps.
            norms[row] = np.sqrt(np.einsum("i,i->", update, update, dtype=np.float64))
        return norms

    def scaled(self, shares: Sequence[float], records: Mapping[str, str] = MappingProxyType({})) -> Replies:
        """The replies with each update times its share (n,); ``records`` as in `each_update`."""
        if all(share == 1 for share in shares):
            return self
        received = list(self.received)
        for row, columns, vector in self._payloads(records):
            if shares[row] != 1:
                moved, scaled = self._update(row, columns, vector), received[row].vector.copy()
                # start + share · update, not end − (1 − share) · update, which loses all digits of a huge update.
                less = vector[columns] + np.float32(shares[row]) * moved
                scaled[columns] = np.where(moved != 0, less, scaled[columns])
                received[row] = replace(received[row], vector=scaled)
        return replace(self, received=tuple(received), rows=None)

    def only(self, chosen: Iterable[bool]) -> Replies:
        """The replies for which ``chosen`` (n,) is true."""
        kept = tuple(reply for reply, take in zip(self.received, chosen, strict=True) if take)
        return replace(self, received=kept, rows=None)

    def _update(self, row: int, columns: Columns, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """What a client changed in some columns of what it was sent."""
        reply = self.received[row]
        counted = self.layout.parameter_columns
        if len(reply.layers) < len(self.layout.layers):
            uploaded = np.zeros(self.layout.dim, dtype=bool)
            uploaded[self.layout.columns(reply.layers)] = True
            counted = counted & uploaded
        return np.where(counted, reply.vector - vector, np.float32(0))[columns]

    def _payloads(
        self, records: Mapping[str, str] = MappingProxyType({})
    ) -> Iterable[tuple[int, Columns, NDArray[np.float32]]]:
        for row, client in enumerate(self.clients):
            instruction = self.instructions.get(client)
            payload = None if instruction is None else instruction.models.get(records.get(client, ARRAYS))
            if payload is not None:
                whole = payload.layers is None
                yield row, slice(None) if whole else self.layout.columns(payload.layers or ()), payload.vector

    @property
    def num_examples(self) -> NDArray[np.int64]:
        """Training samples of each client, (n,)."""
        return np.array([reply.num_examples for reply in self.received], dtype=np.int64)

    def metric(self, name: str) -> NDArray[np.float64]:
        """A metric of each client, (n,); NaN where a client did not report it.

        Of the model as it was sent: ``loss`` on its training data, ``test-loss`` and ``accuracy`` on its test data. Of
        the trained one: ``train-loss``, the mean over the last epoch, and ``accuracy-trained``.
        """
        return np.array([reply.metrics.get(name, np.nan) for reply in self.received], dtype=np.float64)

    def choices(self, count: int) -> dict[str, int]:
        """Client → the cluster that it chose, of so many; without those that say none."""
        chosen = zip(self.clients, self.metric(CHOSEN).tolist(), strict=True)
        return {client: int(k) for client, k in chosen if k in range(count)}

    def __len__(self) -> int:
        return len(self.received)


def stacked(vectors: Sequence[NDArray[np.float32]]) -> Matrix:
    """Vectors (d,) as the rows of a matrix (n, d); of rows that follow each other in one, that part of it, no copy."""
    first = vectors[0]
    whole = first.base
    if whole is None or whole.ndim != 2 or any(vector.base is not whole for vector in vectors):
        return np.stack(vectors)
    places = [(vector.ctypes.data - whole.ctypes.data) // whole.strides[0] for vector in vectors]
    part: Matrix = whole[places[0] : places[0] + len(vectors)]
    together = places == list(range(places[0], places[0] + len(vectors))) and part.shape[1:] == first.shape
    return part if together else np.stack(vectors)


class Rows:
    """The matrix into which models are written as they arrive, one row for each of ``clients``.

    Memory of a row that nobody fills is not used. Someone who was not expected keeps a vector of his own.
    """

    def __init__(self, layout: ParameterLayout, clients: Iterable[str]) -> None:
        self.layout = layout
        self._places = {client: place for place, client in enumerate(sorted(clients))}
        self._matrix = np.zeros((len(self._places), layout.dim), dtype=np.float32)
        self._taken: dict[str, int] = {}

    def take(self, reply: ClientReply, expected: str) -> ClientReply:
        """The reply with its vector in the row of the client that was ``expected`` to send it."""
        if expected not in self._places or not reply.layers:
            return reply
        self._taken[reply.client] = self._places[expected]
        row = self._matrix[self._places[expected]]
        row[:] = reply.vector
        return replace(reply, vector=row)

    def replies(self, usable: Mapping[str, ClientReply], instructions: Mapping[str, Instruction]) -> Replies:
        """The replies in the order of their clients, over the one matrix where all of them are in it."""
        received = [usable[client] for client in sorted(usable)]
        places = [self._taken.get(reply.client, -1) for reply in received]
        if not received or min(places) < 0 or places != sorted(places):
            return Replies(self.layout, tuple(received), instructions)
        for row, place in enumerate(places):  # close the gaps that clients without a reply have left
            if row != place:
                self._matrix[row] = self._matrix[place]
        rows = self._matrix[: len(received)]
        moved = tuple(replace(reply, vector=row) for reply, row in zip(received, rows, strict=True))
        return Replies(self.layout, moved, instructions, rows)


@dataclass(frozen=True)
class PublicData:
    """The server's public, unlabelled samples, of which a method sees only what client models say of them.

    ``predict`` maps models (m, d) and indices (B,) of the ``size`` samples to softmax outputs (m, B, classes).
    """

    size: int
    predict: Callable[[Matrix, NDArray[np.int64]], NDArray[np.float32]]


def mean_metrics(weighted: Sequence[tuple[int, Mapping[str, float]]], weighted_by: str) -> MetricRecord | None:
    """The mean of every metric that all clients report but their weight, by which they are weighed; None of nobody."""
    if not weighted:
        return None
    shared = set.intersection(*(set(metrics) for _, metrics in weighted)) - {weighted_by}
    weights = np.array([weight for weight, _ in weighted], dtype=np.float64)
    means = {
        name: float(np.average([metrics[name] for _, metrics in weighted], weights=weights)) for name in sorted(shared)
    }
    return MetricRecord(means)  # type: ignore[arg-type]


@dataclass(frozen=True)
class FirstModels:
    """The models from which clients are clustered first: those that they made of one common model, over some rounds.

    Where only some clients are asked in a round, too few for a clustering may answer. So a method sends the same common
    model again and gathers what comes of it; a client that answers twice is there with its last model. ``models`` (d,)
    and numbers of training samples are in the order of the clients' names.
    """

    models: dict[str, Vector]
    examples: dict[str, int] = field(default_factory=dict)

    def add(self, clients: Iterable[str], W: Matrix, examples: Iterable[int] = ()) -> FirstModels:
        """With a round's models, the rows of W (n × d), too; ``examples`` (n,) where they are weighed by them."""
        models = {**self.models, **dict(zip(clients, W, strict=True))}
        counts = {**self.examples, **dict(zip(clients, examples, strict=False))}
        return FirstModels({c: models[c] for c in sorted(models)}, {c: counts[c] for c in sorted(counts)})

    @property
    def clients(self) -> list[str]:
        """Whose models these are, in the order of the rows of `W`."""
        return [*self.models]

    @property
    def W(self) -> Matrix:
        """The models as rows, (n, d)."""
        return stacked([*self.models.values()])
