"""Federations of containers, started with compose.yaml as it is shipped. Needs Docker; `make test-containers`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Federation:
    """``docker compose`` on the repository's files, as a project of its own that is taken down at the end."""

    def __init__(self, **settings: str) -> None:
        self.run = f"test-{uuid.uuid4().hex[:8]}"
        self.project = f"bouquet-{self.run}"
        self.folder = ROOT / "runs" / self.run
        self.files = [ROOT / "compose.yaml"]
        # By its tag, which an engine without a registry can have; its digest is for those who install.
        base = {"BASE": os.environ.get("BASE", "python:3.11-slim-bookworm")}
        self.environment = {
            **os.environ,
            **base,
            "COMPOSE_PROJECT_NAME": self.project,
            "RUN": self.run,
            **settings,
        }
        if self.folder.parent.exists() and (owner := self.folder.parent.stat()).st_uid:
            self.environment |= {"BOUQUET_UID": str(owner.st_uid), "BOUQUET_GID": str(owner.st_gid)}

    def docker(self, *arguments: str) -> str:
        """Standard output of a docker command; its error is the test's."""
        command = ["docker", *arguments]
        done = subprocess.run(command, env=self.environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def compose(self, *arguments: str) -> str:
        files = [text for file in self.files for text in ("--file", str(file))]
        return self.docker("compose", *files, *arguments)

    def up(self) -> None:
        self.compose("up", "--detach", "--build")

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, ended ones too."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def logs(self, container: str) -> str:
        done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def state(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", "--format", "{{json .State}}", container))
        return found

    def rounds(self) -> list[dict[str, Any]]:
        """The complete lines of the record so far."""
        path = self.folder / "rounds.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.compose('logs', '--no-color')[-8000:]}")
            time.sleep(0.2)

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "10")
        # Its files belong to the user of the containers, whom only root can undo.
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def federation() -> Iterator[Callable[..., Federation]]:
    made: list[Federation] = []

    def make(**settings: str) -> Federation:
        made.append(Federation(**settings))
        return made[-1]

    yield make
    for one in made:
        one.down()
