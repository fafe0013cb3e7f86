"""Faults as they happen: each waits for its event, does its harm, and makes an end of it."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.fleet import FILLER, Device, Fleet
from benchmarks.faults.schedule import UPLOAD, Fault
from client.agent.store import TASKS
from server.record.status import TESTING, TRAINING, read_status

LOOK_SECONDS, LINE_SECONDS = 0.05, 0.003
CHUNK = 1 << 16
SETTLING = ("kill device", "kill agent", UPLOAD, "damage state", "damage prepared", "damage tasks")
HALF = 6000  # bytes: more than announces a reply, less than the 8 kB of its largest part


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
            if self._await():
                time.sleep(self.fault.seconds)
                kind, _, what = self.fault.kind.partition(" ")
                self.happened = {
                    "kill": self._kill,
                    "stop": self._stop,
                    "restart": self._restart,
                    "damage": self._damage,
                    "cut": self._cut,
                    "loss": self._loss,
                    "slow": self._slow,
                    UPLOAD: self._cut_short,
                    "full-server": self._fill,
                    "full-device": self._fill,
                }[kind](what)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    @property
    def device(self) -> Device:
        """The device that it hits."""
        return self.fleet.devices[self.fault.device]

    def _await(self) -> bool:
        while not self.over.is_set():
            if self._due():
                return True
            time.sleep(LINE_SECONDS if self.fault.event in ("line", "reply") else LOOK_SECONDS)
        return False

    def _due(self) -> bool:
        event, round_ = self.fault.event, self.fault.round
        if event == "line":
            try:
                return (self.run_folder / "rounds.jsonl").read_bytes().count(b"\n") >= round_
            except OSError:
                return False
        status = read_status(self.run_folder)
        if event == "testing":
            return status.get("state") == TESTING
        begun = status.get("state") == TRAINING and status.get("round", 0) >= round_
        if event in ("task", "reply") and begun:
            asked = self.fleet.works if event == "task" else self.fleet.replies
            return asked(self.fault.device or next(iter(self.fleet.devices)))
        return begun

    # --- what is done ---------------------------------------------------------------------------------------

    def _targets(self, what: str) -> list[int]:
        deadline = time.monotonic() + 20
        while not (found := self.fleet.processes(what, self.fault.device)) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return found

    def _kill(self, what: str) -> str:
        found = self._targets(what)
        with self.device.lock if self.fault.device else self.fleet.lock:  # nobody starts it in the meantime
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
        if self.fault.kind in SETTLING and process is not None:
            process.wait()

    def _stop(self, what: str) -> str:
        found = self._targets(what)
        self.fleet.signal(found, signal.SIGSTOP)
        time.sleep(self.fault.pause)
        self.fleet.signal(found, signal.SIGCONT)
        return f"stopped {len(found)}" if found else ""

    def _damage(self, what: str) -> str:
        program = self.fleet.server if what == "checkpoint" else self.device.process
        found = self.fleet.processes("server" if what == "checkpoint" else "device", self.fault.device)
        with self.fleet.lock if what == "checkpoint" else self.device.lock:  # nobody starts it in the meantime
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
        elif what == "tasks":
            files = sorted((self.device.state / TASKS).glob("*"))
        else:
            files = sorted((self.device.state / "prepared").glob("*"))
        if not files:
            return ""
        file = self.random.choice(files)
        content = bytearray(file.read_bytes())
        how = self.random.choice(("flip", "truncate", "empty"))
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
        """A rate at which a model takes a second, and so a queue that delays all that comes after it."""
        link = self.device.link
        assert link is not None
        shape = ["root", "tbf", "rate", "64kbit", "burst", "2kb", "latency", "3s"]
        self._link("tc", "qdisc", "add", "dev", link.device, *shape)
        self._link("tc", "-n", link.namespace, "qdisc", "add", "dev", "uplink", *shape)
        time.sleep(self.fault.pause)
        self._link("tc", "qdisc", "del", "dev", link.device, "root")
        self._link("tc", "-n", link.namespace, "qdisc", "del", "dev", "uplink", "root")
        return "slow"

    def _cut_short(self, _: str) -> str:
        """End a device while part of its reply is at the server, as where its power fails: it sends nothing more."""
        link = self.device.link
        assert link is not None
        inside = ("ip", "netns", "exec", link.namespace)
        uplink = ("dev", "uplink", "root")
        slow = ("tbf", "rate", "16kbit", "burst", "2kb", "latency", "3s")
        self._link(*inside, "tc", "qdisc", "add", *uplink, *slow)
        before, deadline = link.counters()[1], time.monotonic() + 20
        while (sent := link.counters()[1] - before) < HALF and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if sent >= HALF:
            with self.device.lock:  # nobody starts it in the meantime
                # Otherwise the kernel would send what the ended processes had given it.
                listed = subprocess.run((*inside, "ss", "-tnH"), check=True, capture_output=True, text=True).stdout
                for port in {line.split()[3].rsplit(":", 1)[1] for line in listed.splitlines()}:
                    self._link(*inside, "iptables", "-w", "-A", "OUTPUT", "-p", "tcp", "--sport", port, "-j", "DROP")
                self.fleet.signal(self.fleet.processes("device", self.fault.device), signal.SIGKILL)
                time.sleep(self.fault.pause)
        self._link(*inside, "tc", "qdisc", "del", *uplink)
        return self._again(f"ended after {sent} bytes") if sent >= HALF else ""

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
