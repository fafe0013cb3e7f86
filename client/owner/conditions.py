"""The file of a device's owner that says when the device works: ``[when]`` of ``bouquet client --when FILE``.

It is the owner's and never the server's. It is read anew whenever it has changed, so that no restart is needed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bouquet.client.owner.sensors import Sensors
from bouquet.common.errors import BouquetError
from bouquet.common.system.files import read_toml

HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*[-–]\s*([01]?\d|2[0-3]):([0-5]\d)")
DAY = 24 * 60  # minutes
MOST_BYTES = 64 * 1024  # of the file
DEGREES_LESS = 10.0  # than where it became too hot, before it works again


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class When(BaseModel):
    """What must hold for the device to work, and how much of it the work may take; what is left out does not matter."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hours: Texts = Field((), description="Local time, such as '22:00-06:00'; one or several.")
    mains: bool = Field(False, description="Only while a charger is connected.")
    battery: float | None = Field(
        None, gt=0, le=1, description="Without a charger, only while the battery has this share of its charge."
    )
    temperature: float | None = Field(
        None, description="°C of the hottest thermal zone, from which it stops, until it is 10 °C cooler."
    )
    command: Texts = Field((), description="Only while this program, with its arguments, ends with status 0.")
    look_again: float = Field(
        60.0, ge=1, le=3600, description="Seconds after which the server asks again, where the time is not known."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads of the training; all idle cores if left out.")
    cpu_share: float = Field(1.0, gt=0, le=1, description="Share of the time in which it trains; it rests between.")

    @model_validator(mode="after")
    def _fits(self) -> When:
        for window in self.hours:
            begin, end = _minutes(window)
            if begin == end:
                raise ValueError(f"hours {window!r} begin where they end")
        return self

    @property
    def cool(self) -> float:
        """°C below which the device that was too hot works again."""
        assert self.temperature is not None
        return self.temperature - DEGREES_LESS


def read_when(file: Path) -> When:
    """Read the owner's file. Raises `BouquetError`, naming key, value and what is allowed.

    Whoever may write it may have this user run a command, so nobody but root and this user may.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise BouquetError(f"{file} (--when) is no file of {MOST_BYTES // 1024} kB at most.")
        if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BouquetError(f"{file} can be changed by others than root and this user: chown root, chmod 644.")
    except OSError as error:
        raise BouquetError(f"The file (--when) {file} cannot be read: {error.strerror}.") from None
    content = read_toml(file, "The file (--when)")
    if set(content) != {"when"} or not isinstance(content["when"], dict):
        raise BouquetError(f"{file} has {', '.join(sorted(content)) or 'nothing'}; it has one section, [when].")
    try:
        return When.model_validate(content["when"])
    except ValidationError as error:
        raise BouquetError(f"{file}: {' '.join(_problem(item) for item in error.errors())}") from None


def outside_hours(when: When, now: datetime) -> tuple[str, float] | None:
    """Why not at this time of day, and the seconds until its next hours; None inside them."""
    minute = now.hour * 60 + now.minute
    waits = []
    for begin, end in map(_minutes, when.hours):
        if (minute - begin) % DAY < (end - begin) % DAY:
            return None
        waits.append(((begin - minute) % DAY, begin))
    if not waits:
        return None
    wait, begin = min(waits)
    seconds = wait * 60.0 - now.second - now.microsecond / 1e6
    return f"outside its hours; again after {begin // 60:02d}:{begin % 60:02d}", max(1.0, seconds)


def readings(when: When, sensors: Sensors, was_hot: bool) -> dict[str, Callable[[], str | None]]:
    """What is to be looked at, by name: each says why the device may not work, or None where it may.

    A reading that the machine does not give is a reason, too: what the owner asked for cannot be told to hold.
    """

    def power() -> str | None:
        if (mains := sensors.on_mains()) is True:
            return None
        if mains is None:
            return "whether it is on mains is not known"
        if when.mains:
            return "on battery; again on mains"
        level = sensors.battery()
        if level is not None and when.battery is not None and level >= when.battery:
            return None
        if level is None:
            return "how full its battery is, is not known"
        return f"battery below {when.battery:.0%}; again from there, or on mains"

    def heat() -> str | None:
        assert when.temperature is not None
        degrees = sensors.temperature()
        if degrees is None:
            return "its temperature is not known"
        limit = when.cool if was_hot else when.temperature
        return None if degrees < limit else f"too hot; again below {when.cool:g} °C"

    def command() -> str | None:
        allowed = sensors.allows(when.command)
        if allowed is None:
            return "its owner's own command cannot be started, or did not end"
        return None if allowed else "its owner's own command says so"

    wanted: dict[str, tuple[Any, Callable[[], str | None]]] = {
        "power": (when.mains or when.battery, power),
        HEAT: (when.temperature is not None, heat),
        "command": (when.command, command),
    }
    return {name: look for name, (is_wanted, look) in wanted.items() if is_wanted}


HEAT = "temperature"


def _minutes(window: str) -> tuple[int, int]:
    if (match := HOURS.fullmatch(window.strip())) is None:
        raise ValueError(f"hours {window!r} are not of the form '22:00-06:00'")
    first, second, third, fourth = map(int, match.groups())
    return first * 60 + second, third * 60 + fourth


def _problem(item: Any) -> str:
    key = ".".join(str(part) for part in ("when", *item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"Unknown key {key}; there are {', '.join(When.model_fields)}."
    message = item["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(item["input"], dict) else f" = {item['input']!r}"
    return f"{key}{shown}: {message[0].lower()}{message[1:]}."
