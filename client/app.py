"""The ClientApp: Flower's entry points on a device, ``bouquet.client.app:app``."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from bouquet.client import device_log
from bouquet.client.context import ClientContext
from bouquet.common import protocol
from bouquet.common.errors import SAYS_MORE, BouquetError, NotNow
from bouquet.common.protocol.error_replies import OwnerRefusal, refusal
from bouquet.common.protocol.records import config_of
from bouquet.common.settings import Settings
from bouquet.common.texts import plain

LONGEST_NOTICE = 500
Answer = Callable[[Message, ClientContext], Message]


def make_client_app(settings: Settings | None = None, state_folder: Path | None = None) -> ClientApp:
    """Build the ClientApp.

    Without ``settings`` they are read from Flower's run config. ``state_folder`` holds a folder of state per client
    in a simulation; a real device is given its own by ``state-dir`` in its node config.
    """
    client_app = ClientApp()
    tell = device_log.say if state_folder is None else device_log.silent

    def answer(message: Message, context: Context, how: Answer) -> Message:
        try:
            own = settings or Settings.from_run_config(context.run_config)
            node = ClientContext(own, context, state_folder, state_folder is None, device_log.number_of(message) or 0)
            return how(message, node)
        except NotNow as later:
            device_log.not_now(message, str(later), tell)
            return refusal(message, later)
        except BouquetError as error:
            # As an error reply, so that the server can name client and reason.
            device_log.failed(message, str(error), tell)
            if state_folder is not None:  # in a simulation nothing is hidden from anybody
                error.public = str(error)
            return refusal(message, error)
        except Exception as error:  # a bug
            if state_folder is not None:
                raise
            traceback.print_exc()
            device_log.failed(message, f"{type(error).__name__}: {error}", tell)
            return refusal(message, f"{type(error).__name__} on the device. {SAYS_MORE}")

    def work(message: Message, node: ClientContext) -> Message:
        if node.watch is None:
            return unwatched(message, node)
        if (later := node.watch.refusal()) is not None:  # also where the SuperNode is not ours, and did not ask
            raise later
        from bouquet.client.training.pauses import pausing

        with pausing(node.watch.between_batches):
            return unwatched(message, node)

    def unwatched(message: Message, node: ClientContext) -> Message:
        # Imported here, because saying who one is must not cost the import of PyTorch.
        from bouquet.client.procedures.registry import check_measured, procedure
        from bouquet.client.rounds.blank_session import blank_session
        from bouquet.client.rounds.comparing import Comparing
        from bouquet.client.rounds.in_use import InUse
        from bouquet.client.rounds.mixture import Mixing
        from bouquet.client.rounds.session import Session
        from bouquet.client.trust.policy import ALLOWED_PROCEDURES, allowed_procedures

        trains = message.metadata.message_type == MessageType.TRAIN
        node.check_privacy(uploads=trains)
        session = Session.open(message, node)
        if node.settings.personal.serve != "own":
            session.observer = Mixing(session)
        if node.settings.personal.compare:
            session.observer = Comparing(session, session.observer)
        if node.is_real:
            session.observer = InUse(session, session.observer)
        # Whoever gives the settings in this process, as a simulation does, answers for what it runs.
        allowed = None if settings else allowed_procedures(str(node.config.get(ALLOWED_PROCEDURES, "")))
        module = procedure(session.received.procedure, allowed)
        handler = module.train if trains else module.evaluate
        if node.demands_privacy:
            check_measured(module, session.received)
        reply: Message
        try:
            device_log.began(node, message, session.run, session.precision.note, tell)
            reply = handler(session)
        except (OwnerRefusal, NotNow):
            raise
        except Exception as error:
            if not node.demands_privacy:
                raise
            # That it went wrong may depend on the data, and would leave with no noise on it.
            device_log.hidden(message, error, tell)
            reply = handler(blank_session(session))
        else:
            device_log.ended(node, message, session.metrics, tell)
            if trains and node.is_real and node.settings.run.is_endless:
                from bouquet.client.data.new_samples import worked

                about = node.state.store, node.context.run_id, node.data, node.settings.server.new_samples, time.time()
                with suppress(BouquetError):  # the round's own work is done, and its reply goes
                    worked(*about, session.received.round)
        if session.private is not None and trains and node.budget is not None:
            tell(f"Privacy: {node.budget.told()}.")
        return reply

    client_app.train()(lambda message, context: answer(message, context, work))
    client_app.evaluate()(lambda message, context: answer(message, context, work))

    def say_who(message: Message, node: ClientContext) -> Message:
        said = node.about
        try:
            node.check_privacy()
        except OwnerRefusal as error:  # before the server sends a model
            device_log.failed(message, str(error), tell)
            said = said | {protocol.REFUSES: str(error)}
        return protocol.reply(message, node.client, {}, config=said)

    client_app.query("identify")(lambda message, context: answer(message, context, say_who))

    @client_app.query("notice")
    def notice(message: Message, context: Context) -> Message:
        text = str(config_of(message.content, protocol.CONFIG).get(protocol.TEXT, ""))
        tell(f"The server says: {plain(text, LONGEST_NOTICE)}")
        return answer(message, context, lambda m, node: protocol.reply(m, node.client, {}))

    return client_app


app = make_client_app()
