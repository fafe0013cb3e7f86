"""Faults as they happen: each waits for its event, does its harm, and makes an end of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults.fleet import FILLER, Device, Fleet
from benchmarks.faults.schedule import TRANSFERS, Fault
from bouquet.client.agent.store import TASKS
from bouquet.server.record.status import TESTING, TRAINING, read_status

LOOK_SECONDS, LINE_SECONDS = 0.05, 0.003
CHUNK = 1 << 16
ENDING = ("kill device", "agent", "power", "damage state", "damage prepared", "damage tasks")  # a device's program


class Injection:
    """A fault in a run: ``happened`` says what was done, and stays empty where its event never came."""

    def __init__(self, fleet: Fleet, fault: Fault, run: Path, over: threading.Event) -> None:
        self.fleet, self.fault, self.run_folder, self.over = fleet, fault, run, over
        self.random = random.Random(fault.seed)
        self.happened = ""
        self.error = ""
        self.thread = threading.Thread(target=self.run, daemon=True, name=str(fault))
        self.thread.start()

    def run(self) -> None:
        """Wait for the event, and do it."""
        try:
            with self._in_slow_motion() if self.fault.kind in TRANSFERS else contextlib.nullcontext():
                if self._await():
                    time.sleep(0.0 if self.fault.kind in TRANSFERS else self.fault.seconds)
                    self._do()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _do(self) -> None:
        kind, _, what = self.fault.kind.partition(" ")
        if self.fault.kind in TRANSFERS:
            kind, what = (what, "") if what in ("cut", "power") else ("kill", what)
        self.happened = {
            "kill": self._kill,
            "stop": self._stop,
            "restart": self._restart,
            "damage": self._damage,
            "cut": self._cut,
            "power": self._power,
            "loss": self._loss,
            "slow": self._slow,
            "full-server": self._fill,
            "full-device": self._fill,
        }[kind](what)

    @property
    def device(self) -> Device:
        """The device that it hits."""
        return self.fleet.devices[self.fault.device]

    def _await(self) -> bool:
        while not self.over.is_set():
            if self._due():
                return True
            time.sleep(LOOK_SECONDS if self.fault.event in ("round", "testing") else LINE_SECONDS)
        return False

    def _due(self) -> bool:
        event, round_ = self.fault.event, self.fault.round
        if event == "line":
            try:
                return (self.run_folder / "rounds.jsonl").read_bytes().count(b"\n") >= round_
            except OSError:
                return False
        if event == "testing":
            return read_status(self.run_folder).get("state") == TESTING
        if event in ("down", "up"):
            return self._is_on_its_way()
        if event in ("task", "reply") and self._has_begun():
            asked = self.fleet.works if event == "task" else self.fleet.replies
            return asked(self.fault.device or next(iter(self.fleet.devices)))
        return self._has_begun()

    def _has_begun(self) -> bool:
        status = read_status(self.run_folder)
        return status.get("state") == TRAINING and status.get("round", 0) >= self.fault.round

    def _is_on_its_way(self) -> bool:
        """Whether a part of a model is at the device, or of its reply at the server, and not all of it."""
        tasks = self.device.state / TASKS
        if self.fault.event == "down":
            parts = list(tasks.glob("*.content.*.part"))
        else:
            parts = [p for reply in tasks.glob("*.reply") for p in self.fleet.service.glob(f"{reply.name}.*.part")]
        with contextlib.suppress(OSError):
            return any(part.stat().st_size for part in parts)
        return False

    # --- what is done ---------------------------------------------------------------------------------------

    def _targets(self, what: str) -> list[int]:
        deadline = time.monotonic() + 20
        device = "" if what == "server" else self.fault.device
        while not (found := self.fleet.processes(what, device)) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return found

    def _kill(self, what: str) -> str:
        found = self._targets(what)
        with (
            self.device.lock if self.fault.device and what != "server" else self.fleet.lock
        ):  # nobody starts it meanwhile
            self.fleet.signal(found, signal.SIGKILL)
            time.sleep(self.fault.pause)
        return self._again(f"killed {len(found)}" if found else "")

    def _restart(self, what: str) -> str:
        """End it in order, as a service manager does, which starts it again."""
        program = self.device.process if self.fault.device else self.fleet.server
        with self.device.lock if self.fault.device else self.fleet.lock:  # nobody starts it in the meantime
            if program is None or program.poll() is not None:
                return ""
            program.terminate()
            program.wait()
        return self._again("ended")

    def _again(self, said: str) -> str:
        """Start what is gone, as a service manager does."""
        if self.fault.device:
            self._settle(self.device.process)
            self.fleet.start_device(self.device)
        return said

    def _settle(self, process: subprocess.Popen[bytes] | None) -> None:
        if self.fault.kind.endswith(ENDING) and self.fault.kind != "stop agent" and process is not None:
            process.wait()

    def _stop(self, what: str) -> str:
        found = self._targets(what)
        self.fleet.signal(found, signal.SIGSTOP)
        time.sleep(self.fault.pause)
        self.fleet.signal(found, signal.SIGCONT)
        return f"stopped {len(found)}" if found else ""

    def _damage(self, what: str) -> str:
        program = self.device.process if self.fault.device else self.fleet.server
        found = self.fleet.processes("device" if self.fault.device else "server", self.fault.device)
        with self.device.lock if self.fault.device else self.fleet.lock:  # nobody starts it in the meantime
            self.fleet.signal(found, signal.SIGKILL)
            if program is not None:
                program.wait()
            time.sleep(0.3)  # the trainer ends with its agent
            said = self._spoil(what)
            time.sleep(self.fault.pause)
        return self._again(said)

    def _spoil(self, what: str) -> str:
        if what == "checkpoint":
            folders = sorted((self.run_folder / "checkpoint").glob("round-*"))
            files = sorted(folders[-1].iterdir()) if folders else []
        elif what == "state":
            # Its last round, not the model that is trained beside it, which is written after it.
            files = sorted(self.device.state.glob("run-*/round-*.safetensors"), key=lambda f: f.stat().st_mtime_ns)[-1:]
        elif what in ("tasks", "service"):
            files = sorted((self.device.state / TASKS if what == "tasks" else self.fleet.service).glob("*"))
        else:
            files = sorted((self.device.state / "prepared").glob("*"))
        if not files:
            return ""
        file = self.random.choice(files)
        content = bytearray(file.read_bytes())
        # What is on its way is not read back where a device's memory fails, but where its power did.
        how = self.random.choice(("truncate", "empty", *(("flip",) if what not in ("tasks", "service") else ())))
        if how == "flip" and content:
            for _ in range(8):
                content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        elif content:
            del content[self.random.randrange(len(content)) if how == "truncate" else 0 :]
        file.write_bytes(content)
        return f"{how}: {file.parent.name}/{file.name}"

    def _link(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    def _cut(self, _: str) -> str:
        link = self.device.link
        assert link is not None
        self._link("ip", "link", "set", link.device, "down")
        time.sleep(self.fault.pause)
        self._link("ip", "link", "set", link.device, "up")
        return "cut"

    def _loss(self, _: str) -> str:
        """Each packet to the device and from it is lost with a probability: netem is not in every kernel."""
        link = self.device.link
        assert link is not None
        share = f"{self.random.choice((0.05, 0.2, 0.5)):g}"
        tables = ("ip", "netns", "exec", link.namespace, "iptables", "-w")
        drop = ("-m", "statistic", "--mode", "random", "--probability", share, "-j", "DROP")
        for chain in ("INPUT", "OUTPUT"):
            self._link(*tables, "-A", chain, *drop)
        time.sleep(self.fault.pause)
        for chain in ("INPUT", "OUTPUT"):
            self._link(*tables, "-D", chain, *drop)
        return f"lost {share}"

    def _slow(self, _: str) -> str:
        """A rate at which a model takes seconds, and so a queue that delays all that comes after it."""
        with self._shaped("512kbit"):
            time.sleep(self.fault.pause)
        return "slow"

    @contextlib.contextmanager
    def _shaped(self, rate: str) -> Iterator[None]:
        """No more than this rate in either direction."""
        link = self.device.link
        assert link is not None
        ends = (("tc", "qdisc"), link.device), (("tc", "-n", link.namespace, "qdisc"), "uplink")
        for command, end in ends:
            self._link(*command, "replace", "dev", end, "root", "tbf", "rate", rate, "burst", "4kb", "latency", "3s")
        try:
            yield
        finally:
            for command, end in ends:
                with contextlib.suppress(subprocess.CalledProcessError):  # another fault's, which is over
                    self._link(*command, "del", "dev", end, "root")

    @contextlib.contextmanager
    def _in_slow_motion(self) -> Iterator[None]:
        """From the fault's round on the link is so slow that a model is seen on its way."""
        while not self.over.is_set() and not self._has_begun():
            time.sleep(LOOK_SECONDS)
        with self._shaped("2mbit"):
            yield

    def _power(self, _: str) -> str:
        """End a device as where its power fails: it sends nothing more, so that nobody is told."""
        link = self.device.link
        assert link is not None
        inside = ("ip", "netns", "exec", link.namespace)
        with self.device.lock:  # nobody starts it in the meantime
            # Otherwise the kernel would send what the ended processes had given it, and that they are gone.
            listed = subprocess.run((*inside, "ss", "-tnH"), check=True, capture_output=True, text=True).stdout
            for port in {line.split()[3].rsplit(":", 1)[1] for line in listed.splitlines()}:
                self._link(*inside, "iptables", "-w", "-A", "OUTPUT", "-p", "tcp", "--sport", port, "-j", "DROP")
            self.fleet.signal(self.fleet.processes("device", self.fault.device), signal.SIGKILL)
            time.sleep(self.fault.pause)
        return self._again("ended")

    def _fill(self, _: str) -> str:
        folder = self.device.state if self.fault.device else self.fleet.server_disk
        left = self.random.choice((0, 2000, 20_000))
        file = folder / FILLER
        try:
            fill(file, left)
            time.sleep(self.fault.pause)
        finally:
            file.unlink(missing_ok=True)
        return f"full but for {left} bytes"


def fill(file: Path, left: int) -> None:
    """Write until the disk is full, then take ``left`` bytes back."""
    with file.open("wb", buffering=0) as handle:
        for chunk in (CHUNK, 4096):
            try:
                while handle.write(bytes(chunk)) == chunk:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        if left:
            os.truncate(file, max(0, handle.tell() - left))


def start(fleet: Fleet, faults: tuple[Fault, ...], run: Path) -> tuple[list[Injection], Callable[[], None]]:
    """Begin to wait for all events; returns the injections and what ends those that still wait."""
    over = threading.Event()
    injections = [Injection(fleet, fault, run, over) for fault in faults]

    def end() -> None:
        over.set()
        for injection in injections:
            injection.thread.join()

    return injections, end


def lines(run: Path) -> list[dict]:
    """The complete lines of a record."""
    try:
        text = (run / "rounds.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
