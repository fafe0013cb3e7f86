"""Where empty clusters are put: to the smaller half of a cluster that clearly falls apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bouquet.strategies.gradient_loss.answers import Answers
from bouquet.strategies.gradient_loss.division import clearest, compare_steps, divide
from bouquet.strategies.gradient_loss.state import GradientLossState


def relocated(state: GradientLossState, answers: Answers, empty: Sequence[int]) -> tuple[GradientLossState, Answers]:
    """The state whose ``empty`` clusters began where divided ones were, and who trained them."""
    parameters = answers.replies.layout.parameters_of
    apart = compare_steps(state.apart, answers.trained, parameters(answers.replies.W), parameters(state.centers))
    members: dict[int, list[str]] = {cluster: [] for cluster in range(len(state.centers))}
    for client, cluster in answers.trained.items():
        members[cluster].append(client)
    divisions = {cluster: divide(apart, clients) for cluster, clients in members.items()}
    origins = state.centers.copy()
    assignment, devices, trained = dict(state.assignment), dict(state.devices), dict(answers.trained)
    relocations = list(state.relocations)
    for cluster, (origin, division) in zip(empty, clearest(divisions), strict=False):
        origins[cluster] = state.centers[origin]
        relocations.append((state.version + 1, cluster, origin))
        # With "adaptive", both halves are to compare all clusters again.
        devices |= {c: replace(devices[c], stable=0) for c, its in assignment.items() if its == origin}
        trained |= dict.fromkeys(division.smaller, cluster)
        assignment |= dict.fromkeys(division.smaller, cluster)
    silhouettes = [None if division is None else division.silhouette for division in divisions.values()]
    divided = len(relocations) - len(state.relocations)
    state = replace(
        state,
        previous=origins,
        assignment=assignment,
        devices=devices,
        last={**state.last, "divided": divided, "silhouettes": silhouettes},
        total=apart.total,
        meetings=apart.meetings,
        met=apart.clients,
        relocations=relocations,
    )
    return state, replace(answers, trained=trained)
