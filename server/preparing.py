"""What the settings make of a run: its strategy, what devices are told about training, and what it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord

from common import choosing
from common.codec import Codec
from common.errors import BouquetError
from common.initial import model_shape
from common.settings import Settings
from server.diagnosis import Expected
from strategies.clustered import ClusteredStrategy
from strategies.compression import Compression
from strategies.exchange import Patience
from strategies.late import LateReplies
from strategies.mathematics.robust import Aggregation
from strategies.privacy import PrivacyLedger, check_private
from strategies.protection import Protection
from strategies.registry import create_strategy
from strategies.replies import Replies
from strategies.sampling import fewest_replies, sample_size

if TYPE_CHECKING:
    from server.apart import PlainStart
    from server.start import Start


def build_strategy(settings: Settings, start: Start | PlainStart | None = None) -> ClusteredStrategy[Any]:
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
    strategy.round_patience = Patience(server.round_timeout, server.straggler_factor, server.straggler_grace)
    protection = settings.protection
    strategy.protection = Protection(Aggregation(protection.aggregation, protection.trim), protection.limit_norm)
    if strategy.wants_public_data:
        from server.inference import public_data  # imports PyTorch

        strategy.public = public_data(settings, start.model)
    strategy.parameter_names = start.parameters
    strategy.joins_tensors = True
    check_private(strategy, settings.strategy.name, settings.privacy, start.layout)
    if settings.privacy.is_on:
        strategy.privacy = PrivacyLedger(settings.privacy)
    if server.late_replies == "next":
        if not strategy.takes_late_replies:
            raise BouquetError(
                f"Setting server.late_replies = 'next' does not fit {settings.strategy.name!r}: it does not say that "
                "it can use a model that was trained from what was sent a round before; take 'drop'."
            )
        strategy.late = LateReplies()
    wire = settings.wire
    if wire.compresses:
        if reason := strategy.needs_exact(wire.down):
            raise BouquetError(f"Setting wire.down = {wire.down!r} does not fit {settings.strategy.name!r}: {reason}")
        strategy.compression = Compression(Codec(wire.up, wire.keep), Codec(wire.down, wire.keep), settings.run.seed)
    strategy.draw_model = start.draw
    strategy.delivery = start.delivery()
    return strategy


def plain_starting_point(settings: Settings) -> Start:
    """`server.start.starting_point`, which imports PyTorch, of a run that begins."""
    from server.start import starting_point

    return starting_point(settings)


def train_config(settings: Settings, round_: int, prior: Sequence[float] = ()) -> ConfigRecord:
    """What every device is told about local training in a round, and of the fleet where devices choose."""
    train = settings.train
    values: dict[str, Any] = {
        "local-epochs": train.local_epochs,
        "batch-size": train.batch_size,
        "learning-rate": train.learning_rate * train.learning_rate_decay ** (round_ - 1),
        "momentum": train.momentum,
        "weight-decay": train.weight_decay,
    }
    if train.max_gradient_norm is not None:
        values["max-gradient-norm"] = train.max_gradient_norm
    if prior:
        values[choosing.PRIOR] = list(prior)
    return ConfigRecord(values)


def fleet_prior(replies: Replies | None) -> list[float]:
    """What the devices that choose reported of a round, pooled, as the numbers of a message; empty where none does."""
    found = [choosing.from_report(reply.config.get(choosing.REPORT)) for reply in replies.received] if replies else []
    reports = [report for report in found if report is not None]
    return choosing.to_prior(choosing.pool(reports)) if reports else []


def too_few(settings: Settings, connected: int) -> list[str]:
    """A warning where no round can have ``server.min_replies`` replies of the clients that are connected."""
    server = settings.server
    size = sample_size(connected, server.fraction_train, 1)
    if fewest_replies(server.min_replies, size) <= size:
        return []
    return [
        f"server.min_replies = {server.min_replies}, but of the {connected} connected clients {size} train in a round "
        f"(server.fraction_train = {server.fraction_train:g}): until more connect, no round changes anything."
    ]


def what_to_expect(settings: Settings, strategy: ClusteredStrategy[Any]) -> Expected:
    """What the run is judged by; a K that tunes itself, or is chosen, may be 1."""
    wanted = 1 if getattr(strategy, "tuner", None) else getattr(strategy, "num_clusters", 1)
    train = settings.train
    return Expected(
        classes=model_shape(settings)[1],
        learning_rate=train.learning_rate,
        max_gradient_norm=train.max_gradient_norm,
        num_clusters=wanted if isinstance(wanted, int) else 1,
    )
