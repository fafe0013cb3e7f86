"""The state of FedTSDP (`bouquet.strategies.fedtsdp.strategy`), and whose layers are lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.fedtsdp.hopkins import Weights


@dataclass(frozen=True)
class Observed:
    """What the server saw in the last round; for the record, and for whoever has to choose a threshold."""

    hopkins: float | None = None  # H, None with fewer than two usable models
    hopkins_deviation: float | None = None  # of a single draw
    clustered: bool = False  # whether this round formed the clusters anew
    divergences: list[float] = field(default_factory=list)  # quantiles of JS between two clients
    distances: list[float] = field(default_factory=list)  # quantiles of ‖w_i − w_j‖₂
    state_lost: list[str] = field(default_factory=list)  # clients that had lost their own layers


@dataclass(frozen=True)
class FedTSDPState:
    """All that survives a round."""

    centers: Matrix  # (K, d): means of whole models, of which only the shared layers are sent
    assignment: dict[str, int]  # C²: client → cluster
    shared_layers: float  # L_s
    weights: Weights  # W, one weight for each public sample
    above: int = 0  # rounds in a row with H above its threshold
    stage_one: dict[str, int] = field(default_factory=dict)  # of the last clustering
    stage_two: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # clients of the round in progress
    # Clients that were asked in an earlier round and have not replied since.
    missed_rounds: list[str] = field(default_factory=list)
    # Clients that had lost their own layers when they had been sent no others.
    lost_layers: list[str] = field(default_factory=list)
    observed: Observed = Observed()


def answered(state: FedTSDPState, replies: Replies) -> tuple[FedTSDPState, Replies]:
    """Who replied, and without those that had to begin from layers that were neither theirs nor their cluster's."""
    lost_layers = replies.lost - {*state.missed_rounds}  # the others had been sent a fallback
    replied = {*replies.clients}
    state = replace(
        state,
        asked=[],
        missed_rounds=sorted({*state.missed_rounds, *state.asked} - replied),
        lost_layers=sorted(({*state.lost_layers} - replied) | lost_layers),
        observed=Observed(state_lost=sorted(replies.lost)),
    )
    return state, replies.only(client not in lost_layers for client in replies.clients)
