"""A SuperLink of our own: started, submitted to, asked, and ended with its `ProcessGroup`.

SuperLink listens on 127.0.0.1 only: through its Control API whoever reaches it can run code on every device. What
devices reach is the gate before it (`server.gate`), over gRPC and TLS, 9092 by custom.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import sys
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from common.errors import BouquetError
from common.system.files import make_folder
from common.system.log_file import LogFile
from common.system.ports import check_port_free, free_port, split_address, wait_for_port
from common.system.process_group import LAST_LINES_SECONDS, LONGEST_LINE, ManagedProcess, ProcessGroup
from common.system.programs import plain_text, program_environment, tail
from common.trust.public_keys import read_public_key
from server.gate.open_files import raise_open_files
from server.gate.waiting import LOOKS
from server.superlink.certificates import Certificates
from server.superlink.control_api import Control, Refused, control

# What SuperLink's own programs and the gate ask again and again, when nothing was wrong: 60 MB of it a day.
POLLS = re.compile(
    r'\[uvicorn\.access\].*" [23]\d\d\b|\[Fleet\.(PullMessages|SendNodeHeartbeat|PullObject|PushObject)\]'
    r"|ControlServicer\.ListNodes"
)
# Of a model as arrays no part is above 5 MiB (Flower's chunks). A packed one is one block: for it its size is added,
# and this leaves room for the further runs of a server that began with a small one.
LEAST_MESSAGE_BYTES = 32 * 1024**2
BESIDE_BYTES = 8 * 1024**2  # in a message that holds a model as one block
CONNECTION = "bouquet"
LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: where it and its gate listen, and the folder with logs, Flower's files and the run settings.

    A gate that crashes is started again by its supervisor, and no round is lost.
    """

    process: ManagedProcess
    gate: ManagedProcess
    fleet_address: str
    runtime_address: str
    directory: Path
    database: Path | None = None
    message_bytes: int = LEAST_MESSAGE_BYTES

    def takes(self, model_bytes: int) -> bool:
        """Whether a device may send a model of so many bytes as one block."""
        return model_bytes + BESIDE_BYTES <= self.message_bytes


@dataclass(frozen=True)
class RunStatus:
    """What SuperLink says of a run.

    ``status`` is ``pending``, ``starting``, ``running``, ``finished:completed``, ``finished:failed`` or
    ``finished:stopped``; ``details`` says why it failed.
    """

    status: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether the run is over, well or not."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether the ServerApp returned without an exception."""
        return self.status == "finished:completed"


def start_superlink(
    group: ProcessGroup,
    directory: Path,
    *,
    fleet_address: str = f"{LOCAL_HOST}:9092",
    runtime_port: int | None = None,
    certificates: Certificates | None = None,
    supernode_auth: bool = False,
    database: Path | None = None,
    health_address: str | None = None,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    message_bytes: int = LEAST_MESSAGE_BYTES,
    timeout: float = 600.0,
) -> SuperLink:
    """Start a SuperLink and its gate, and return once both answer.

    Without ``certificates`` nothing is encrypted. ``supernode_auth`` (needs them) admits only devices whose key was
    given to `register_supernodes`. With ``database``, an SQLite file, runs, devices and registered keys outlive a
    restart; without it a restarted SuperLink refuses the devices it knew, and they must connect anew.
    ``health_address`` (``host:port``) serves gRPC's health protocol, without TLS. Runs get ``environment``: it is
    inherited down to the ServerApp. The logs are ``directory/superlink.log`` and ``gate.log``; ``on_line`` is told each
    line of the first. No call of a device may hold more than ``message_bytes`` (-1: as much as it likes). This
    process's limit of open files is raised, for all of them.
    Raises `BouquetError` when a port is taken, a file is missing, or SuperLink does not come up in time.
    """
    directory = directory.absolute()
    raise_open_files()
    host, port = split_address(fleet_address)
    runtime_port = runtime_port or free_port()
    if supernode_auth and certificates is None:
        raise BouquetError("Devices can be authenticated over TLS only; give certificates (bouquet keys makes them).")
    check_port_free(host, port, "the devices (the gate)")
    check_port_free(LOCAL_HOST, runtime_port, "SuperLink's Runtime API")
    runtime_address, looks = f"{LOCAL_HOST}:{runtime_port}", f"bouquet-{uuid.uuid4().hex}"

    arguments = ["--insecure", "--host", LOCAL_HOST, "--port", str(runtime_port)]
    arguments += ["--isolation", "subprocess", "--disable-runtime-dependency-installation"]
    arguments += ["--database", str(database.absolute())] if database else []
    gate_arguments = ["--listen", fleet_address, "--superlink", runtime_address]
    gate_arguments += ["--kept", str(directory / "gate"), "--message-bytes", str(message_bytes)]
    # Flower's own state, which one without a database has, does not tell.
    gate_arguments += ["--told", looks] if database else []
    gate_arguments += ["--registered-only"] if supernode_auth else []
    gate_arguments += ["--health", health_address] if health_address else []
    if certificates is not None:
        certificates = certificates.found()
        gate_arguments += ["--certificate", str(certificates.certificate), "--key", str(certificates.key)]

    home = directory / "flower"
    # An app that was half copied when the power failed would count as installed.
    shutil.rmtree(home / "apps", ignore_errors=True)
    make_folder(home, "SuperLink's folder")
    settings = {"superlink": {"default": CONNECTION, CONNECTION: {"address": runtime_address, "insecure": True}}}
    (home / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")

    # -P: a folder named server where the user happens to be must not be taken for ours.
    program = [sys.executable, "-P", "-m"]
    process = group.start(
        "SuperLink",
        [*program, "server.superlink.main", "flower-superlink", *arguments],
        program_environment({**(environment or {}), "FLWR_HOME": str(home), LOOKS: looks}),
        directory / "superlink.log",
        on_line,
        POLLS,
    )
    gate = group.start(
        "the gate",
        [*program, "server.gate.main", *gate_arguments],
        program_environment({}),
        directory / "gate.log",
        again=True,
    )
    superlink = SuperLink(process, gate, fleet_address, runtime_address, directory, database, message_bytes)
    deadline = time.monotonic() + timeout
    try:
        wait_for_port(LOCAL_HOST, runtime_port, timeout, lambda: process.alive)
        reachable = {"0.0.0.0": LOCAL_HOST, "::": "::1"}.get(host, host)
        wait_for_port(reachable, port, max(0.0, deadline - time.monotonic()), lambda: gate.alive)
        _check_health(superlink)
    except BouquetError as error:
        group.stop(gate)
        group.stop(process)
        raise BouquetError(f"SuperLink did not start. {error}\n{process.tail()}\n{gate.tail()}") from None
    return superlink


def submit_run(superlink: SuperLink, app: Path, run_config: Mapping[str, Any] | None = None) -> int:
    """Submit the Flower app in the folder ``app`` and return the run's id; the ServerApp then starts by itself.

    ``run_config`` overrides values of the app's own configuration, by dotted key, and cannot add any.
    """
    if run_config:
        _check_keys(app, run_config)
    with _control(superlink) as api:
        return api.start_run(app.absolute(), run_config or {})


def run_status(superlink: SuperLink, run_id: int) -> RunStatus:
    """Ask SuperLink how a run is doing; `BouquetError` when it knows no such run."""
    with _control(superlink) as api:
        run = api.run(run_id)
    status = run.status
    return RunStatus(
        status=f"{status.status}:{status.sub_status}" if status.sub_status else status.status,
        details=status.details or "N/A",
    )


class RunLog:
    """What a ServerApp writes and logs, from its start on, appended to a file by a thread until the run ends.

    SuperLink's task runner sends the ServerApp's own output to /dev/null; Flower keeps a copy, which is read here.
    """

    def __init__(self, superlink: SuperLink, run_id: int, log_file: Path) -> None:
        self.log_file = log_file
        self._log = LogFile(log_file, "ServerApp")
        self._thread = threading.Thread(target=self._follow, args=(superlink, run_id), name="log", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether more may come."""
        return self._thread.is_alive()

    def tail(self) -> str:
        """The last lines; waits a moment for those of a run that has just ended."""
        self._thread.join(LAST_LINES_SECONDS)
        return tail(self.log_file)

    def _follow(self, superlink: SuperLink, run_id: int) -> None:
        rest = ""
        # A SuperLink that ends is noticed by whoever started it.
        with contextlib.suppress(Refused, httpx.HTTPError), _control(superlink) as api:
            for text in api.logs(run_id):
                *lines, rest = (rest + text).split("\n")
                rest = rest[:LONGEST_LINE]
                for line in lines:
                    self._log.write(plain_text(line[:LONGEST_LINE]))
        self._log.write(plain_text(rest))
        self._log.close()


def register_supernodes(superlink: SuperLink, public_keys: Sequence[Path]) -> Iterator[int | None]:
    """Admit many devices, one after the other, as the caller asks for the next: a few milliseconds each."""
    with _control(superlink) as api:
        for public_key in public_keys:
            if not public_key.is_file():
                raise BouquetError(f"There is no public key {public_key}; bouquet keys makes a device's pair.")
            try:
                yield api.register(read_public_key(public_key).pem)
            except Refused as error:
                if "already in use" not in str(error):
                    raise
                yield None


def unregister_supernode(superlink: SuperLink, node_id: int) -> None:
    """Shut a device out, for good: its next call fails, its program ends, and its key is never admitted again."""
    with _control(superlink) as api:
        api.unregister(node_id)


def _control(superlink: SuperLink) -> contextlib.AbstractContextManager[Control]:
    return control(superlink.runtime_address)


def _check_keys(app: Path, run_config: Mapping[str, Any]) -> None:
    """Name the key that Flower would call an invalid run configuration without naming it."""

    def keys(table: Mapping[str, Any], parent: str = "") -> Iterator[str]:
        for key, value in table.items():
            yield from keys(value, f"{parent}{key}.") if isinstance(value, Mapping) else [parent + key]

    try:
        project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        known = set(keys(project["tool"]["flwr"]["app"].get("config", {})))
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return  # Flower says itself what is wrong with the app.
    if unknown := sorted(set(run_config) - known):
        raise BouquetError(f"The app has no setting {unknown[0]!r} to override; it has {', '.join(sorted(known))}.")


def _check_health(superlink: SuperLink) -> None:
    """Ask the Runtime API for its health."""
    connection = http.client.HTTPConnection(superlink.runtime_address, timeout=30.0)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise BouquetError(f"Its Runtime API on {superlink.runtime_address} does not answer ({error}).") from None
    finally:
        connection.close()
    if status != http.client.OK:
        raise BouquetError(f"Its Runtime API on {superlink.runtime_address} answers with status {status}.")
