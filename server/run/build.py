"""The strategy that the settings make, and what a run of it is judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bouquet.common.errors import BouquetError
from bouquet.common.model.build import model_shape
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.privacy_accounting import check_model
from bouquet.common.settings import Settings
from bouquet.common.task.task import has_own_units, task_of
from bouquet.server.monitoring.diagnosis import Expected
from bouquet.strategies.base.exchange import Patience
from bouquet.strategies.base.filters.canary import Canary
from bouquet.strategies.base.filters.compression import Compression
from bouquet.strategies.base.filters.looking import Looking
from bouquet.strategies.base.filters.placing import Placing
from bouquet.strategies.base.filters.privacy import PrivacyLedger
from bouquet.strategies.base.filters.serving import FleetVote
from bouquet.strategies.base.filters.trial import Rivals
from bouquet.strategies.base.late_replies import LateReplies
from bouquet.strategies.base.protection import Protection
from bouquet.strategies.base.sampling import fewest_replies, sample_size
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.base.work_budget import WorkBudget
from bouquet.strategies.mathematics.robust import Aggregation
from bouquet.strategies.registry import create_strategy

STRAGGLER_FACTOR = 5.0  # the missing get so many times as long as half of the replies took

if TYPE_CHECKING:
    from bouquet.server.initial_model.seed_model import PlainStart
    from bouquet.server.initial_model.torch_model import Start


def build_strategy(settings: Settings, start: Start | PlainStart | None = None) -> MethodStrategy[Any]:
    """The strategy that the settings name, with the server's sampling and patience, for what they start from."""
    server = settings.server
    start = start or plain_starting_point(settings)
    strategy = create_strategy(
        settings.strategy.name,
        settings.strategy.options,
        fraction_train=server.fraction_train,
        fraction_evaluate=server.fraction_evaluate,
        min_train_nodes=1,
        min_evaluate_nodes=1,
        min_available_nodes=1,
        seed=settings.run.seed,
        min_replies=server.min_replies,
        wait_timeout=server.wait_for_clients,
        round_timeout=server.round_timeout,
        identify=True,
    )
    strategy.round_patience = Patience(server.round_timeout, STRAGGLER_FACTOR, server.straggler_grace)
    protection = settings.protection
    strategy.protection = Protection(Aggregation(protection.aggregation), protection.limit_norm)
    if not task_of(settings).has_classes and (reason := strategy.needs_classes()):
        raise BouquetError(
            f"Setting strategy.name = {settings.strategy.name!r} does not fit task.kind = {settings.task.kind!r}: "
            f"{reason}"
        )
    if strategy.wants_public_data:
        from bouquet.server.public_data.inference import public_data  # imports PyTorch

        strategy.public = public_data(settings, start.model)
    strategy.parameter_names = start.parameters
    if settings.privacy.is_on:
        check_private(strategy, settings, start.layout)
        strategy.filters.append(PrivacyLedger(settings.privacy))
    else:
        if strategy.places_by_loss:
            strategy.filters.append(Placing())
        if getattr(strategy, "num_clusters", None) == "auto":
            strategy.filters.append(
                # Before the first round there are no groups.
                Rivals(lambda client: (groups := getattr(strategy.state, "groups", None)) and groups.model_for(client))
            )

    def count_clusters() -> int:
        return 0 if strategy.state is None else len(strategy.centers(strategy.state))

    if settings.personal.serve == "auto":
        strategy.filters.append(FleetVote(count_clusters))
    if serves_strangers(strategy, settings):
        strategy.filters.append(
            Looking(lambda: {} if strategy.state is None else strategy.assignment(strategy.state), count_clusters)
        )
    if delivery := start.delivery():
        strategy.filters.append(delivery)
    if server.buffer < 1:
        if not strategy.takes_late_replies:
            raise BouquetError(
                f"Setting server.buffer = {server.buffer:g} does not fit {settings.strategy.name!r}: it does not say "
                "that it can use a model that was trained from what was sent rounds before; take 1."
            )
        strategy.late = LateReplies(server.buffer)
    if settings.train.budget == "fleet":
        check_budget(strategy, settings)
        strategy.budget = WorkBudget(settings.train.local_epochs, settings.train.batch_size)
    wire = settings.wire
    if wire.compresses:
        if reason := strategy.needs_exact(wire.down):
            raise BouquetError(f"Setting wire.down = {wire.down!r} does not fit {settings.strategy.name!r}: {reason}")
        codecs = wire.up, wire.down
        strategy.filters.append(Compression(*codecs, settings.run.seed))
    strategy.draw_model = start.draw
    return strategy


def serves_strangers(strategy: MethodStrategy[Any], settings: Settings) -> bool:
    """Whether a cluster's model can be used where nobody trained: not in units of a device's own, nor if kept there."""
    return not (settings.privacy.is_on or has_own_units(settings) or strategy.models_on_devices_only)


def add_canary(strategy: MethodStrategy[Any], settings: Settings) -> None:
    """Where a run has no end, have devices that may say how good their models are take them as `Canary` has it.

    In a run that ends, the models of its last round are what it was for.
    """
    if settings.run.is_endless and not settings.privacy.is_on:
        strategy.filters.insert(
            0, Canary(lambda: {} if strategy.state is None else strategy.assignment(strategy.state))
        )


def check_private(method: MethodStrategy[Any], settings: Settings, layout: ParameterLayout) -> None:
    """Raise `BouquetError`, naming setting and reason, where method or model cannot work under `[privacy]`."""
    check_model(layout)
    if settings.privacy.withholds and (reason := method.needs_scores()):
        raise BouquetError(
            f"Setting privacy.scores = 'withhold' does not fit {settings.strategy.name!r}: {reason} With "
            "'send' they leave the device exactly, and (ε, δ) is of the models alone."
        )


def check_budget(method: MethodStrategy[Any], settings: Settings) -> None:
    """Raise `BouquetError`, naming setting and reason, where devices cannot be told their steps, or tell a speed."""
    said = "Setting train.budget = 'fleet' does not fit"
    if not method.takes_steps:
        raise BouquetError(
            f"{said} {settings.strategy.name!r}: its devices do not train by local SGD alone; take 'epochs'."
        )
    if settings.privacy.withholds:
        raise BouquetError(f"{said} privacy.scores = 'withhold': devices do not say how many samples they have.")


def plain_starting_point(settings: Settings) -> Start:
    """`bouquet.server.initial_model.torch_model.starting_point`, which imports PyTorch, of a run that begins."""
    from bouquet.server.initial_model.torch_model import starting_point

    return starting_point(settings)


def too_few(settings: Settings, clusters: int, connected: int) -> list[str]:
    """Warnings where of the connected clients no round can have enough replies, or there are more clusters."""
    server, warnings = settings.server, list[str]()
    size = sample_size(connected, server.fraction_train, 1)
    if fewest_replies(server.min_replies, size) > size:
        warnings.append(
            f"server.min_replies = {server.min_replies}, but of the {connected} connected clients {size} train in a "
            f"round (server.fraction_train = {server.fraction_train:g}): until more connect, no round changes anything."
        )
    if clusters > connected:
        warnings.append(
            f"strategy.num_clusters = {clusters}, but {connected} clients are connected: until more connect, there are "
            "no such clusters."
        )
    return warnings


def what_to_expect(settings: Settings, strategy: MethodStrategy[Any]) -> Expected:
    """What the run is judged by."""
    train, task = settings.train, task_of(settings)
    return Expected(
        score=task.score,
        classes=model_shape(settings)[1] if task.has_classes else 0,
        learning_rate=train.learning_rate,
        max_gradient_norm=train.max_gradient_norm,
        num_clusters=strategy.expected_clusters,
    )
