"""The server's certificates, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bouquet.common.errors import BouquetError


@dataclass(frozen=True)
class Certificates:
    """PEM files for TLS: the authority's certificate, the server's, and the server's private key."""

    authority: Path
    certificate: Path
    key: Path

    def found(self) -> Certificates:
        """The same, with absolute paths; `BouquetError` unless each is there."""
        files = [self.authority, self.certificate, self.key]
        for file in files:
            if not file.is_file():
                raise BouquetError(f"There is no certificate or key {file}; bouquet keys makes them.")
        return Certificates(*(file.absolute() for file in files))
