"""Programs that are started: finding them, their environment, and what they print."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from common.errors import BouquetError
from common.system.flower_release import REQUIREMENT
from common.system.log_file import OWN_TIME
from common.texts import CONTROLS

ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def find_program(name: str) -> str:
    """Absolute path of an installed program: beside this Python, else on PATH; an error says what to install."""
    beside = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    found = shutil.which(name, path=os.pathsep.join(beside)) or shutil.which(name)
    if found is None:
        raise BouquetError(
            f"The program {name!r} is neither in {beside[0]} nor on PATH. It comes with Flower: "
            f"pip install '{REQUIREMENT}' into the environment that runs bouquet."
        )
    return str(Path(found).absolute())


def program_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, made fit for Flower's programs, with ``extra`` on top.

    PATH is led by the folders of this Python's programs, because SuperLink and SuperNode start
    ``flower-superexec`` and ``flwr-*app`` by name; Flower's telemetry and update check are off; what Flower's own
    programs say to each other on this machine takes no proxy; a task that waits is looked for every 0.1 s instead of
    every second, unless the environment says otherwise.
    """
    environment = dict(os.environ)
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), environment.get("PATH", os.defpath)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    environment.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
    environment |= {
        **without_proxy(environment),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return environment | dict(extra or {})


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep what is said on this machine from a proxy, beside what they keep from it already."""
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = ",".join(dict.fromkeys([*filter(None, given.split(",")), "127.0.0.1", "localhost", "::1"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def plain_text(text: str) -> str:
    """Terminal colours taken out, which Flower writes into files too, and whatever else steers a terminal."""
    return CONTROLS.sub("", ANSI_SEQUENCE.sub("", text))


def tail(log_file: Path, lines: int = 15) -> str:
    """The last lines of a log, without colours and times; empty where there is none."""
    if not log_file.exists():
        return ""
    written = plain_text(log_file.read_text(errors="replace")).rstrip().splitlines()[-lines:]
    return "\n".join(OWN_TIME.sub("", line) for line in written)
