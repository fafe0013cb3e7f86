"""What needs PyTorch for a moment, in a process of its own that ends: a server that waits for months does without.

``python -m bouquet.server.run.torch_worker`` reads settings as JSON and answers with a pickle; `check_settings` starts
it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings

if TYPE_CHECKING:
    from bouquet.server.initial_model.seed_model import PlainStart
    from bouquet.server.initial_model.torch_model import Start

# A model's ``state_dict`` in NumPy, and which of its tensors are parameters.
Parameters = tuple[dict[str, NDArray[Any]], frozenset[str]]


def starting_point(settings: Settings, resumed: Path | None, made: Parameters | None) -> Start | PlainStart:
    """As `torch_model.starting_point`, without PyTorch in this process where a check of the settings made the model."""
    from bouquet.server.initial_model.seed_model import PlainStart  # Flower, which the worker does without

    if made is not None:
        return PlainStart(settings, *made)
    from bouquet.server.initial_model import torch_model

    return torch_model.starting_point(settings, resumed)


def check_settings(settings: Settings, resumed: Path | None = None) -> Parameters | None:
    """The initial model, where the seed alone makes it; ``resumed`` is the folder of a run that goes on.

    Raises `BouquetError` unless strategy and model can be made.
    """
    # The same modules as here: those of an app that Flower has unpacked, or of a user's folder.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bouquet.server.run.torch_worker", *([] if resumed is None else [str(resumed)])],
        input=settings.model_dump_json().encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    if done.returncode:
        raise BouquetError(f"The settings could not be checked: the process that should ended with {done.returncode}.")
    made: Parameters | None
    made, reason = pickle.loads(done.stdout)
    if reason is not None:
        raise BouquetError(reason)
    return made


def check(settings: Settings, resumed: Path | None) -> Parameters | None:
    """`check_settings`, in this process."""
    from bouquet.server.initial_model.torch_model import starting_point
    from bouquet.server.run.build import build_strategy

    begun = starting_point(settings, resumed)
    build_strategy(settings, begun)
    return None if begun.about else (begun.arrays, begun.parameters)


def main() -> None:
    """Answer on standard output, where nothing else may write."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        made, reason = None, None
        try:
            made = check(Settings.from_json(sys.stdin.buffer.read()), Path(sys.argv[1]) if sys.argv[1:] else None)
        except BouquetError as error:
            reason = str(error)
        pickle.dump((made, reason), output)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # who asked hears of it, too
        main()
