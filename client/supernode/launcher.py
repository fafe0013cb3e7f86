"""A SuperNode of our own: Flower's program on a device, in the background of a federation or in the foreground.

``flower-supernode`` keeps the connection to the server and starts a ``flwr-clientapp`` for each message; it is started
through `client.supernode.main`, which checks what code the server sends. Left alone it retries for ever without saying
what is wrong, and when a server comes back that does not know it any more, it leaves with status 0;
`run_supernode_foreground` mends both. Nothing here imports PyTorch: this process stays on the device for months beside
the training.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from client.node_config import WHEN
from client.supernode.reachability import ServerMismatch, ServerUnreachable, check_server
from client.supernode.refusals import (
    CANNOT_START,
    EXIT_REPORT,
    LONGEST_REPORT_LINES,
    NOT_ACTIVATED,
    REFUSALS,
    TURNED_AWAY,
    Refusal,
    refusal_of,
)
from client.trust.policy import AppTrust
from common.errors import BouquetError
from common.system.files import make_folder
from common.system.locks import locked
from common.system.process_group import ManagedProcess, ProcessGroup
from common.system.programs import program_environment

NODE_ID = re.compile(r"SuperNode ID: (\d+)")
LOCAL_HOST = "127.0.0.1"
RETRY_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
# What Flower's web server says of itself, and SuperNode of an app that was refused before anything ran.
CHATTER = re.compile(
    r"Successfully installed .* to "
    r"|INFO:\s+(Started server|Waiting for|Application |Uvicorn running|Shutting down|Finished server)"
    r"|ERROR :\s+Cannot get processing duration"
)


@dataclass(frozen=True)
class SuperNodeSettings:
    """How a device joins: where the server is, how it is trusted, and what Flower hands to the ClientApp.

    ``state_dir`` holds Flower's own files of this SuperNode (``state_dir/flower``), which two SuperNodes must not
    share: Flower installs apps there without a lock. ``node_config`` is what the ClientApp reads as its node config,
    ``environment`` what it finds in its environment. ``private_key`` (OpenSSH, ECDSA) makes the node id the same
    after a restart, and needs TLS. ``health_address`` (``host:port``) serves gRPC's health protocol. ``trust`` says
    which apps the server may have this device run. ``cold`` starts a fresh ``flwr-clientapp`` for each message, in
    place of a fork of a process that stays (`client.supernode.prefork`): slower, for devices with little memory.
    """

    server: str
    state_dir: Path
    node_config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    insecure: bool = False
    root_certificates: Path | None = None
    private_key: Path | None = None
    health_address: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    trust: AppTrust = field(default_factory=AppTrust)
    cold: bool = False


@dataclass(frozen=True)
class SuperNode:
    """A SuperNode in the background, and the file that it and its ClientApps write to."""

    process: ManagedProcess
    log_file: Path

    @property
    def node_id(self) -> int | None:
        """The id that the server knows it by, as soon as it is connected."""
        found = NODE_ID.findall(self.log_file.read_text(encoding="utf-8", errors="replace"))
        return int(found[-1]) if found else None


def start_supernode(group: ProcessGroup, settings: SuperNodeSettings, name: str = "SuperNode") -> SuperNode:
    """Start a SuperNode in the background; its log, and its ClientApps', is ``state_dir/supernode.log``.

    It waits for the server for ever; `check_server` tells beforehand whether there is one.
    """
    log_file = settings.state_dir.absolute() / "supernode.log"
    log_file.unlink(missing_ok=True)
    return SuperNode(group.start(name, _command(settings), _environment(settings), log_file), log_file)


def run_supernode_foreground(
    settings: SuperNodeSettings, *, wait: float | None = 60.0, report: Callable[[str], None] = print
) -> None:
    """Run a SuperNode until Ctrl-C or SIGTERM, its output and what happens to it going to ``report``, line by line.

    ``wait`` is how many seconds to look for the server at first; None, for a device that may be switched on before
    its server, or be registered there later, means for ever. What waiting cannot mend (TLS on one side only, another
    program's port, no key) ends it at once with a `BouquetError`. Once the server has admitted the device, it does
    not give up any more, whatever happens to the server: it connects again, after at most a minute's pause.
    """
    admitted = False
    pause = RETRY_SECONDS / 2
    deadline = float("inf") if wait is None else time.monotonic() + wait
    hint = "It is another client's; give each client on this machine a --state-dir of its own."
    with locked(settings.state_dir, "the state folder", hint), ProcessGroup() as group:
        while True:
            _find_server(settings, None if admitted else wait, report, patient=admitted)
            ending: list[str] = []
            connected = False

            def on_line(line: str, ending: list[str] = ending) -> None:
                nonlocal admitted, connected
                if NODE_ID.search(line):
                    admitted = connected = True
                if ending or line.startswith((TURNED_AWAY, CANNOT_START)) or EXIT_REPORT.match(line):
                    # Pages of traceback can follow, of programs that lose their SuperNode.
                    if len(ending) < LONGEST_REPORT_LINES:
                        ending.append(line)
                elif line.strip() and not CHATTER.match(line):
                    report(line)

            process = group.start("SuperNode", _command(settings), _environment(settings), on_line=on_line)
            try:
                status = process.wait()
            except BaseException:
                # What Flower's programs say when they are ended in the middle of something is nobody's concern.
                ending.append(CANNOT_START)
                raise
            group.processes.remove(process)
            refusal = in_use_elsewhere(settings, refusal_of("\n".join(ending)))
            if not admitted and (not refusal.passing or time.monotonic() >= deadline):
                raise BouquetError(f"The server {settings.server} did not admit this device. {refusal.hint}".strip())
            pause = RETRY_SECONDS if connected else min(2 * pause, LONGEST_PAUSE_SECONDS)
            ended = "The SuperNode has ended" + (f" with status {status}." if status else ".")
            said = refusal.hint if refusal.passing else f"{ended} {refusal.hint}".strip()
            report(f"{said} Connecting again in {pause:g} s.")
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())) if not admitted else pause)


def _find_server(
    settings: SuperNodeSettings, wait: float | None, report: Callable[[str], None], *, patient: bool
) -> None:
    """Return once the server answers; how long that may take, see `run_supernode_foreground`."""
    deadline = float("inf") if wait is None else time.monotonic() + wait
    said = ""
    while True:
        try:
            check_server(
                settings.server, insecure=settings.insecure, root_certificates=settings.root_certificates, timeout=5.0
            )
            return
        except (ServerUnreachable, ServerMismatch) as error:
            if time.monotonic() >= deadline or (isinstance(error, ServerMismatch) and not patient):
                raise
            if str(error) != said:
                said = str(error)
                report(f"{said} Trying again" + ("." if wait is None else f" for {wait:g} s."))
        time.sleep(max(0.0, min(RETRY_SECONDS, deadline - time.monotonic())))


def in_use_elsewhere(settings: SuperNodeSettings, refusal: Refusal) -> Refusal:
    """The refusal, told more exactly where the server says one thing of an unknown key and of one in use."""
    if refusal is not REFUSALS[NOT_ACTIVATED] or settings.private_key is None or settings.root_certificates is None:
        return refusal
    from client.supernode.registration import is_registered  # cryptography, which this process needs for nothing else

    if not is_registered(settings.server, settings.root_certificates, settings.private_key):
        return refusal
    return Refusal(
        "The server knows this device's key, and, unless it was registered this moment, takes another device for "
        "connected with it. For a minute after a power cut that is this one; if it is said for longer, a second device "
        "holds the same key, as on a copied SD card: give each its own (bouquet keys add, on the server).",
        passing=True,
    )


def _environment(settings: SuperNodeSettings) -> dict[str, str]:
    # A SuperNode's dozen of threads would each hold on to memory of their own.
    small = {"MALLOC_ARENA_MAX": "2"}
    return program_environment(
        {**small, **settings.environment, "FLWR_HOME": str(settings.state_dir.absolute() / "flower")}
    )


def _command(settings: SuperNodeSettings) -> list[str]:
    """The command line of our SuperNode; its node config goes through a file in the state folder."""
    # -P: a folder named client where the user happens to be must not be taken for ours.
    home = settings.state_dir.absolute() / "flower"
    arguments = [sys.executable, "-P", "-m", "client.supernode.prefork", *(["--cold"] if settings.cold else [])]
    arguments += [str(home / "executor-secret")]
    arguments += [text for hash_ in sorted(settings.trust.hashes) for text in ("--trust-app", hash_)]
    arguments += ["--trust-any-app"] if settings.trust.anything else []
    arguments += [text for name in sorted(settings.trust.models) for text in ("--allow-model", name)]
    arguments += [text for name in sorted(settings.trust.data) for text in ("--allow-data", name)]
    arguments += [text for key in sorted(settings.trust.signers) for text in ("--trust-signer", key)]
    arguments += ["--rollout", str(settings.trust.memory.absolute())] if settings.trust.memory else []
    if when := settings.node_config.get(WHEN):  # SuperNode asks it, too, before it takes a message
        arguments += ["--when", str(when), str(settings.state_dir.absolute())]
    arguments += ["--", "--superlink", settings.server]
    if settings.insecure and (settings.root_certificates or settings.private_key):
        raise BouquetError("A root certificate and a private key are for TLS; do not give --insecure beside them.")
    for flag, file in (
        ("--root-certificates", settings.root_certificates),
        ("--auth-supernode-private-key", settings.private_key),
    ):
        if file is not None:
            if not file.is_file():
                raise BouquetError(f"There is no file {file}; copy it from where bouquet keys wrote it.")
            arguments += [flag, str(file.absolute())]
    arguments += ["--insecure"] if settings.insecure else []
    arguments += ["--health-server-address", settings.health_address] if settings.health_address else []

    # An app that was half copied when the power failed would count as installed.
    for left in ("apps", "tasks"):
        shutil.rmtree(home / left, ignore_errors=True)
    make_folder(home, "the state folder's part for Flower")
    if node_config := {**settings.node_config, **settings.trust.node_config}:
        # Flower's key=value form cannot hold every text.
        file = home / "node-config.toml"
        file.write_text(tomli_w.dumps(node_config), encoding="utf-8")
        arguments += ["--node-config", str(file)]
    return arguments
