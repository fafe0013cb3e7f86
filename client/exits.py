"""How a process of ours ends; that of a single message at once.

A device with ``--cold`` starts a process for each message. When that has answered, Python would take PyTorch's modules
apart for a second, while the process of the next message is loading the same ones: twice the memory, where there is
little.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

PROGRAM = "flwr-clientapp"


def exit_status(ending: SystemExit) -> int:
    """The status that a program which raises this ends with: Python's own rule."""
    return ending.code if isinstance(ending.code, int) else int(ending.code is not None)


def leave_at_once() -> None:
    """Have Flower's program for one message end when all is said and sent; anywhere else nothing happens."""
    if not sys.argv[0].endswith(PROGRAM):
        return
    from flwr.supernode.runtime import run_clientapp as runtime

    say_all_and_exit = runtime.flwr_exit
    if getattr(say_all_and_exit, "at_once", False):
        return

    def flwr_exit(*arguments: Any, **given: Any) -> NoReturn:
        status = 1
        try:
            say_all_and_exit(*arguments, **given)
        except SystemExit as ending:
            status = exit_status(ending)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    flwr_exit.at_once = True  # type: ignore[attr-defined]
    runtime.flwr_exit = flwr_exit
