"""What a device's log says: who it is, what it holds, each round, and why it was left out of one.

A device stands where nobody looks for months, so its log must answer by itself: is it connected, what did it train
on, what came of it, what went wrong. Printed by the process that does the work; times are put before the lines where
they come together (`bouquet.common.system.log_file.stamp`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Message, MessageType

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.metrics import written
from bouquet.common.model_selection import served, served_text
from bouquet.common.protocol.names import CHOSEN
from bouquet.common.protocol.records import config_of
from bouquet.common.task.score import Score
from bouquet.common.texts import of_rounds, plain

if TYPE_CHECKING:
    from bouquet.client.context import ClientContext

Say = Callable[[str], None]
SHOWN_CLASSES = 20
LONGEST_LINE = 2000  # a line of class names, of which each is short


def say(text: str) -> None:
    """A line of the log; what of it is the server's word cannot make it two, nor steer the terminal."""
    print(plain(text, LONGEST_LINE), flush=True)


def silent(text: str) -> None:
    """For a simulation, where a hundred devices share one screen."""


def number_of(message: Message) -> int | None:
    """The number of the round that a message is of; None where it says none."""
    given = config_of(message.content, protocol.CONFIG).get(protocol.ROUND) if message.has_content() else None
    return given if isinstance(given, int) else None


def round_of(message: Message) -> str:
    """``Round 3`` or ``Test after round 3``, whichever the message asks for."""
    number = number_of(message)
    if message.metadata.message_type == MessageType.TRAIN:
        return f"Round {number}" if number is not None else "A round"
    return f"Test after round {number}" if number is not None else "A test"


def began(node: ClientContext, message: Message, run: str, precision: str, tell: Say) -> None:
    """A round begins; what the device holds is said before it, once for each run and whenever it has changed."""
    if tell is silent:
        return
    data = node.data
    counts = data.samples_by_class() if node.task.has_classes else []
    classes = node.class_names(len(counts))
    shown = [f"{name} {count or 'none'}" for name, count in zip(classes, counts, strict=True)]
    more = f" and {len(shown) - SHOWN_CLASSES} classes more" if len(shown) > SHOWN_CLASSES else ""
    by_class = f"; {', '.join(shown[:SHOWN_CLASSES])}{more}" if shown else ""
    holds = f"Data: {len(data.train_y)} samples to train on, {len(data.test_y)} to test on{by_class}."
    options = (precision,) if node.settings.train.mixed_precision else ()
    for line in (holds, data.span, *data.notes, *node.data_warnings, *options):
        if line and node.state.is_news(f"{run} {line.partition(':')[0]}", line):
            tell(line)
    tell(f"{round_of(message)}{of_rounds(node.settings.run.rounds)} begins ({node.settings.run.name}).")


def ended(node: ClientContext, message: Message, metrics: Mapping[str, Any], tell: Say) -> None:
    """A round has ended, with its numbers, also those that do not leave; after the last test, the run, too."""
    if tell is silent:
        return
    tell(f"{round_of(message)} ended: {_numbers(metrics, node.task.score)}.")
    if message.metadata.message_type == MessageType.EVALUATE and number_of(message) == node.settings.run.rounds:
        tell(f"The run {node.settings.run.name} has ended. This device's model stays; it waits for the next run.")


def failed(message: Message, reason: str, tell: Say) -> None:
    """Why the device is left out of a round."""
    what = f"{round_of(message)} failed" if message.metadata.message_type != protocol.IDENTIFY else "Failed"
    tell(f"{what}, and the run goes on without this device: {reason}")


def not_now(message: Message, reason: str, tell: Say) -> None:
    """Why the device does not work now: its owner's conditions."""
    tell(f"{round_of(message)} goes on without this device, as its owner has it: {reason}. What it kept stays.")


def hidden(message: Message, error: Exception, tell: Say) -> None:
    """Why a device whose owner demands noise sends noise alone: nobody else may know."""
    kind = "" if isinstance(error, BouquetError) else f"{type(error).__name__}: "
    tell(f"{round_of(message)} failed; the server is sent noise alone, and is not told: {kind}{error}")


def _numbers(metrics: Mapping[str, Any], score: Score) -> str:
    tested = score.of_method in metrics  # then the score itself is of what is in use
    received = next((name for name in (score.received, score.of_method) if name in metrics), score.key)
    named = (
        (protocol.LOSS, "loss {}", written),
        (protocol.TRAIN_LOSS, "{} while training", written),
        (received, f"{score.label} {{}} as received", score.text),
        (score.trained, "{} after training", score.text),
        (score.key if tested else score.own, "{} in use", score.text),
        (score.alone, "{} alone", score.text),
        (CHOSEN, "the model of cluster {} fits it best", str),
        (protocol.NAIVE, "{} foretold without a model", score.text),
    )
    there = [one for one in named if isinstance(metrics.get(one[0]), int | float)]
    texts = [text.format(shown(metrics[name])) for name, text, shown in there]
    if serves := served_text(served(metrics)):
        texts.append(f"serves {serves}")
    return ", ".join(texts) or f"{metrics.get(protocol.NUM_EXAMPLES, 0)} samples"
