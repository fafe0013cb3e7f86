"""Which certificates a file holds, whose they are, and which may replace which."""

import re
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bouquet.common.errors import BouquetError
from bouquet.common.trust.certificates import check_renewal, common_name, expires, fingerprint, read, registered, split

NOW = datetime.now(UTC).replace(microsecond=0)
YEAR = timedelta(days=365)
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
AUTHORITY, DEVICE, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))


def name(common):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])


def made(
    common="pi",
    key=DEVICE,
    authority=AUTHORITY,
    issuer="authority",
    usage=CLIENT,
    begins=NOW - timedelta(days=1),
    ends=NOW + YEAR,
):
    builder = x509.CertificateBuilder(
        name(issuer), name(common), key.public_key(), x509.random_serial_number(), begins, ends
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


OWN_AUTHORITY = made("authority", AUTHORITY, usage=None)


def test_split_takes_the_certificates_alone_and_in_order():
    first, second = made(), made("other")
    assert split(b"Bag attributes\n" + first + b"\n# between\n" + second.rstrip()) == [first, second]
    private = DEVICE.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    assert split(private) == split(b"") == []


def test_the_fingerprint_is_openssls():
    pem = made()
    expected = x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    assert fingerprint(pem) == fingerprint(pem.replace(b"\n", b"\r\n")) == expected
    for garbage in (
        b"",
        b"garbage",
        b"\xff",
        pem[:-30],
        b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n",
    ):
        with pytest.raises(BouquetError, match="no certificate in PEM"):
            fingerprint(garbage)


def test_an_agent_needs_no_cryptography_for_a_fingerprint():
    code = (
        "import sys; from bouquet.common.trust.certificates import fingerprint, split; "
        "print(fingerprint(*split(sys.stdin.buffer.read())), [m for m in sys.modules if m.startswith('cryptography')])"
    )
    pem = made()
    done = subprocess.run([sys.executable, "-c", code], input=pem, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().strip() == f"{fingerprint(pem)} []"


def test_a_file_is_read_whole_or_not_at_all(tmp_path):
    new, old, file = made(), made(), tmp_path / "pi.crt"
    file.write_bytes(new + old)
    assert read(file) == (new, old)
    parsed = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    for content in (b"", b"garbage", new + old[:-40], new[:100] + old, new + parsed):
        file.write_bytes(content)
        with pytest.raises(BouquetError, match=re.escape(str(file))):
            read(file)
    with pytest.raises(BouquetError, match=r"nowhere\.crt cannot be read \(No such file"):
        read(tmp_path / "nowhere.crt")


def test_a_certificate_whose_key_is_torn_is_none(tmp_path):
    """Cryptography parses keys when asked for them, which is later than anybody expects an error."""
    der = x509.load_pem_x509_certificate(made()).public_bytes(serialization.Encoding.DER)
    point = DEVICE.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    assert der.count(point) == 1
    pem = ssl.DER_cert_to_PEM_cert(der.replace(point, b"\x04" + bytes(64))).encode()
    x509.load_pem_x509_certificate(pem)
    (tmp_path / "pi.crt").write_bytes(pem)
    with pytest.raises(BouquetError, match=r"pi\.crt cannot be read: This is no certificate"):
        read(tmp_path / "pi.crt")


def test_registered_passes_over_what_it_cannot_read_and_what_is_no_certificates_file(tmp_path):
    new, old, other = made(), made(), made("b")
    (tmp_path / "pi.2.crt").write_bytes(new + old)
    (tmp_path / "b.crt").write_bytes(other)
    (tmp_path / "torn.crt").write_bytes(new[:-40])
    (tmp_path / "folder.crt").mkdir()
    (tmp_path / "c.pub").write_bytes(other)
    (tmp_path / ".b.crt.123").write_bytes(other)
    assert list(registered(tmp_path)) == [("b", (other,)), ("pi.2", (new, old))]
    assert list(registered(tmp_path / "nowhere")) == []


def test_name_and_end():
    pem = made("garden-pi", ends=NOW + YEAR)
    assert common_name(pem) == "garden-pi"
    assert common_name(made("")) == ""
    assert expires(pem) == NOW + YEAR
    assert expires(pem).utcoffset() == timedelta(0)
    for ask in (common_name, expires):
        with pytest.raises(BouquetError, match="not one certificate"):
            ask(b"garbage")
        with pytest.raises(BouquetError, match="not one certificate"):
            ask(pem + pem)


def test_a_renewal_that_is_one():
    old = made()
    check_renewal(made(), old, OWN_AUTHORITY)
    check_renewal(old, old, OWN_AUTHORITY)
    expired = made(ends=NOW - timedelta(hours=1))
    check_renewal(made(), expired, OWN_AUTHORITY)
    check_renewal(made(), made(authority=OTHER), OWN_AUTHORITY)  # only of the new one it is asked who signed it


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"key": OTHER}, "for another key"),
        ({"common": "other"}, "for another name, 'other'"),
        ({"common": ""}, "for another name, ''"),
        ({"authority": OTHER}, "not signed by this federation's authority"),
        ({"issuer": "another"}, "not signed by this federation's authority"),
        ({"usage": ExtendedKeyUsageOID.SERVER_AUTH}, "not for a client"),
        ({"usage": None}, "not for a client"),
        ({"begins": NOW + timedelta(hours=1), "ends": NOW + 2 * YEAR}, "not valid before"),
        ({"ends": NOW + YEAR - timedelta(seconds=1)}, "earlier than the one that it is to replace"),
    ],
)
def test_a_renewal_that_is_none(changed, reason):
    with pytest.raises(BouquetError, match=rf"The new certificate is refused: it .*{reason}"):
        check_renewal(made(**changed), made(), OWN_AUTHORITY)


def test_a_renewal_that_has_expired_or_brings_another_with_it():
    past = NOW - timedelta(hours=1)
    with pytest.raises(BouquetError, match="refused: it expired on"):
        check_renewal(made(ends=past), made(ends=past), OWN_AUTHORITY)
    with pytest.raises(BouquetError, match="not one certificate"):
        check_renewal(made() + made(key=OTHER), made(), OWN_AUTHORITY)
    with pytest.raises(BouquetError, match="not one certificate"):
        check_renewal(b"", made(), OWN_AUTHORITY)
