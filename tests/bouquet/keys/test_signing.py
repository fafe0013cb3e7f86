"""``bouquet keys signer`` and ``sign``, and what a server makes of a signature."""

import json
import stat

import pytest
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.client.trust.policy import CodeTrust
from bouquet.client.trust.rollback import ROLLOUT_FILE
from bouquet.common.errors import BouquetError
from bouquet.common.trust.code import own_code, owners_signature
from bouquet.common.trust.signature import fingerprint, read_signer, verify
from bouquet.federation.serve import Options
from bouquet.keys.store import ServerKeys


def bouquet(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.fixture
def signer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bouquet("keys", "signer")
    return tmp_path / "signer"


def test_a_signers_key_is_made_once_and_is_its_owners(signer):
    assert stat.S_IMODE((signer / "signer.key").stat().st_mode) == 0o600
    assert fingerprint(read_signer(signer / "signer.pub")).startswith("SHA256:")
    with pytest.raises(BouquetError, match=r"signer\.key is there already"):
        bouquet("keys", "signer")


def test_what_is_signed_is_what_the_server_sends_and_a_device_takes(signer, tmp_path):
    assert "signed   release.sig: release " in bouquet("keys", "sign")
    content, said = owners_signature(tmp_path / "release.sig")
    public = read_signer(signer / "signer.pub")
    assert said.endswith(f", by {fingerprint(public)}")
    first, _ = verify(content, own_code(), frozenset({public}))
    bouquet("keys", "sign", "--serial", str(first.serial + 1), "--out", "next.sig")
    assert json.loads((tmp_path / "next.sig").read_text())["serial"] == first.serial + 1
    trust = CodeTrust(signers=frozenset({public}), memory=tmp_path / ROLLOUT_FILE)
    assert trust.check_code(own_code(), content, "bouquet-fl 9") == ""


def test_where_the_server_finds_it_and_what_it_refuses(signer, tmp_path):
    keys = ServerKeys(certificates=None, registered=tmp_path / "keys" / "registered")
    options = Options("127.0.0.1", 1, keys, console=None)
    assert options.owners_signature is None
    (tmp_path / "keys").mkdir()
    bouquet("keys", "sign", "--out", "keys/release.sig")
    assert options.owners_signature == tmp_path / "keys" / "release.sig"
    assert Options("127.0.0.1", 1, None, None, signature=tmp_path / "x").owners_signature == tmp_path / "x"
    said = json.loads((tmp_path / "keys" / "release.sig").read_text())
    (tmp_path / "false.sig").write_text(json.dumps({**said, "serial": said["serial"] + 1}))
    (tmp_path / "torn.sig").write_text("{")
    for file, reason in (("false.sig", "its signature is false"), ("torn.sig", "its signature cannot be read")):
        with pytest.raises(BouquetError, match=f"{file} does not fit the code of this server .*: {reason}. Sign this"):
            owners_signature(tmp_path / file)
    with pytest.raises(BouquetError, match=r"nowhere\.sig cannot be read: No such file"):
        owners_signature(tmp_path / "nowhere.sig")


def test_a_key_that_others_can_read_and_what_is_no_key(signer, tmp_path):
    (signer / "signer.key").chmod(0o640)
    with pytest.raises(BouquetError, match=r"can be read by others .mode 640.: chmod 600"):
        bouquet("keys", "sign")
    (signer / "signer.key").write_text("no key")
    (signer / "signer.key").chmod(0o600)
    with pytest.raises(BouquetError, match="is no signing key"):
        bouquet("keys", "sign")
    with pytest.raises(BouquetError, match=r"cannot be read .No such file or directory.; bouquet keys signer makes"):
        bouquet("keys", "sign", "--dir", "elsewhere")
    (tmp_path / "rsa.pub").write_text("ssh-rsa AAAA")
    with pytest.raises(BouquetError, match=r"rsa\.pub is no public key of a signer"):
        read_signer(tmp_path / "rsa.pub")
