"""What a device runs: the app of its own installation, and what its owner named."""

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import TaskType

from client.supernode.app_check import check, guard
from client.trust.policy import AppRefused, AppTrust
from common.errors import BouquetError
from common.trust.app_bundle import own_app_files


def bundle(files, compression=zipfile.ZIP_DEFLATED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, data in files:
            archive.writestr(name, data)
        archive.writestr(".info/CONTENT", "Flower's manifest")
    return content.getvalue()


@pytest.fixture(scope="module")
def own():
    return own_app_files()


def test_the_own_app_is_trusted_however_it_is_compressed(own):
    AppTrust().check_app(bundle(own.items()))
    AppTrust().check_app(bundle(own.items(), zipfile.ZIP_STORED))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda own: {**own, "common/errors.py": own["common/errors.py"] + b"#"}, "in common/errors.py. Install"),
        (lambda own: {**own, "common/errors.py": own["common/errors.py"][:-1] + b"#"}, "in common/errors.py. Install"),
        (lambda own: {**own, "sitecustomize.py": b""}, "in sitecustomize.py. Install"),
        (lambda own: {k: v for k, v in own.items() if k != "client/app.py"}, "in client/app.py. Install"),
        (lambda own: {"a\x1b.py": b""}, r"in a\x1b.py, client/"),
    ],
)
def test_another_app_is_refused_with_what_differs_and_its_hash(own, change, difference):
    content = bundle(change(own).items())
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(AppRefused) as refused:
        AppTrust().check_app(content)
    assert difference in str(refused.value)
    assert f"--trust-app {digest}" in str(refused.value)
    AppTrust(hashes=frozenset({digest})).check_app(content)
    AppTrust(anything=True).check_app(content)


@pytest.mark.parametrize("trust", [AppTrust(), AppTrust(anything=True)])
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([(".info/CONTENT", bytes(65 * 2**20))], "it has more than 64 MB"),
        ([(f"empty-{number}", b"") for number in range(5_001)], "it has more than 5000 files"),
    ],
)
def test_an_app_that_would_fill_the_disk_is_refused_before_it_is_unpacked(own, trust, more, reason):
    content = bundle([*own.items(), *more])
    assert len(content) < 2**21
    with pytest.raises(AppRefused, match=f"refused before it is unpacked: {reason}"):
        trust.check_app(content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_hides_behind_one_of_the_same_name(own):
    with pytest.raises(AppRefused, match="it holds a file twice"):
        AppTrust().check_app(bundle([("client/app.py", b"evil"), *own.items()]))


def test_what_is_no_bundle_at_all():
    with pytest.raises(AppRefused, match="it is no bundle"):
        AppTrust().check_app(b"PK\x03\x04")


def test_a_model_of_the_owners_is_imported_only_with_the_owners_leave():
    AppTrust().check_config({"model.name": "mlp"})
    AppTrust(models=frozenset({"mine.nets:make"})).check_config({"model.name": "mine.nets:make"})
    with pytest.raises(AppRefused, match=r"asks for the model 'os:system'.*--allow-model os:system"):
        AppTrust(models=frozenset({"mine.nets:make"})).check_config({"model.name": "os:system"})
    AppTrust(models=frozenset({"mine.tasks:Upper"})).check_config({"task.kind": "mine.tasks:Upper"})
    with pytest.raises(AppRefused, match=r"asks for the task 'os:system'.*--allow-model os:system"):
        AppTrust(data=frozenset({"os:system"})).check_config({"task.kind": "os:system"})


@pytest.mark.parametrize("key", ["data.dataset", "data.partition"])
def test_a_data_set_or_partition_of_the_owners_likewise(key):
    AppTrust().check_config({"data.dataset": "digits", "data.partition": "iid"})
    AppTrust(data=frozenset({"mine.data:load"})).check_config({key: "mine.data:load"})
    AppTrust(anything=True).check_config({key: "os:system"})
    AppTrust().check_config({"model.name": "torchvision:resnet18"})  # of models alone that is Bouquet's own
    with pytest.raises(AppRefused):
        AppTrust().check_config({key: "torchvision:resnet18"})
    with pytest.raises(AppRefused, match=r"asks for the (data set|partition) 'os:system'.*--allow-data os:system"):
        AppTrust(models=frozenset({"os:system"}), data=frozenset({"mine.data:load"})).check_config({key: "os:system"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hashes": frozenset({"ABC"})}, "is no SHA-256"),
        ({"models": frozenset({"mlp"})}, "names no model of your own"),
        ({"data": frozenset({"digits"})}, "names no data set or partition of your own"),
        ({"procedures": frozenset({"mine:train"})}, "names no procedure"),
        ({"procedures": frozenset({"mine theirs"})}, "names no procedure"),
    ],
)
def test_what_the_owner_types_wrong(wrong, message):
    with pytest.raises(BouquetError, match=message):
        AppTrust(**wrong)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"fab_hash": "0" * 64}, "names and a hash that are not its own"),
        ({"fab_id": "bouquet/../../photos"}, "names and a hash that are not its own"),
        ({"fab_version": "0"}, "names and a hash that are not its own"),
        ({"primary_task_type": TaskType.AGENT_APP}, "asks for an agent"),
        ({"override_config": {"model.name": "os:system"}}, "asks for the model 'os:system'"),
    ],
)
def test_what_the_server_says_of_a_trusted_app_is_checked_too(own, change, reason):
    from importlib.metadata import version

    content = bundle(own.items())
    digest = hashlib.sha256(content).hexdigest()
    says = {"fab_id": "bouquet/bouquet-fl", "fab_version": version("bouquet-fl"), "fab_hash": digest}
    says |= {"primary_task_type": TaskType.SERVER_APP, "override_config": {}}
    run, fab = SimpleNamespace(**says | change), SimpleNamespace(content=content, hash_str=digest)
    if reason is None:
        check(AppTrust(), run, fab)
    else:
        with pytest.raises(AppRefused, match=reason):
            check(AppTrust(), run, fab)


def test_a_flower_that_receives_apps_otherwise_is_not_started():
    with pytest.raises(BouquetError, match=r"install flwr>=1\.41"):
        guard(AppTrust(), SimpleNamespace())


def test_a_second_signal_does_not_cut_off_the_end_that_the_first_began():
    """With Flower's own registration, in a process of its own: SIGTERM twice, the second while it says goodbye."""
    code = """
import os, signal, sys, types
from flwr.supercore.exit import register_signal_handlers, add_exit_handler
from flwr.supercore.telemetry import EventType
from client.supernode.main import end_once

def goodbye():
    os.kill(os.getpid(), signal.SIGTERM)
    print("said goodbye", flush=True)

supernode = types.SimpleNamespace(register_signal_handlers=register_signal_handlers)
if sys.argv[1] == "once":
    end_once(supernode)
supernode.register_signal_handlers(EventType.RUN_SUPERNODE_LEAVE)
add_exit_handler(goodbye)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    said = {
        how: subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, env=environment).stdout
        for how in ("once", "as Flower does")
    }
    assert said == {"once": "said goodbye\n", "as Flower does": ""}
