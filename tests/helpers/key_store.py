"""A folder of keys, looked at by openssl's means."""

import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.common.trust.certificates import expires


def run(*arguments):
    done = CliRunner().invoke(app, ["keys", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.replace("\n", " ")


def days_left(pem):
    return round((expires(pem) - datetime.now(UTC)) / timedelta(days=1))


def key_of(pem):
    return x509.load_pem_x509_certificate(pem).public_key()


def names(keys):
    certificate = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes())
    alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in alternative]


def check_pair(keys):
    """OpenSSL accepts the server's certificate and key, and the authority as their authority."""
    context = ssl.create_default_context(cafile=keys / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    server = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes()))
