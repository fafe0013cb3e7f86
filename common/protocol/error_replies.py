"""Error replies: those that a device sends, and what the server reads from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message

from bouquet.common.compression.delta import LostCopyError
from bouquet.common.errors import BouquetError, NotNow
from bouquet.common.protocol.decoding import about
from bouquet.common.protocol.names import AGAIN_IN, NOT_NOW, REFUSES

_CLIENT_APP_ERROR = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
_APP_REFUSED, _APP_CRASHED = 7, 8  # INVALID_FAB and CLIENT_APP_CRASHED of the same
_LOST_COPY_ERROR, _LOST_BACKBONE_ERROR, _OWNER_ERROR = 1001, 1002, 1003  # none of Flower's
UNREADABLE_ERROR = 1004  # the server's own, in the place of a reply
NOT_NOW_ERROR = 1005  # its reason begins with the seconds after which the device is to be asked again
_SECONDS_AND_REASON = re.compile(r"(\d{1,7}) (.*)", re.DOTALL)


class LostBackboneError(BouquetError):
    """The device no longer holds what it was once sent of the model beside what travels."""


class OwnerRefusal(BouquetError):
    """The device's owner allows nothing of what the run would do; that stays so until one of them is restarted."""


@dataclass(frozen=True)
class Rest:
    """What a device said that does not work now: why, and after how many seconds it is to be asked again."""

    reason: str
    seconds: float


def refusal(message: Message, reason: BouquetError | str) -> Message:
    """A reply that carries an error, so that the server can name the reason: of a `BouquetError` what is public."""
    codes = {LostCopyError: _LOST_COPY_ERROR, LostBackboneError: _LOST_BACKBONE_ERROR, OwnerRefusal: _OWNER_ERROR}
    code = next((code for kind, code in codes.items() if isinstance(reason, kind)), _CLIENT_APP_ERROR)
    text = reason.public if isinstance(reason, BouquetError) else reason
    if isinstance(reason, NotNow):
        code, text = NOT_NOW_ERROR, not_now_text(reason)
    return Message(Error(code=code, reason=text), reply_to=message)


def says_copy_is_lost(message: Message) -> bool:
    """Whether a device could not read its message because it no longer holds what that was a difference to."""
    return bool(message.has_error() and message.error.code == _LOST_COPY_ERROR)


def says_backbone_is_lost(message: Message) -> bool:
    """Whether a device no longer has what it was once sent beside what travels."""
    return bool(message.has_error() and message.error.code == _LOST_BACKBONE_ERROR)


def refuses_app(message: Message) -> bool:
    """Whether a device did not take the server's code: nothing was run, nor will be while that is so."""
    return bool(message.has_error() and message.error.code == _APP_REFUSED)


def owners_refusal(message: Message) -> str:
    """Why a device's owner lets it take no part in the run, by an error or in what it says of itself; else empty."""
    if message.has_error():
        return str(message.error.reason) if message.error.code == _OWNER_ERROR else ""
    return str(about(message).get(REFUSES, ""))


def not_now_text(reason: NotNow) -> str:
    """A `NotNow` as the reason of an error reply."""
    return f"{max(0, round(reason.seconds))} {reason}"


def rest_of(message: Message, said: Mapping[str, Any]) -> Rest | None:
    """That a device does not work now, as it says by an error or in what it says of itself; its words as they are."""
    if message.has_content():
        reason, seconds = said.get(NOT_NOW), said.get(AGAIN_IN)
        if not reason:
            return None
        return Rest(str(reason), float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e7 else 0.0)
    if message.error.code != NOT_NOW_ERROR:
        return None
    match = _SECONDS_AND_REASON.fullmatch(str(message.error.reason))
    return Rest(match[2], float(match[1])) if match else Rest(str(message.error.reason), 0.0)


def has_crashed(message: Message) -> bool:
    """Whether what worked on a message on the device ended without an answer: killed, or out of memory."""
    return bool(message.has_error() and message.error.code == _APP_CRASHED)


def cannot_be_read(message: Message) -> bool:
    """Whether an error is the server's, in the place of a reply of which no message can be made."""
    return bool(message.has_error() and message.error.code == UNREADABLE_ERROR)
