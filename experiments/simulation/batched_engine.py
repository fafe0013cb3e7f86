"""Simulating clients whose local training is one batched program: the engine ``batched``.

Each client's message is answered by the code that a device runs, in a thread of its own. Where it comes to local SGD it
stops, until all others have come so far or have ended; then `bouquet.experiments.simulation.batched_sgd.train_many`
trains for all of them, and they go on. Only one thread runs at any time, so that clients see each other as little as
when they come one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from logging import INFO
from typing import Generic, TypeVar

from flwr.common.logger import log

from bouquet.client.training import delegate
from bouquet.client.training.delegate import LocalTraining, Trained
from bouquet.common.errors import BouquetError
from bouquet.experiments.simulation.batched_sgd import knows_terms, train_many, why_not

Result = TypeVar("Result")


class Batch(Generic[Result]):
    """Answers several messages at a time, as `InlineGrid` asks for them; trains in ``threads``."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._alone: str | None = None  # why these models are trained one by one; None before the first was seen

    def __call__(self, work: Sequence[Callable[[], Result]]) -> list[Result]:
        """What each of the functions returns; local SGD in them is done together."""
        clients = [_Client(partial(self._answer, do)) for do in work]
        waiting = clients
        while waiting:
            for client in waiting:
                client.resume()
            waiting = [client for client in waiting if client.task is not None]
            tasks = [client.task for client in waiting if client.task is not None]
            for client, outcome in zip(waiting, train_many(tasks, self.threads) if tasks else [], strict=True):
                client.outcome = outcome
        return [client.result() for client in clients]

    def _answer(self, do: Callable[[], Result], client: _Client[Result]) -> Result:
        delegate.trainer.set(partial(self._train, client))
        return do()

    def _train(self, client: _Client[Result], task: LocalTraining) -> Trained | None:
        if self._alone is None:
            self._alone = why_not(task)
            if self._alone:
                log(INFO, "clients are trained one by one, although the engine is 'batched': %s", self._alone)
        return client.wait_for(task) if not self._alone and knows_terms(task) else None


class _Client(Generic[Result]):
    """A function in a thread that runs between `resume` and its next `wait_for`, or its end, and at no other time."""

    def __init__(self, do: Callable[[_Client[Result]], Result]) -> None:
        self.task: LocalTraining | None = None
        self.outcome: Trained | BouquetError | None = None
        self._do = do
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._returned: list[Result] = []
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Let it run until it stops."""
        self._go.release()
        self._stopped.acquire()

    def wait_for(self, task: LocalTraining) -> Trained:
        """Stop here, and come back with what became of the task. Raises `BouquetError` as local training does."""
        self.task = task
        self._stopped.release()
        self._go.acquire()
        self.task, outcome = None, self.outcome
        if isinstance(outcome, BouquetError):
            raise outcome
        assert outcome is not None
        return outcome

    def result(self) -> Result:
        """What the function returned, once it has ended. Raises what it raised."""
        self._thread.join()
        if self._raised is not None:
            raise self._raised
        return self._returned[0]

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._returned.append(self._do(self))
        except BaseException as error:  # raised again where the result is asked for
            self._raised = error
        finally:
            self.task = None
            self._stopped.release()
