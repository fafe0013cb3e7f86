"""Apps that an owner signed: what a device takes, and every way to have it take another, refused and named."""

import hashlib
import io
import json
import zipfile
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.supernode.app_check import guard
from client.supernode.main import parse
from client.trust.policy import AppRefused, AppTrust
from client.trust.rollback import ROLLOUT_FILE
from common import protocol
from common.errors import BouquetError
from common.trust.app_bundle import own_app_files
from common.trust.signature import FORMAT, SIGNATURE_FILE, Statement, files_digest, public_text, sign

OWNER, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def installed():
    return own_app_files()


@pytest.fixture(scope="module")
def newer(installed):
    """The app of another release than the one installed."""
    return {**installed, "common/errors.py": installed["common/errors.py"] + b"# better\n"}


@pytest.fixture
def trust(tmp_path):
    return AppTrust(signers=frozenset({public_text(OWNER.public_key())}), memory=tmp_path / ROLLOUT_FILE)


def digest(files):
    return files_digest({name: hashlib.sha256(content).digest() for name, content in files.items()})


def signed(files, serial=1, key=OWNER, release="0.2.0"):
    return {**files, SIGNATURE_FILE: sign(Statement(release, serial, "2026-11-22T12:00:00+00:00", digest(files)), key)}


def bundle(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, data)
        archive.writestr(".info/CONTENT", "Flower's manifest")
    return content.getvalue()


def refusal(trust, files):
    with pytest.raises(AppRefused) as refused:
        trust.check_app(bundle(files))
    return str(refused.value)


def test_an_app_that_the_owner_signed_is_taken_and_said(trust, newer):
    said = trust.check_app(bundle(signed(newer)))
    assert "release 0.2.0, signed 2026-11-22T12:00:00+00:00 (serial 1), signed by SHA256:" in said
    assert "each message starts a fresh Python" in said
    assert not trust.is_own(bundle(signed(newer)))
    kept = json.loads(trust.memory.read_text())
    assert (kept["serial"], kept["release"]) == (1, "0.2.0")


def test_the_app_installed_here_stays_warm_with_a_signature_and_without(trust, installed):
    assert trust.check_app(bundle(signed(installed))) == trust.check_app(bundle(installed)) == ""
    assert trust.is_own(bundle(signed(installed)))
    # A device that trusts nobody's signature takes it as it does today.
    assert AppTrust().check_app(bundle(signed(installed, key=STRANGER))) == ""
    assert f"in {SIGNATURE_FILE}" in refusal(AppTrust(), {**installed, SIGNATURE_FILE: b" " * 5000})  # no signature


def spoiled(app, **changes):
    content = {**json.loads(app[SIGNATURE_FILE]), **changes}
    return {**app, SIGNATURE_FILE: json.dumps(content).encode()}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda files: files, "the app is not signed"),
        (lambda files: signed(files, key=STRANGER), "signed by SHA256:"),
        # A stranger's signature under the owner's name; the owner's statement with another serial.
        (lambda files: spoiled(signed(files, key=STRANGER), signer=public_text(OWNER.public_key())), "is false"),
        (lambda files: spoiled(signed(files), serial=2), "its signature is false"),
        (lambda files: spoiled(signed(files), files=digest({})), "its signature is false"),
        (lambda files: {**signed(files), "common/errors.py": b"evil"}, "that of other files (release 0.2.0"),
        (lambda files: {**signed(files), "sitecustomize.py": b"evil"}, "that of other files"),
        (lambda files: {n: c for n, c in signed(files).items() if n != "client/app.py"}, "that of other files"),
        (lambda files: {**files, SIGNATURE_FILE: signed({"a.py": b""})[SIGNATURE_FILE]}, "that of other files"),
        (lambda files: {**files, SIGNATURE_FILE: b"\xff\x00 garbage"}, "its signature cannot be read"),
        (lambda files: {**files, SIGNATURE_FILE: b"[]"}, "its signature cannot be read"),
        (lambda files: {**files, SIGNATURE_FILE: b"[" * 4000}, "its signature cannot be read"),
        (lambda files: {**files, SIGNATURE_FILE: b" " * 5000}, "more than 4096 bytes"),
        (lambda files: spoiled(signed(files), format="bouquet-app-2"), "has the format 'bouquet-app-2'"),
        (lambda files: spoiled(signed(files), serial="9"), "is no positive integer"),
        (lambda files: spoiled(signed(files), serial=True), "is no positive integer"),
        (lambda files: spoiled(signed(files), signature="!!"), "its signature cannot be read"),
        (lambda files: spoiled(signed(files), release="0\x1b[2J"), "its signature cannot be read"),
        (lambda files: {**signed(files), f"a.py\n{'0' * 64}  b.py": b""}, "a file of a name that nobody signs"),
    ],
)
def test_what_is_not_the_owners_is_refused_and_forgotten(trust, newer, make, reason):
    said = refusal(trust, make(newer))
    assert reason in said
    assert said.startswith("This device runs only the app of its own installation (bouquet-fl ")
    assert "Sign the server's release with bouquet keys sign" in said
    assert not trust.memory.exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_hides_behind_a_signed_one(trust, newer):
    assert "it holds a file twice" in refusal(trust, [("client/app.py", b"evil"), *signed(newer).items()])


def test_an_older_release_is_refused_also_after_a_restart(trust, newer):
    oldest, newest = {**newer, "a.py": b""}, {**newer, "b.py": b""}
    trust.check_app(bundle(signed(newest, 20)))
    again = AppTrust(signers=trust.signers, memory=trust.memory)
    said = refusal(again, signed(oldest, 19, release="0.1.9"))
    assert "it is release 0.1.9, signed 2026-11-22T12:00:00+00:00 (serial 19), and a newer one has run here: " in said
    assert "release 0.2.0" in said
    # Nor another app under the same serial; the same again, and whatever is newer, is taken.
    assert "a newer one has run here" in refusal(again, signed(oldest, 20))
    again.check_app(bundle(signed(newest, 20)))
    again.check_app(bundle(signed(oldest, 21)))
    assert "a newer one has run here" in refusal(again, signed(newest, 20))


def test_what_is_installed_is_old_once_a_newer_release_has_run(trust, installed, newer):
    trust.check_app(bundle(signed(newer, 20)))
    for files in (installed, signed(installed, 19), signed(installed, 21, STRANGER)):
        assert "it is what is installed here, and a newer one has run: release 0.2.0" in refusal(trust, files)
    # Signed anew, it is the newest: the owner goes back to it.
    assert trust.check_app(bundle(signed(installed, 21))) == ""
    assert trust.check_app(bundle(installed)) == ""


def test_what_was_installed_since_is_taken_without_a_signature(trust, installed, newer):
    trust.check_app(bundle(signed(newer, 20)))
    kept = json.loads(trust.memory.read_text())
    trust.memory.write_text(json.dumps({**kept, "installed": digest({"older": b""})}))
    assert trust.check_app(bundle(installed)) == ""
    # and that the newest signed one runs again, changes nothing of it
    trust.check_app(bundle(signed(newer, 20)))
    assert trust.check_app(bundle(installed)) == ""


def test_a_memory_that_is_spoiled_or_cannot_be_kept_stops_everything_signed(trust, installed, newer):
    trust.memory.write_text("{")
    assert "which holds the newest release that ran here, cannot be read" in refusal(trust, signed(newer))
    assert "cannot be read" in refusal(trust, installed)
    trust.memory.unlink()
    lost = AppTrust(signers=trust.signers, memory=trust.memory / "nowhere" / ROLLOUT_FILE)
    assert "cannot be written: No such file or directory" in refusal(lost, signed(newer))


def test_it_reaches_the_process_that_checks(trust, newer):
    own = ["--trust-signer", next(iter(trust.signers)), "--rollout", str(trust.memory)]
    assert parse([*own, "--", "--insecure"]) == (trust, None, ["--insecure"])
    with pytest.raises(BouquetError, match="is no signer's public key"):
        AppTrust(signers=frozenset({"ssh-rsa AAAA"}), memory=trust.memory)
    with pytest.raises(BouquetError, match="needs a file that remembers"):
        AppTrust(signers=trust.signers)
    assert FORMAT in signed(newer)[SIGNATURE_FILE].decode()


def test_the_server_learns_from_a_refusal_what_is_installed(trust, newer):
    from importlib.metadata import version

    for wary in (trust, AppTrust()):
        error = SimpleNamespace(error=SimpleNamespace(reason=refusal(wary, newer)), has_content=lambda: False)
        assert protocol.about(error) == {protocol.RELEASE: version("bouquet-fl")}
    other = SimpleNamespace(error=SimpleNamespace(reason="Out of memory."), has_content=lambda: False)
    assert protocol.about(other) == {}


def fake_supernode(original, replies):
    """What `client.supernode.main` needs of ``flwr.supernode.start_client_internal``; replies are the reasons alone."""
    return SimpleNamespace(
        _pull_and_store_message=original,
        Error=lambda code, reason: reason,
        ErrorCode=SimpleNamespace(INVALID_FAB=1),
        Message=lambda reason, reply_to: reason,
        _insert_message=lambda reply, *_: replies.append(reply),
    )


def test_an_app_that_was_refused_is_not_downloaded_for_the_next_message(trust, newer, monkeypatch):
    monkeypatch.setattr("client.supernode.app_check.check", lambda trust, run, fab: trust.check_app(fab.content))
    fabs = {number: SimpleNamespace(content=bundle({**newer, f"{number}.py": b""}), hash_str="") for number in (1, 2)}
    downloads, replies = [], []

    def original(state, object_store, receive, get_run, get_fab):
        number = receive()[0].metadata.run_id
        get_fab(get_run(number).fab_hash, number)

    def download(fab_hash, number):
        downloads.append(fab_hash)
        return fabs[number]

    supernode = fake_supernode(original, replies)
    guard(trust, supernode)
    for number in (1, 1, 1, 2, 2):
        message = SimpleNamespace(metadata=SimpleNamespace(run_id=number))
        supernode._pull_and_store_message(
            state=SimpleNamespace(get_run=lambda _: None),
            object_store=None,
            receive=lambda message=message: (message, None),
            get_run=lambda number: SimpleNamespace(fab_hash=f"of run {number}"),
            get_fab=download,
        )
    assert downloads == ["of run 1", "of run 2"]
    assert len(replies) == 5
    assert all("This device runs only" in reason for reason in replies)


def test_a_run_of_an_older_release_that_goes_on_ends_when_a_newer_one_has_run(trust, newer, monkeypatch):
    """Both runs are known to SuperNode, so that it would ask for neither app again."""
    monkeypatch.setattr("client.supernode.app_check.check", lambda trust, run, fab: trust.check_app(fab.content))
    fabs = {
        number: SimpleNamespace(content=content, hash_str=hashlib.sha256(content).hexdigest())
        for number, content in ((1, bundle(signed(newer, 1))), (2, bundle(signed({**newer, "a.py": b""}, 2))))
    }
    runs, replies = {}, []
    state = SimpleNamespace(
        get_run=runs.get, get_fab=lambda hash_: next(fab for fab in fabs.values() if fab.hash_str == hash_)
    )

    def original(state, object_store, receive, get_run, get_fab):
        message, _ = receive()
        number = message.metadata.run_id
        if state.get_run(number) is None:
            run = get_run(number)
            get_fab(run.fab_hash, number)
            runs[number] = run
        return number

    supernode = fake_supernode(original, replies)
    guard(trust, supernode)

    def message_of(number):
        message = SimpleNamespace(metadata=SimpleNamespace(run_id=number))
        supernode._pull_and_store_message(
            state=state,
            object_store=None,
            receive=lambda: (message, None),
            get_run=lambda _: SimpleNamespace(fab_hash=fabs[number].hash_str),
            get_fab=lambda *_: fabs[number],
        )
        return replies

    assert message_of(1) == message_of(1) == message_of(2) == message_of(2) == []
    (reason,) = message_of(1)
    assert "a newer one has run here" in reason
