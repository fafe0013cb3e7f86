"""What goes on in a run, for whoever watches it: of a run folder here, or from a server's page."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.keys.store import expiring
from bouquet.server.record.overview import overview
from bouquet.server.record.reader import Run, read_run
from bouquet.server.record.status import FINISHED, TESTING, TRAINING, WAITING
from bouquet.server.run_folder import SETTINGS

MOST_BYTES = 64 * 2**20  # of a status
FETCH_SECONDS = 30.0
WELL = (WAITING, TRAINING, TESTING, FINISHED)


def collect(folder: Path, now: float | None = None) -> dict[str, Any]:
    """The `overview` of the run in ``folder``, and which of the server's certificates end soon.

    Raises `BouquetError` for a folder that is no run.
    """
    return status_of(read_run(folder), time.time() if now is None else now)


def status_of(run: Run, now: float) -> dict[str, Any]:
    """`collect` of a run that was read."""
    status = overview(run, now)
    registered = status["run"].pop("registered")
    status["run"]["warnings"] += what_expires(registered, int(now // 3600))
    return status


@lru_cache(maxsize=4)
def what_expires(registered: str | None, hour: int) -> tuple[str, ...]:
    """Certificates of this server's keys that end within a month, looked at once an ``hour`` (since 1970)."""
    with contextlib.suppress(BouquetError):
        if registered is not None:
            return tuple(expiring(Path(registered).parent, datetime.fromtimestamp(3600 * hour, UTC)))
    return ()


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: the token would go along."""

    def redirect_request(self, *_: object) -> None:
        """No further request: the redirect is an error."""


def fetch(address: str, token: str | None, authority: Path | None) -> dict[str, Any]:
    """The status that a server's page offers at ``address`` (``https://server:8090``).

    ``authority`` is the PEM file of the authority that signed the server's certificate. Raises `BouquetError`.
    """
    request = urllib.request.Request(address.rstrip("/") + "/status.json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Stay)
        with opener.open(request, timeout=FETCH_SECONDS) as answer:
            content: dict[str, Any] = json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        hint = "Give the token that the server printed (--token)." if error.code == 401 else error.reason
        raise BouquetError(f"{address} answers with status {error.code}. {hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BouquetError(f"{address} gives no status ({getattr(error, 'reason', error)}).") from None
    return content


def newest_run(parent: Path = Path("runs")) -> Path:
    """The run folder in ``parent`` that was written to last."""
    found = [folder for folder in parent.glob("*") if (folder / SETTINGS).is_file()]
    if not found:
        raise BouquetError(f"There is no run in {parent.absolute()}: name a run folder, or a server's page.")
    return max(found, key=lambda folder: max(file.stat().st_mtime for file in folder.iterdir() if file.is_file()))
