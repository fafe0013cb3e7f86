"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from common.errors import BouquetError


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file beside, sync, and rename over ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BouquetError(f"{path} cannot be written: {error.strerror}.") from None


def write_json(path: Path, content: Any) -> None:
    """Write JSON, indented, atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
