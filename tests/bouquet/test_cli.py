"""The command line: what a user types wrong gets one message and a non-zero exit, and nothing is half-written."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from PIL import Image

from bouquet import cli
from bouquet.client.agent import main as agent
from tests.helpers.waiting_for import eventually

INLINE = ("--set", "simulation.engine=inline")


def bouquet(folder, *arguments):
    """Run the program in this process: starting Python and PyTorch for each call would take most of the time."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        patch.setattr(sys, "argv", ["bouquet", *arguments])
        # `bouquet client` becomes another program; here that would be the end of the tests.
        patch.setattr("bouquet.client.agent.main.os.execv", lambda _, given: sys.exit(agent.main(given[-1])))
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return SimpleNamespace(returncode=ended.value.code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def test_another_strategy_over_settings_takes_what_it_has_and_says_what_it_leaves(tmp_path):
    (tmp_path / "plants.toml").write_text('[strategy]\nname = "fesem"\nnum_clusters = 2\nproximal_weight = 0.5\n')
    small = ("--clients", "2", "--rounds", "1", "plants.toml", *INLINE)
    done = bouquet(tmp_path, "simulate", "--strategy", "ditto", "--out", "run", *small)
    assert done.returncode == 0, done.stderr
    assert "left out  strategy.num_clusters: ditto has no such setting" in done.stderr
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["strategy"] == {"name": "ditto", "proximal_weight": 0.5}
    typed = bouquet(tmp_path, "simulate", "--strategy", "ditto", "--set", "strategy.num_clusters=3", *small)
    assert (typed.returncode, "Unknown setting strategy.num_clusters" in typed.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "--strategy", "bla"), "Unknown strategy 'bla'"),
        (("simulate", "--dataset", "bla"), "Unknown data set 'bla'"),
        (("simulate", "--model", "bla"), "bla"),
        (("simulate", "--partition", "bla"), "Setting data.partition = 'bla'"),
        (("simulate", "--set", "train.learning_rate=fast"), "Setting train.learning_rate = 'fast'"),
        (("simulate", "--set", "strategy.k=3"), "Unknown setting strategy.k"),
        (("simulate", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("simulate", "--settings", "plants.toml"), "Settings are named as they are: bouquet simulate FILE.toml"),
        (("try", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("simulate", "--clients", "1000"), "1000"),
        (("simulate", "--dataset", "mnist", "--data-dir", "nowhere"), "nowhere"),
        (("simulate", "--resume", "--out", "run", "--rounds", "0"), "Setting run.rounds = 0"),
        (("compare", "nowhere.toml"), "nowhere.toml"),
        (("report", "nowhere"), "nowhere"),
        (("server", "--strategy", "bla", "--insecure"), "Unknown strategy 'bla'"),
        (("server",), "bouquet keys init --dir keys --host"),
        (("client", "--server", "127.0.0.1:1", "--partition-id", "0"), "copy the folder keys/devices/DEVICE"),
        (("client", "--server", "127.0.0.1:1", "--data", "nowhere"), "The data folder nowhere is not there"),
        (("client", "--server", "127.0.0.1:1"), "Give either --data DIR"),
        (("client", "--server", "127.0.0.1:1", "--partition-id", "0", "--wait", "0.5", "--insecure"), "127.0.0.1:1"),
        (("client", "--server", "no port", "--partition-id", "0", "--insecure"), "no port"),
    ],
)
def test_one_clear_message_and_nothing_written(tmp_path, arguments, message):
    done = bouquet(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "runs").exists()


def test_help_says_what_arguments_are(tmp_path):
    assert "one that holds" in bouquet(tmp_path, "try", "--help").stdout


def test_an_empty_data_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    done = bouquet(tmp_path, "client", "--server", "127.0.0.1:1", "--data", "empty")
    assert (done.returncode, "The data folder empty is empty" in done.stderr) == (2, True)


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = bouquet(tmp_path, "server", "--host", "127.0.0.1", "--port", port, "--insecure")
    assert done.returncode == 2
    assert f"Port {port}" in done.stderr


def test_ctrl_c_ends_a_run_that_can_be_resumed(tmp_path):
    arguments = ("simulate", "--clients", "6", "--rounds", "100000", "--out", "run", *INLINE)
    process = subprocess.Popen([sys.executable, "-m", "bouquet", *arguments], cwd=tmp_path, stderr=subprocess.PIPE)
    lines = tmp_path / "run" / "rounds.jsonl"
    eventually(lambda: lines.exists() and lines.read_text().count("\n") >= 2, "two rounds are over")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert b"stopped" in stderr
    done = lines.read_text().count("\n")
    again = ("simulate", "--clients", "6", "--rounds", str(done + 1), "--out", "run", "--resume", *INLINE)
    assert bouquet(tmp_path, *again).returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == done + 1


def test_a_server_that_keeps_going_leaves_a_finished_run_as_it_is(tmp_path):
    settings = ("--clients", "4", "--rounds", "1", "--out", "run", *INLINE)
    assert bouquet(tmp_path, "simulate", *settings).returncode == 0
    summary = (tmp_path / "run" / "summary.json").read_bytes()
    (tmp_path / "run" / "report.html").unlink()
    done = bouquet(tmp_path, "server", *settings, "--resume", "--insecure")
    assert done.returncode == 0, done.stderr
    assert "The run is finished" in done.stdout
    assert (tmp_path / "run" / "summary.json").read_bytes() == summary
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
def test_a_name_that_the_terminal_cannot_print_is_escaped(locale, tmp_path):
    for name in (b"bl\xffight", b"M\xc3\xb6hre"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        Image.new("L", (4, 4)).save(os.path.join(folder, b"a\x1b[31m\xff.png"))
    with open(os.path.join(os.fsencode(tmp_path), b"bl\xffight", b"bad\xfe.png"), "wb"):
        pass
    how = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-P", "-m", "bouquet", "check", "--insecure", "--data", str(tmp_path)]
    done = subprocess.run([*command, "--state-dir", str(tmp_path / "state")], env=how, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    said = done.stdout.decode()
    assert r"bl\udcffight/bad\udcfe.png cannot be read" in said
    assert "\x1b[31m" not in said
