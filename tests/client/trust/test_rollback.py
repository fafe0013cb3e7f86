"""Code that an owner signed: what a device takes, and every way to have it take another, refused and named."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.trust.policy import CodeRefused, CodeTrust
from bouquet.client.trust.rollback import ROLLOUT_FILE
from bouquet.common.errors import BouquetError
from bouquet.common.trust.code import own_code
from bouquet.common.trust.signature import Statement, public_text, sign

OWNER, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
NEWER, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def trust(tmp_path):
    return CodeTrust(signers=frozenset({public_text(OWNER.public_key())}), memory=tmp_path / ROLLOUT_FILE)


def signed(code, serial=1, key=OWNER, release="0.2.0"):
    return sign(Statement(release, serial, "2026-11-22T12:00:00+00:00", code), key)


def refusal(trust, code, signature=b""):
    with pytest.raises(CodeRefused) as refused:
        trust.check_code(code, signature, "bouquet-fl 9")
    return str(refused.value)


def test_what_is_installed_here_runs_with_a_signature_and_without(trust):
    assert trust.check_code(own_code(), signed(own_code()), "") == trust.check_code(own_code(), b"", "") == ""
    # A device that trusts nobody's signature looks at none.
    assert CodeTrust().check_code(own_code(), signed(own_code(), key=STRANGER), "") == ""
    assert "--trust-app" in refusal(CodeTrust(), NEWER, signed(NEWER))


def spoiled(said, /, **changes):
    return json.dumps({**json.loads(said), **changes}).encode()


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (b"", "is not signed"),
        (signed(NEWER, key=STRANGER), "signed by SHA256:"),
        # A stranger's signature under the owner's name; the owner's statement with another serial.
        (spoiled(signed(NEWER, key=STRANGER), signer=public_text(OWNER.public_key())), "is false"),
        (spoiled(signed(NEWER), serial=2), "its signature is false"),
        (spoiled(signed(OTHER), files=NEWER), "its signature is false"),
        (signed(OTHER), "that of other files (release 0.2.0"),
        (b"\xff\x00 garbage", "its signature cannot be read"),
        (b"[]", "its signature cannot be read"),
        (b"[" * 4000, "its signature cannot be read"),
        (b" " * 5000, "more than 4096 bytes|5000 bytes, 4096 at most"),
        (spoiled(signed(NEWER), format="bouquet-app-2"), "has the format 'bouquet-app-2'"),
        (spoiled(signed(NEWER), serial="9"), "is no positive integer"),
        (spoiled(signed(NEWER), serial=True), "is no positive integer"),
        (spoiled(signed(NEWER), signature="!!"), "its signature cannot be read"),
        (spoiled(signed(NEWER), release="0\x1b[2J"), "its signature cannot be read"),
    ],
)
def test_what_is_not_the_owners_is_refused_and_forgotten(trust, signature, reason):
    said = refusal(trust, NEWER, signature)
    assert any(one in said for one in reason.split("|"))
    assert said.startswith("This device runs only the code of its own installation (bouquet-fl ")
    assert "Sign the server's release with bouquet keys sign" in said
    assert not trust.memory.exists()


def test_an_older_release_is_refused_also_after_a_restart(trust):
    trust.check_code(NEWER, signed(NEWER, 20), "")
    again = DeviceSettings.from_json(DeviceSettings("a:1", trust.memory.parent, trust=trust).to_json()).trust
    assert again == trust
    said = refusal(again, OTHER, signed(OTHER, 19, release="0.1.9"))
    assert "it is release 0.1.9, signed 2026-11-22T12:00:00+00:00 (serial 19), and a newer one has run here: " in said
    assert "release 0.2.0" in said
    # Nor other code under the same serial; the same again, and whatever is newer, is taken.
    assert "a newer one has run here" in refusal(again, OTHER, signed(OTHER, 20))
    again.check_code(NEWER, signed(NEWER, 20), "")
    again.check_code(OTHER, signed(OTHER, 21), "")
    assert "a newer one has run here" in refusal(again, NEWER, signed(NEWER, 20))


def test_what_is_installed_is_old_once_a_newer_release_has_run(trust):
    own = own_code()
    trust.check_code(NEWER, signed(NEWER, 20), "")
    for signature in (b"", signed(own, 19), signed(own, 21, STRANGER)):
        assert "it is what is installed here, and a newer one has run: release 0.2.0" in refusal(trust, own, signature)
    # Signed anew, it is the newest: the owner goes back to it.
    assert trust.check_code(own, signed(own, 21), "") == trust.check_code(own, b"", "") == ""


def test_what_was_installed_since_is_taken_without_a_signature(trust):
    trust.check_code(NEWER, signed(NEWER, 20), "")
    kept = json.loads(trust.memory.read_text())
    trust.memory.write_text(json.dumps({**kept, "installed": "3" * 64}))
    assert trust.check_code(own_code(), b"", "") == ""
    # and that the newest signed one runs again, changes nothing of it
    trust.check_code(NEWER, signed(NEWER, 20), "")
    assert trust.check_code(own_code(), b"", "") == ""


def test_a_memory_that_is_spoiled_or_cannot_be_kept_stops_everything_signed(trust):
    trust.memory.write_text("{")
    assert "which holds the newest release that ran here, cannot be read" in refusal(trust, NEWER, signed(NEWER))
    assert "cannot be read" in refusal(trust, own_code())
    trust.memory.unlink()
    lost = CodeTrust(signers=trust.signers, memory=trust.memory / "nowhere" / ROLLOUT_FILE)
    assert "cannot be written: No such file or directory" in refusal(lost, NEWER, signed(NEWER))
    with pytest.raises(BouquetError, match="is no signer's public key"):
        CodeTrust(signers=frozenset({"ssh-rsa AAAA"}), memory=trust.memory)
