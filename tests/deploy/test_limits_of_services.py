"""The limits of the services in deploy/ and compose.yaml, against docs/security.md and what the server assumes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from bouquet.server.service.open_files import ENOUGH

ROOT = Path(__file__).parents[2]
UNITS = ("server", "client")
CONFINED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallFilter": "@system-service",
    "CapabilityBoundingSet": "",
    "UMask": "0027",
}


def service_of(unit):
    """The keys of a unit's section [Service]."""
    text = (ROOT / "deploy" / f"bouquet-{unit}.service").read_text()
    section = re.search(r"^\[Service\]$(.*?)^\[", text, re.MULTILINE | re.DOTALL)[1]
    return dict(re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE))


def compose_of(name="compose.yaml"):
    """The services of a compose file."""
    return yaml.safe_load((ROOT / name).read_text())["services"]


def documented():
    """The limits of each service in the table of docs/security.md."""
    rows = re.findall(
        r"^\| `(.+?)`(?: in `compose.yaml`)? \| (.*?) \| (.*?) \|$", (ROOT / "docs/security.md").read_text(), re.M
    )
    return {name.removeprefix("deploy/"): (memory, files) for name, memory, files in rows if "not held" not in files}


def default_of(value):
    """What is taken where the variable is not set."""
    return re.fullmatch(r"\$\{\w+:-(.*)\}", value)[1]


def test_a_unit_has_the_limits_that_the_page_has():
    page, server, client = documented(), service_of("server"), service_of("client")
    memory, files = page["bouquet-server.service"]
    assert memory == f"`MemoryMax={server['MemoryMax']}`"
    assert files == f"`LimitNOFILE={server['LimitNOFILE']}`"
    assert page["bouquet-client.service"] == ("the device's", "systemd's")
    assert not {"MemoryMax", "LimitNOFILE"} & client.keys()


def test_the_server_may_open_as_many_files_as_it_asks_for():
    assert int(service_of("server")["LimitNOFILE"]) == ENOUGH
    assert f"{ENOUGH:,} at most; `LimitNOFILE` in the service" in (ROOT / "docs/network.md").read_text()


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_confines_what_it_starts(unit):
    service = service_of(unit)
    assert {name: service.get(name) for name in CONFINED} == CONFINED
    assert "root" not in (service["User"], service["Group"])


def test_a_container_has_the_limits_that_the_page_has():
    page, services = documented(), compose_of()
    memory = default_of(services["server"]["mem_limit"])
    assert page["server"] == (f"`mem_limit: {memory}` (`SERVER_MEMORY`)", "Docker's")
    assert f"| `SERVER_MEMORY` | `{memory}` |" in (ROOT / "docs/containers.md").read_text()
    small = default_of(compose_of("compose.pi.yaml")["client"]["mem_limit"])
    assert page["client"] == (f"the machine's (`compose.pi.yaml`: `{small}`)", "Docker's")
    assert "mem_limit" not in services["client"]


@pytest.mark.parametrize("name", ["folders", "keys", "server", "client"])
def test_a_container_is_confined(name):
    service = compose_of()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_images_begin_with_one_that_cannot_change():
    (base,) = re.findall(r"^ARG BASE=(.*)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    built = [service["build"] for service in compose_of().values() if "build" in service]
    assert {default_of(build["args"]["BASE"]) for build in built} == {base}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own check")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_understands_a_unit(unit, tmp_path):
    """It only warns of what it does not know and goes on without."""
    text = (ROOT / "deploy" / f"bouquet-{unit}.service").read_text()
    assert said_of(text, tmp_path) == ""
    broken = text.replace("ProtectSystem=strict", "ProtectSytem=strict")
    assert "ProtectSytem" in said_of(broken, tmp_path)


def said_of(text, folder):
    """What systemd says of a unit whose program is there."""
    file = folder / "bouquet-test.service"
    file.write_text(text.replace("/opt/bouquet/venv/bin/bouquet", "/bin/sh"))
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True)
    return "".join(line for line in done.stderr.splitlines(keepends=True) if file.name in line)


def test_replicas_that_are_made_at_once_do_not_fill_one_volume():
    """Docker copies what the image has at the place of an empty volume; of two that do it at once one fails."""
    services = compose_of()
    replicated = [service for service in services.values() if "deploy" in service]
    assert replicated
    for service in replicated:
        named = [volume for volume in service["volumes"] if not volume.startswith("./")]
        assert named
        assert all("nocopy" in volume.split(":")[-1].split(",") for volume in named)
