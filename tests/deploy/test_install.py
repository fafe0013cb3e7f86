"""The service files and the install script of devices without containers; deploy/ is run for real on a device."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from bouquet.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPT = DEPLOY / "install-client.sh"


@pytest.fixture
def machine(tmp_path):
    """Programs that say what kind of machine this is, before those of the machine itself."""
    answers = {
        "uname": "echo aarch64",
        "getconf": "echo 64",
        "df": "printf 'head\\n/dev/sda 9 9 9000 9 /\\n'",
        "python3": 'case $1 in -V) echo "Python 3.11.2";; *) exit 0;; esac',
    }
    programs = tmp_path / "bin"
    programs.mkdir()

    def run(*arguments, **changes):
        for name, answer in {**answers, **changes}.items():
            (programs / name).write_text(f"#!/bin/sh\n{answer}\n")
            (programs / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", SCRIPT, "--dry-run", *map(str, arguments)], capture_output=True, text=True, env=environment
        )

    return run


def keys(folder):
    folder.mkdir()
    for name in ("device.key", "device.crt", "ca.crt"):
        (folder / name).touch()
    return folder


def test_a_dry_run_says_what_it_would_do_and_does_nothing(machine, tmp_path):
    done = machine("--server", "192.168.1.10:9092", "--keys", keys(tmp_path / "garden-pi"), "--memory-max", "700M")
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("would ") for line in done.stdout.splitlines() if line.startswith("would ")]
    assert len(lines) == len([line for line in done.stdout.splitlines() if not line.startswith("install-client: ")])
    text = "\n".join(lines)
    assert "useradd --system" in text
    assert "torch==2.10.0 torchvision==0.25.0" in text
    for file in ("device.key", "device.crt", "ca.crt"):
        assert f"{tmp_path}/garden-pi/{file} /etc/bouquet/keys/{file}" in text
    assert "write: /etc/bouquet/client.env" in text
    assert "bouquet-client.service.d/memory.conf" in text


def test_other_sources_of_pytorch(machine):
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in machine(uname="echo x86_64").stdout
    nvidia = machine("--torch-index", "https://example.org/jp7", "--torch-pre").stdout
    assert "--no-deps --pre --index-url https://example.org/jp7 torch torchvision" in nvidia
    assert "torch==" not in nvidia
    # one that is installed for all users, with CUDA, is seen by the environment and is not replaced
    present = machine(python3="case $* in *torch.__version__*) echo 2.9.0a0;; *) exit 0;; esac").stdout
    assert "-m venv --system-site-packages /opt/bouquet/venv" in present
    # nor is the NumPy that it was built with
    assert "would write: /opt/bouquet/tmp/requirements.lock" in present
    assert "-r /opt/bouquet/tmp/requirements.lock" in present
    assert "tmp/requirements.lock" not in nvidia


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uname": "echo armv7l"}, "This machine is armv7l"),
        ({"getconf": "echo 32"}, "install the 64-bit Raspberry Pi OS"),
        ({"python3": 'case $1 in -V) echo "Python 3.10.12";; *) exit 1;; esac'}, "Python 3.10.12 is too old"),
        ({"python3": "case $* in *ensurepip*) exit 1;; *) exit 0;; esac"}, "apt install python3-venv"),
        ({"df": "printf 'head\\n/dev/sda 9 9 500 9 /\\n'"}, "has 500 MB free"),
    ],
)
def test_a_machine_that_does_not_fit_gets_one_message(machine, changes, message):
    done = machine(**changes)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--keys", "/nowhere"), "/nowhere lacks device.key, device.crt or ca.crt"),
        (("--server", "server.local"), "not of the form HOST:PORT"),
        (("--data", "/home/pi/photos"), "cannot see home folders"),
        (("--data", "/nowhere"), "--data /nowhere is not there"),
        (("--name", "a b"), "letters, digits"),
        (("--memory-max", "much"), "not a size"),
        (("--source", "/nowhere"), "neither a checkout"),
        (("--server",), "--server needs a value"),
        (("--wrong",), "Unknown option --wrong"),
    ],
)
def test_a_wrong_option_gets_one_message(machine, arguments, message):
    done = machine(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


KEYS = "--keys ETC/keys"


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        ("", "keys=device-keys", KEYS),
        (f"{KEYS} --least-noise 1.0 --when w.toml", "keys=new", f"{KEYS} --least-noise 1.0 --when w.toml"),
        ("--insecure --tag greenhouse", "keys=new", f"{KEYS} --tag greenhouse"),
        (f"{KEYS} --tag greenhouse", "insecure=--insecure", "--insecure --tag greenhouse"),
        (f"{KEYS} --name shed --most-epsilon 4", "name=garden", f"{KEYS} --most-epsilon 4 --name garden"),
        (f"--name=shed {KEYS} --cold", "name=garden", f"{KEYS} --cold --name garden"),
        ("--cold --insecure", "insecure=--insecure", "--insecure --cold"),
        (f"{KEYS} --cold", "", f"{KEYS} --cold"),
    ],
)
def test_the_script_again_keeps_the_options_that_somebody_added(tmp_path, before, given, after):
    """Above all those that keep the device's data private."""
    script = SCRIPT.read_text()
    functions = "\n".join(
        re.search(rf"^{name}\(\) {{.*?^}}$", script, re.MULTILINE | re.DOTALL)[0]
        for name in ("setting", "own_lines", "without", "configure")
    )
    before, after = (options.replace("ETC", str(tmp_path)) for options in (before, after))
    (tmp_path / "client.env").write_text(f"BOUQUET_OPTIONS={before}\n" if before else "")
    shell = f"""set -euo pipefail
        ETC={tmp_path} OWN_USER=x UNITS=x UNIT=x HERE=x VENV=x
        server='' data='' memory_max='' keys='' insecure='' name=''
        {given}
        run() {{ :; }}
        has_cuda() {{ false; }}
        write() {{ cat; }}
        {functions}
        configure"""
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"\nBOUQUET_OPTIONS={after}\n" in done.stdout


def test_keys_and_insecure_exclude_each_other(machine, tmp_path):
    assert "Give either --keys" in machine("--insecure", "--keys", keys(tmp_path / "pi")).stderr


def test_uninstall_keeps_what_cannot_be_had_again(machine):
    kept = machine("--uninstall").stdout
    assert "rm -rf /etc/systemd/system/bouquet-client.service" in kept
    assert not re.search(r"would run: rm .*(/etc/bouquet|/var/lib/bouquet|/srv)", kept)
    purged = machine("--uninstall", "--purge").stdout
    assert "would run: rm -rf /etc/bouquet /var/lib/bouquet\n" in purged
    assert "/srv" not in purged


def test_help_shows_every_option():
    shown = subprocess.run(["bash", SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^    (--[a-z-]+)\)", SCRIPT.read_text(), re.MULTILINE))
    assert len(options) >= 10
    assert [option for option in options if option not in shown] == []


@pytest.mark.parametrize("command", ["client", "server"])
def test_the_service_starts_a_command_that_exists(command):
    """systemd-analyze verify sees the unit; that the program takes these options is seen here."""
    unit = (DEPLOY / f"bouquet-{command}.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, name, *arguments = start.split()
    assert (program, name) == ("/opt/bouquet/venv/bin/bouquet", command)
    known = {option for p in typer.main.get_command(app).commands[command].params for option in p.opts}
    assert [a for a in arguments if a.startswith("--") and a not in known] == []
    assert "PREFIX=/opt/bouquet\nVENV=$PREFIX/venv\n" in SCRIPT.read_text()


def test_the_script_sets_every_variable_of_the_service():
    unit = (DEPLOY / "bouquet-client.service").read_text()
    variables = set(re.findall(r"BOUQUET_[A-Z]+", unit))
    assert variables == set(re.findall(r"^(BOUQUET_[A-Z]+)=", SCRIPT.read_text(), re.MULTILINE))


LOCKS = [ROOT / "requirements.lock", ROOT / "requirements-report.lock"]


def test_every_package_is_locked_in_the_tested_version_by_hashes_and_by_no_index():
    tested = dict(line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    locked = {}
    for lock in LOCKS:
        text = lock.read_text()
        assert "://" not in text
        for entry in re.split(r"\n(?=[a-z])", text.partition("make lock\n")[2].replace("\\\n", "")):
            (name, version), hashes = (
                entry.split(None, 1)[0].split("=="),
                re.findall(r"--hash=sha256:([0-9a-f]{64})", entry),
            )
            assert hashes, name
            assert tested.get(name.replace("-", "_"), tested.get(name, version)) == version
            locked[name] = version
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=]", text)[0] for text in needed}
    assert names - set(locked) == {"torch", "torchvision"}  # the wheels of one version differ between indexes


def test_what_is_installed_as_root_is_checked_by_its_hashes(machine, tmp_path):
    lines = [line for line in machine().stdout.splitlines() if "pip install" in line and "torch==" not in line]
    locks = " ".join(f"-r {lock}" for lock in LOCKS)
    assert f"--require-hashes --no-deps {locks}" in lines[0]
    assert all("--no-build-isolation" in line for line in lines[1:])
    (tmp_path / "constraints.txt").touch()
    assert "--require-hashes" not in machine("--constraints", tmp_path / "constraints.txt").stdout


def test_nothing_of_the_folder_where_it_is_started_is_run(tmp_path):
    """As root: torch.py, site-packages and all that Python would look for there."""
    here, ran = tmp_path / "downloads", tmp_path / "ran"
    here.mkdir()
    for name in ("torch", "venv", "ensurepip", "pip", "struct", "sitecustomize", "usercustomize"):
        (here / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')\n")
    for more in ({}, {"PYTHONPATH": str(here)}):
        command = ["bash", SCRIPT, "--dry-run", "--insecure", "--python", sys.executable]
        subprocess.run(command, capture_output=True, text=True, cwd=here, env={**os.environ, **more})
        assert not ran.exists()
