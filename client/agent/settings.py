"""How a device joins: what ``bouquet client`` hands to its agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bouquet.client.trust.policy import CodeTrust

_PATHS = ("state_dir", "authority", "certificate", "private_key")
_SETS = ("hashes", "models", "data", "procedures", "signers")  # of a `CodeTrust`


@dataclass(frozen=True)
class DeviceSettings:
    """Where the server is, how it is trusted, and what the ClientApp is told.

    ``server`` is ``host:port``. ``node_config`` is what the ClientApp reads as its node config. ``authority``,
    ``certificate`` and ``private_key`` are PEM files for mutual TLS, all or, with ``insecure``, none. ``health``
    (``host:port``) serves gRPC's health protocol. ``trust`` says which code the server may have this device run.
    ``wait`` is how many seconds to look for the server at first; None for ever. ``most_hours`` is how long one task may
    take. ``cold`` starts a fresh Python for each task, in place of a fork of a process that stays: slower, for devices
    with little memory. ``trainer`` is a descriptor that leads to a `bouquet.client.agent.trainer` which somebody else
    has started; ``with_parent`` ends the device with whoever started it.
    """

    server: str
    state_dir: Path
    node_config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    insecure: bool = False
    authority: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    health: str | None = None
    trust: CodeTrust = field(default_factory=CodeTrust)
    wait: float | None = None
    most_hours: float = 24.0
    cold: bool = False
    trainer: int | None = None
    with_parent: bool = False

    def to_json(self) -> str:
        """As `from_json` reads it."""
        trust = {name: sorted(getattr(self.trust, name)) for name in _SETS}
        rest = {"anything": self.trust.anything, "memory": self.trust.memory}
        return json.dumps({**asdict(self), "trust": {**trust, **rest}}, default=str)

    @classmethod
    def from_json(cls, text: str) -> DeviceSettings:
        """The inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        values |= {name: Path(values[name]) for name in _PATHS if values[name] is not None}
        trust = values["trust"]
        memory = None if trust["memory"] is None else Path(trust["memory"])
        sets = {name: frozenset(trust[name]) for name in _SETS}
        values["trust"] = CodeTrust(anything=trust["anything"], memory=memory, **sets)
        return cls(**values)
