"""What needs PyTorch for a moment, in a process of its own that ends: a server that waits for months does without.

``python -m bouquet.server.run.torch_worker check`` and ``initial`` read settings as JSON and answer with a pickle;
`check_settings` and `initial_parameters` start them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.server.run_folder import START

if TYPE_CHECKING:
    from bouquet.server.initial_model.seed_model import PlainStart
    from bouquet.server.initial_model.torch_model import Start


Parameters = tuple[dict[str, NDArray[Any]], frozenset[str]]


@dataclass
class Checked:
    """Settings that are good. ``made`` is the initial model of a new run, where the seed alone makes it."""

    made: Parameters | None = field(default=None, repr=False)


def starting_point(settings: Settings, resumed: Path | None, made: Parameters | None = None) -> Start | PlainStart:
    """As `torch_model.starting_point`, without PyTorch in this process where the seed alone makes the model.

    ``made`` is what a check of the same settings has made of it.
    """
    from bouquet.server.initial_model.seed_model import (
        PlainStart,  # Flower, which the worker for the model does without
    )

    if not _is_of_the_seed(settings, resumed):
        from bouquet.server.initial_model import torch_model

        return torch_model.starting_point(settings, resumed)
    return PlainStart(settings, *(made or initial_parameters(settings)))


def check_settings(settings: Settings, resumed: Path | None = None) -> Checked:
    """Raises `BouquetError` unless strategy and model can be made; ``resumed`` is the folder of a run that goes on."""
    return Checked(_ask("check", settings, *([] if resumed is None else [str(resumed)])))


def initial_parameters(settings: Settings) -> Parameters:
    """The initial model's ``state_dict`` in NumPy, and which of its tensors are parameters. Raises `BouquetError`."""
    parameters: Parameters = _ask("initial", settings)
    return parameters


def _is_of_the_seed(settings: Settings, resumed: Path | None) -> bool:
    more = settings.model.weights or settings.model.frozen
    return not more and (resumed is None or not (resumed / START).exists())


def _ask(what: str, settings: Settings, *more: str) -> Any:
    # The same modules as here: those of an app that Flower has unpacked, or of a user's folder.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bouquet.server.run.torch_worker", what, *more],
        input=settings.model_dump_json().encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    if done.returncode:
        raise BouquetError(f"The settings could not be checked: the process that should ended with {done.returncode}.")
    answer, reason = pickle.loads(done.stdout)
    if reason is not None:
        raise BouquetError(reason)
    return answer


def _answer(settings: Settings, what: str, resumed: str = "") -> Any:
    if what == "check":
        from bouquet.server.initial_model import torch_model
        from bouquet.server.run.build import build_strategy

        goes_on = Path(resumed) if resumed else None
        begun = torch_model.starting_point(settings, goes_on)
        build_strategy(settings, begun)
        return None if goes_on or not _is_of_the_seed(settings, None) else (begun.arrays, begun.parameters)
    from bouquet.common.model.build import initial_model, parameter_names, state_arrays

    model = initial_model(settings)
    return state_arrays(model.state_dict()), parameter_names(model)


def main() -> None:
    """Answer on standard output, where nothing else may write."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        answer, reason = None, None
        try:
            answer = _answer(Settings.from_json(sys.stdin.buffer.read()), *sys.argv[1:])
        except BouquetError as error:
            reason = str(error)
        pickle.dump((answer, reason), output)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # who asked hears of it, too
        main()
