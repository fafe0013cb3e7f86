"""DC-PFL: dynamic clustering, and layer-wise aggregation.

Liu, Huang, He, Cao: Dynamic Clustering for Personalized Federated Learning on Heterogeneous Edge Devices. 2025.
https://arxiv.org/abs/2508.01580

Equations and sections are the paper's. The clients train one model for all, whose divergence tells whom to group with
whom (`grouping.py`). At the end of each rapid decrease of the loss a split into smaller groups is tried on the devices
(`splitting.py`, `trial.py`; theirs is `device.py`). Layers whose copies hardly differ within a group travel only every
third round (`layerwise.py`).

Where it differs from the paper, on measurements in docs/decisions.md: the discrepancy is the cosine of the
updates (Eq. 3 as printed follows the data badly: a model's own minimum is one noisy weight that shifts all the others);
the scaling of Eq. 5 runs over the whole model and the ratio of Eq. 6 is 0.65 (layer by layer, with 0.1, no layer is
slow); the loss is smoothed over whole cycles of slow layers.
Where it is silent: an aggregation is the upload at the end of one round and the download at the start of the next, so
that slow layers are averaged as they were trained on the devices. Devices whose group a trial would leave as it is take
no part in it, because their two losses are equal. A device that comes after the first split joins the group whose model
lies in the direction of what it learned from the mean of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.common.protocol.capabilities import LAYERS, LOSS, TRAINING
from bouquet.strategies.base.method import Ask
from bouquet.strategies.base.options import Count, Share
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.dcpfl import PROCEDURE, TAKE, grouping, layerwise, splitting, trial
from bouquet.strategies.dcpfl.grouping import Discrepancy
from bouquet.strategies.dcpfl.layerwise import Scaling, instruction
from bouquet.strategies.dcpfl.state import DCPFLState, Group, rows_of, verdict_of
from bouquet.strategies.mathematics.robust import fences


@dataclass(eq=False, repr=False)
class DCPFL(MethodStrategy[DCPFLState]):
    """Groups that split as training goes on, and slow layers that stay on the devices.

    Parameters
    ----------
    discrepancy_rounds : int, default 5
        T_start, rounds of one model for all, over which the model discrepancy is averaged.
    loss_window : int, default 5
        s, rounds over which the loss is smoothed; with layer-wise aggregation, the next multiple of α. While slow
        layers stay on the devices the received model is partly a device's own, and its loss is lower: the loss rises
        and falls with α, and a window of 5 saw no elbow after the first split (docs/decisions.md).
    observe_rounds : int, default 3
        t_obv, rounds after which the end of a rapid decrease period is noticed.
    slow_ratio : float, default 0.65
        A layer is slow when D_{g,l} is below this fraction of their mean; 0.1 in the paper (Eq. 6).
    scaling : {"model", "layer"}, default "model"
        What S of Eq. 5 runs over; see `bouquet.strategies.dcpfl.layerwise.layer_discrepancies`.
    layer_wise : bool, default True
        False sends all layers in every round (NoLA).
    fixed_gamma : float | None, default None
        A γ̃ that is kept from T_start on, without trials (NoDC; 0.8 in the paper). None: dynamic clustering.
    validation_fraction : float, default 0.0
        Share of each device's training data that it never trains on, and on which a trial's losses are measured. 0
        measures them on the training data, as in the paper (docs/decisions.md).
    discrepancy : {"l1", "l1-own", "cosine"}, default "cosine"
        The distance of clients; see `bouquet.strategies.dcpfl.grouping.model_discrepancy`.
    min_group_samples : int | None, default None
        Training samples that a group has at least; None, as in the paper, divides to single devices.
    """

    state_class = DCPFLState
    tested_model = "received: that of its group, whose slow layers may be its own"
    clusters_chosen_on = "uploaded updates"

    # The paper's own, which no run here has changed; a subclass may have others.
    gamma_step: ClassVar[float] = 0.2  # λ, by which γ̃ is lowered for a splitting
    retry_rounds: ClassVar[int] = 6  # t_sp, rounds that the old structure stays after a refused splitting
    slow_factor: ClassVar[int] = 3  # α; slow layers are aggregated every α-th round

    discrepancy_rounds: Count = 5
    loss_window: Count = 5
    observe_rounds: Count = 3
    slow_ratio: Share = 0.65
    scaling: Scaling = "model"
    layer_wise: bool = True
    fixed_gamma: Share | None = None
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    discrepancy: Discrepancy = "cosine"
    min_group_samples: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_wise:
            self.loss_window = math.ceil(self.loss_window / self.slow_factor) * self.slow_factor

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> DCPFLState:
        """One group with the initial model."""
        return DCPFLState(list(layout.layers), initial[None, :].copy(), [Group()])

    def prepare(self, state: DCPFLState, round_: int, clients: Sequence[str], ask: Ask) -> DCPFLState:
        """A trial's first exchange (section III-C): both group models down, their losses after local training up.

        After ``UNDECIDED_TRIALS`` trials in a row that too few answered, the next one waits as after a refused one.
        """
        both = trial.both_models(state, round_, clients, self._held_out())
        if not both:
            return state
        state = trial.judged(state, round_, list(both), ask(both), self.min_replies)
        return state if state.undecided < trial.UNDECIDED_TRIALS else state.put_off(round_ + self.retry_rounds + 1)

    def plan(self, state: DCPFLState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """What `instruction` says; in a trial, the second exchange: send the model of the structure that won.

        A client that did not answer the trial's first message has not finished it: it sits the round out.
        """
        full, verdict = self._full_groups(state, round_), verdict_of(state, round_)
        trying, answered = (set(verdict.asked), set(verdict.clients)) if verdict else (set(), set())
        take = Instruction(procedure=PROCEDURE, config={TAKE: verdict is not None and verdict.accepted})
        return {
            client: take if client in trying else instruction(state, client, full, self._held_out())
            for client in clients
            if client not in trying or client in answered
        }

    def plan_evaluate(self, state: DCPFLState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The model that the client would go on from: its group's, with its own slow layers; alone, its own."""
        return {client: instruction(state, client, set()) for client in clients}

    def update(self, state: DCPFLState, round_: int, replies: Replies) -> DCPFLState:
        """The discrepancy (III-A), the trial's verdict (III-C), the means of layers (IV), the next split (III-C)."""
        usable = replies.only(client not in replies.lost for client in replies.clients)
        before, state = state, layerwise.with_whole_models(state, round_, usable, replies.lost)
        state = self._measure(state, round_, usable)  # Eq. 3
        state = self._observe(state, round_, usable)  # l(t)
        state = self._settle(state, round_)
        state = self._aggregate(state, round_, usable)  # Eq. 5, 6
        state = grouping.with_newcomers(before, state, round_, usable)
        return self._propose(state, round_, usable)  # Eq. 4

    def needs_scores(self) -> str:
        """For the rapid decrease of the loss, and for trials; a fixed γ̃ does without both."""
        if self.fixed_gamma is not None:
            return ""
        return "when to split, and whether a split is kept, is decided by losses that the devices report."

    def device_needs(self) -> Mapping[str, str]:
        """For the slow layers, for the losses, and for what is held out."""
        needs = {LAYERS: "slow layers stay on the device, and in a trial two models."}
        needs[LOSS] = "when to split, and whether a split is kept, is decided by training losses."
        needs[TRAINING] = "a trial takes two messages, and compares two models that were trained."
        return needs

    def record(self, state: DCPFLState) -> dict[str, Any]:
        """γ̃, l(t), r(t), the trial, what the groups' layers showed, and the group graph in the round it was made."""
        radii = splitting.radii_of_curvature([loss for _, loss in state.history], self.loss_window)
        return {**splitting.summary(state), "radius": radii[-1] if radii and np.isfinite(radii[-1]) else None}

    def _held_out(self) -> dict[str, protocol.Scalar]:
        """In every message that trains, so that what is held out for the trials is never trained on."""
        return protocol.holding_out(self.validation_fraction) if self.validation_fraction else {}

    # --- the steps of a round ----------------------------------------------------------------------------------

    def _full_groups(self, state: DCPFLState, round_: int) -> set[int]:
        """The groups that upload the whole model: every α-th round, and around a trial that might divide them."""
        if not self.layer_wise or round_ <= self.discrepancy_rounds:
            return set(range(len(state.groups)))
        full = {g for g, group in enumerate(state.groups) if self._is_due(group, round_)}
        if state.trial_round is not None and round_ + 1 >= state.trial_round:
            following = splitting.next_structure(state, self.gamma_step, self.min_group_samples or 0)
            full |= trial.divided(state, following.assignment) if following else set()
        return full

    def _is_due(self, group: Group, round_: int) -> bool:
        """Whether α rounds have passed since the group's last full round."""
        return round_ - group.full_round >= self.slow_factor

    def _measure(self, state: DCPFLState, round_: int, usable: Replies) -> DCPFLState:
        """Model discrepancy (Eq. 3) over the first T_start rounds; later only of pairs that did not meet in them."""
        first = round_ <= self.discrepancy_rounds
        everything = usable.layout.layers
        met = [row for row, reply in enumerate(usable.received) if reply.layers == everything]
        if state.gamma < 1 or not met or verdict_of(state, round_):
            return state
        W, origin = (usable.layout.parameters_of(m) for m in (rows_of(usable.W, met), state.centers[0]))
        clients = [usable.clients[row] for row in met]
        if first or grouping.lacks_meetings(state, clients):
            distances = grouping.model_discrepancy(W, origin, self.discrepancy)
            state = grouping.after_meeting(state, clients, distances, only_new=not first)
        elif state.graph_round is not None:
            return state
        made = round_ >= self.discrepancy_rounds and len(state.clients) > 1
        return replace(state, graph_round=round_ if made else None)

    def _observe(self, state: DCPFLState, round_: int, usable: Replies) -> DCPFLState:
        """l(t): the mean over clients of the loss of the model each was sent, on its training data.

        With `[protection]`, of losses within the fences of all.
        """
        losses = usable.metric(protocol.LOSS)
        if self.protection.aggregation.most_weight is not None and (known := np.isfinite(losses)).sum() > 2:
            losses[known] = np.clip(losses[known], *fences(losses[known, None]))
        if not np.isfinite(losses).any():
            return state
        return replace(state, history=[*state.history, (round_, float(np.nanmean(losses)))])

    def _settle(self, state: DCPFLState, round_: int) -> DCPFLState:
        """Take the new structure after a trial that it won; after one that it lost, wait t_sp rounds."""
        if self.fixed_gamma is not None:
            return splitting.fixed_structure(state, round_, self.fixed_gamma, self.min_group_samples or 0)
        verdict = verdict_of(state, round_)
        if verdict is None or state.proposal is None or not verdict.decided:
            return state
        if verdict.accepted:
            return replace(splitting.restructured(state, round_, state.proposal), period_start=len(state.history))
        return state.put_off(round_ + self.retry_rounds + 1)

    def _aggregate(self, state: DCPFLState, round_: int, usable: Replies) -> DCPFLState:
        """The mean of each group over the layers that its members sent, and Eq. 5 and 6 where they sent them all."""
        centers, whole = layerwise.group_means(state, usable, self.aggregation)
        groups = list(state.groups)
        for g, rows in whole.items():
            if len(rows) == 1:
                groups[g] = replace(groups[g], full_round=round_)
                continue
            discrepancies = layerwise.layer_discrepancies(
                rows_of(usable.W, rows), centers[g], usable.layout, self.scaling
            )
            apart = groups[g].rounds_apart(round_, state.layers)
            slow = groups[g].slow
            # Not around a trial: what is compared are copies of slow layers that have been apart for α rounds.
            if self.layer_wise and (round_ <= self.discrepancy_rounds or not slow or self._is_due(groups[g], round_)):
                slow = layerwise.slow_layers(discrepancies, self.slow_ratio, apart)
            groups[g] = Group(round_, slow, discrepancies, apart)
        return replace(state, centers=centers, groups=groups)

    def _propose(self, state: DCPFLState, round_: int, usable: Replies) -> DCPFLState:
        """Notice the end of a rapid decrease period, and make the models of the next structure for a splitting.

        They are means of whole models of this round, so where slow layers stayed on the devices the trial waits for a
        round in which they travel, which is the next one.
        """
        state = replace(state, proposal=None, proposed=None)
        if self.fixed_gamma is not None:
            return state
        if (following := splitting.next_structure(state, self.gamma_step, self.min_group_samples or 0)) is None:
            return state
        if state.trial_round is None:
            losses = [loss for _, loss in state.history]
            end = splitting.period_end(losses, self.loss_window, self.observe_rounds, state.period_start)
            if end is None:
                return replace(state, period_end=None)
            state = replace(state, trial_round=round_ + 1, period_end=state.history[end][0])
        assert state.trial_round is not None
        if round_ + 1 < state.trial_round:
            return state
        proposed = trial.proposed_models(state, following.assignment, usable, self.aggregation)
        following = replace(following, round=round_)
        return state if proposed is None else replace(state, proposal=following, proposed=proposed)
