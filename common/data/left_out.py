"""What of a device's own data cannot be read: named, and left out where it is little; photos, rows and npz alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bouquet.common.errors import BouquetError

MOST = 0.05  # of a device's photos or rows; a single one always
NAMED = 8  # whose reason is told


@contextmanager
def named(what: str, how: str = "", advice: str = "") -> Iterator[None]:
    """Inside, whatever a library raises over ``what`` becomes a `BouquetError` that names it.

    Libraries that decode files raise what they like over bytes that nobody wrote on purpose, so that no list of
    exceptions is ever whole.
    """
    try:
        yield
    except BouquetError:
        raise
    except Exception as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise BouquetError(f"{what} cannot be read{how} ({reason.rstrip('.')}){advice}.") from error


@dataclass
class LeftOut:
    """The photos or rows (``what``) that are left out, each with its reason; with ``strict`` the first is an error."""

    what: str
    strict: bool = False
    count: int = 0
    reasons: list[str] = field(default_factory=list)
    public: str = ""  # what is told of the first

    def add(self, error: BouquetError) -> None:
        """Leave one out. Raises the error where the device's owner is strict."""
        public = error.public if error.public != str(error) else ""
        if self.strict:
            text = f"{error} Nothing is left out, as its owner has it (--strict)."
            raise BouquetError(text, public=public or f"One of this device's {self.what} cannot be read.")
        self.count += 1
        self.public = self.public or public
        if len(self.reasons) < NAMED:
            self.reasons.append(str(error).replace("\n", r"\n"))  # of a file's name

    def check(self, total: int) -> None:
        """Raise `BouquetError` where more than `MOST` of ``total`` are left out: then something else is wrong."""
        if self.count > max(1.0, MOST * total):
            few = f"{self.count} of {total} {self.what} cannot be read"
            raise BouquetError(
                f"{few}, and at most {MOST:.0%} are left out. {self.reasons[0]}",
                public=f"{few} on this device. {self.public}".rstrip(),
            )

    def notes(self, total: int) -> tuple[str, ...]:
        """A sentence for the owner, and the reasons."""
        more = f" And {self.count - NAMED} more." * (self.count > NAMED)
        said = f"Left out: {self.count} of {total} {self.what}. {' '.join(self.reasons)}{more}"
        return (said,) if self.count else ()
