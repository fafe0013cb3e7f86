"""Why a device's program ends, in words: what a server refuses, and the marks by which both sides know it."""

from __future__ import annotations

import re
from dataclasses import dataclass

TURNED_AWAY = "The server turned this device away: "
CANNOT_START = "Cannot start: "


@dataclass(frozen=True)
class Refusal:
    """Why a server does not take a device. ``passing``: what the server's operator, or time, may mend."""

    hint: str
    passing: bool = False


NOT_ACTIVATED = "[code: 2004]"
REFUSALS = {
    "[code: 2001]": Refusal(
        "The server admits registered devices only: start this client with its keys (--keys DIR, made on the server "
        "with bouquet keys add)."
    ),
    NOT_ACTIVATED: Refusal(
        "The server does not admit this device's key: it is not registered there (bouquet keys add, on the server), or "
        "was removed there (bouquet keys remove).",
        passing=True,
    ),
    "Invalid node ID": Refusal(
        "The server does not know this device any more: its key was removed there (bouquet keys remove), or the server "
        "was set up anew.",
        passing=True,
    ),
    "Invalid timestamp": Refusal(
        "This device's clock differs too much from the server's; set it, or wait until the network has set it.",
        passing=True,
    ),
    "Exit Code: 606": Refusal(
        "Server and device run versions of Flower that do not fit; install the same bouquet on both."
    ),
    "CANCELLED": Refusal(
        "The connection was cut off before the server had admitted this device, as where either has too much to do.",
        passing=True,
    ),
    "Exit Code: 302": Refusal("The private key cannot be read; bouquet keys makes one that can (OpenSSH, ECDSA)."),
}
# Flower's report of an exit ends as the reason in one message.
EXIT_REPORT = re.compile(r"^\S+ :\s+Exit Code: \d+$")
LONGEST_REPORT_LINES = 50
EXIT_REPORT_END = "For more information"


def refusal_of(output: str) -> Refusal:
    """What a program's output says of why it ended."""
    for mark, refusal in REFUSALS.items():
        if mark in output:
            return refusal
    # Flower's message stands between its exit code and the address of its help page.
    found = re.search(
        rf"(?:Exit Code: \d+\n|{CANNOT_START}|{TURNED_AWAY})(.*?)(?:\n{EXIT_REPORT_END}|\Z)", output, re.DOTALL
    )
    return Refusal(" ".join(found[1].split()) if found else "")
