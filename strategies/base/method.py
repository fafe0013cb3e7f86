"""What a method is: a state, what each client is sent (``plan``), and the new state from the replies (``update``).

A method is a state transition. Its state is one dataclass; nothing else survives a round, and a checkpoint holds just
that. Three hooks carry the algorithm (``initial_state``, ``plan``, ``update``); all others have defaults. How the hooks
become messages, and replies the rows of a matrix, is in `bouquet.strategies.base.strategy`; nothing here knows of
Flower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ClientReply, Instruction, Payload
from bouquet.strategies.base.replies import Matrix, PublicData, Replies
from bouquet.strategies.mathematics.robust import Aggregation

State = TypeVar("State")
Ask = Callable[[Mapping[str, Instruction]], Replies]


@dataclass(frozen=True)
class Outcome(Generic[State]):
    """What an update may return instead of the bare state: with the clients whose replies it could not use, and why.

    Examples
    --------
    >>> bouquet.Outcome(state={}, refused={"pi-3": "its gradient is 0"}).refused
    {'pi-3': 'its gradient is 0'}
    """

    state: State
    refused: Mapping[str, str] = field(default_factory=dict)


class MethodHooks(ABC, Generic[State]):
    """The hooks of a method.

    What they may read beside their arguments: ``seed``, ``layout``, ``public``, ``draw_model`` and ``aggregation``.

    `initial_state`, `plan` and `update` are the algorithm. A method that has clusters also says what its `centers` and
    `assignment` are. Hooks change nothing: they return what is new.
    """

    state_class: type[State]

    # The method's facts, which others read of it. Where an option decides one, the constructor sets it.
    wants_public_data: ClassVar[bool] = False
    # Whether a reply may be taken into a later round than its own: a model trained from what its client was sent then.
    takes_late_replies: bool = False
    # Whether a device that is new, or whose data have changed, says by its losses which cluster it is in.
    places_by_loss: ClassVar[bool] = False
    # Whether a device's work is local SGD from a model that it was sent, of which it may do a part (`train.budget`).
    takes_steps: bool = False
    # Whether the server has none of the layers that make a device's model work.
    models_on_devices_only: ClassVar[bool] = False
    # For the notes of a table: the model that a device is tested with after the last round; what decides a device's
    # cluster, which test data never do; and what a device does in a round, in trainings by FedAvg's.
    tested_model: str = "received"
    clusters_chosen_on: str = "–"
    trainings: str = "1"

    seed: int
    layout: ParameterLayout | None = None
    # Names of the model's parameters, set by a server that can build the model; without them the layout infers them.
    parameter_names: Collection[str] | None = None
    # Set by a server for the methods with ``wants_public_data``.
    public: PublicData | None = None
    # Another random initialisation of the model from a seed, set by a server that can build the model.
    draw_model: Callable[[int], Vector] | None = None

    @property
    def aggregation(self) -> Aggregation:
        """How the members of a cluster become its center: their mean, or what `[protection]` says."""
        return Aggregation()

    @abstractmethod
    def initial_state(self, layout: ParameterLayout, initial: Vector) -> State:
        """The state before the first round, from the initial model (d,)."""

    @abstractmethod
    def plan(self, state: State, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """What each of the sampled clients is sent in this round."""

    @abstractmethod
    def update(self, state: State, round_: int, replies: Replies) -> State | Outcome[State]:
        """The state after the round, from at least ``min_replies`` usable replies."""

    def centers(self, state: State) -> Matrix:
        """The models of the clusters, (K, d): the state's ``centers``.

        Where it has none, as of a method whose server holds no model, there are no clusters' models, (0, d).
        """
        none = np.empty((0, 0 if self.layout is None else self.layout.dim), dtype=np.float32)
        return getattr(state, "centers", none)

    def assignment(self, state: State) -> dict[str, int]:
        """The cluster of every client that has one: the state's ``assignment``; nobody's, where it has none."""
        return getattr(state, "assignment", {})

    def doubted(self, state: State) -> Collection[str]:
        """Clients that may be in a wrong cluster, and choose anew, of a method that `places_by_loss`.

        Where the state has ``groups`` (`bouquet.strategies.base.groups`), those whose data pull them elsewhere.
        """
        return getattr(getattr(state, "groups", None), "pulled", [])

    def placed(self, state: State, chosen: Mapping[str, int]) -> State:
        """With the clusters that clients chose, of a method that `places_by_loss`; ``groups`` forget these."""
        groups: Any = getattr(state, "groups", None)
        known = {"groups": groups.without(chosen)} if hasattr(groups, "without") else {}
        return replace(state, assignment={**self.assignment(state), **chosen}, **known)  # type: ignore[type-var]

    def prepare(self, state: State, round_: int, clients: Sequence[str], ask: Ask) -> State:
        """A preliminary exchange inside a round: ``ask`` sends instructions and returns the replies."""
        return state

    def plan_evaluate(self, state: State, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """What each client is sent to be tested; by default what it would be sent to train."""
        return self.plan(state, round_ + 1, clients)

    def needs_exact(self, down: str) -> str:
        """Why a device must be sent exact models, not ones coded by ``down`` (`bouquet.common.compression.codecs`); ''
        where it need not.

        The device starts from, and compares, what it makes of them; a method whose records are not models marks them
        as `bouquet.common.protocol.Payload.exact` instead.
        """
        return ""

    def needs_scores(self) -> str:
        """Why devices must report their losses or what they chose by them, as a sentence; '' where they need not."""
        return ""

    def needs_classes(self) -> str:
        """Why it works with classes alone, as a sentence; '' where any task will do."""
        return ""

    @property
    def expected_clusters(self) -> int:
        """How many clusters were asked for, by the option ``num_clusters``; 1 where the method finds their number."""
        num_clusters = getattr(self, "num_clusters", 1)
        return num_clusters if isinstance(num_clusters, int) else 1

    def device_needs(self) -> Mapping[str, str]:
        """What it needs of a device beyond training, and testing, a whole model that it is sent, with these options.

        Words of `bouquet.common.protocol.capabilities`, each with why, as a sentence that may name the option that does
        without it. Devices are asked what they can do before they are sent anything.
        """
        return {}

    def wants_late(self, state: State) -> bool:
        """Whether a reply to this round may come in a later one, of a method that takes any; else it is waited for."""
        return True

    def trained_record(self, reply: ClientReply) -> str:
        """Of what its client was sent, the record with the model that it trained for this reply; '' for none."""
        return protocol.ARRAYS

    def record(self, state: State) -> dict[str, Any]:
        """What the method adds to the record of a round, as JSON."""
        return {}


def count_moved(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How many clients are in another cluster ``after`` than ``before``; one that was in none has not moved."""
    return sum(before.get(client, cluster) != cluster for client, cluster in after.items())


def one_model(vector: Vector, **instruction: Any) -> Instruction:
    """The instruction that sends one whole model (d,); keywords are those of `bouquet.common.protocol.Instruction`.

    Examples
    --------
    >>> bouquet.one_model(np.zeros(6, dtype=np.float32)).is_plain
    True
    """
    return Instruction(models={protocol.ARRAYS: Payload(vector)}, **instruction)
