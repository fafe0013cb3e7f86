"""What needs PyTorch for a moment, in a process of its own that ends: a server that waits for months does without.

``python -m server.run.torch_worker check`` and ``initial`` read settings as JSON and answer with a pickle;
`check_settings` and `initial_parameters` start them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from common.errors import BouquetError
from common.settings import Settings, parse_settings
from server.run_folder import START

if TYPE_CHECKING:
    from server.initial_model.seed_model import PlainStart
    from server.initial_model.torch_model import Start


Parameters = tuple[dict[str, NDArray[Any]], frozenset[str]]


def starting_point(settings: Settings, resumed: Path | None = None) -> Start | PlainStart:
    """As `torch_model.starting_point`, without PyTorch in this process where the seed alone makes the model."""
    from server.initial_model.seed_model import PlainStart  # Flower, which the worker for the model does without

    more = settings.model.weights or settings.model.frozen
    if more or (resumed is not None and (resumed / START).exists()):
        from server.initial_model import torch_model

        return torch_model.starting_point(settings, resumed)
    return PlainStart(settings, *initial_parameters(settings))


def check_settings(settings: Settings, resumed: Path | None = None) -> int:
    """How many bytes the model takes that travels, each value as a float32.

    Raises `BouquetError` unless strategy and model can be made as the settings say. ``resumed`` is the folder of a run
    that goes on.
    """
    values: int = _ask("check", settings, *([] if resumed is None else [str(resumed)]))
    return 4 * values


def initial_parameters(settings: Settings) -> Parameters:
    """The initial model's ``state_dict`` in NumPy, and which of its tensors are parameters. Raises `BouquetError`."""
    found: Parameters = _ask("initial", settings)
    return found


def _ask(what: str, settings: Settings, *more: str) -> Any:
    # The same modules as here: those of an app that Flower has unpacked, or of a user's folder.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "server.run.torch_worker", what, *more],
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
        from server.initial_model import torch_model
        from server.run.build import build_strategy

        begun = torch_model.starting_point(settings, Path(resumed) if resumed else None)
        build_strategy(settings, begun)
        return begun.layout.dim
    from common.model.build import initial_model, parameter_names, state_arrays

    model = initial_model(settings)
    return state_arrays(model.state_dict()), parameter_names(model)


def main() -> None:
    """Answer on standard output, where nothing else may write."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        answer, reason = None, None
        try:
            answer = _answer(parse_settings(json.load(sys.stdin), {}), *sys.argv[1:])
        except BouquetError as error:
            reason = str(error)
        pickle.dump((answer, reason), output)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # who asked hears of it, too
        main()
