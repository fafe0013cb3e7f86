"""The process that stays in front of a SuperNode for months, and little else: ``bouquet client`` becomes it.

The command line brings PyTorch's settings, terminal colours and cryptography, some 50 MB that a device would hold on to
for nothing. So that process replaces itself, under its own process id and with what it found out as one JSON argument.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from client.supernode.launcher import SuperNodeSettings, run_supernode_foreground
from client.trust.policy import AppTrust
from common.errors import BouquetError
from common.system.log_file import stamp

PATHS = ("state_dir", "root_certificates", "private_key")
ALLOWED = ("hashes", "models", "data", "procedures", "signers")  # of an `AppTrust`: sets of names
INTERRUPTED = 130


def become_foreground(settings: SuperNodeSettings, wait: float | None) -> NoReturn:
    """Replace this process by one that runs the SuperNode; see `run_supernode_foreground`."""
    allowed = {name: sorted(getattr(settings.trust, name)) for name in ALLOWED}
    rest = {"anything": settings.trust.anything, "memory": settings.trust.memory}
    values = asdict(settings) | {"trust": allowed | rest}
    text = json.dumps({"wait": wait, "settings": values}, default=str)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "client.supernode.foreground", text])


def read(text: str) -> tuple[SuperNodeSettings, float | None]:
    """What `become_foreground` wrote."""
    given: dict[str, Any] = json.loads(text)
    values = given["settings"]
    values |= {name: Path(values[name]) for name in PATHS if values[name] is not None}
    trust = values["trust"]
    memory = None if trust["memory"] is None else Path(trust["memory"])
    names = {name: frozenset(trust[name]) for name in ALLOWED}
    values["trust"] = AppTrust(anything=trust["anything"], memory=memory, **names)
    return SuperNodeSettings(**values), given["wait"]


def main(text: str) -> int:
    """Run it to its end; the exit status is that of ``bouquet``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings, wait = read(text)
    try:
        run_supernode_foreground(settings, wait=wait, report=lambda line: print(stamp(line), flush=True))
    except BouquetError as error:
        print(f"bouquet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bouquet: stopped.", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
