"""CGPFL's keys in an instruction's config."""

from __future__ import annotations

from dataclasses import dataclass

from bouquet.common.protocol import ProtocolError, Received, Scalar

PROCEDURE = "cgpfl"
_STEPS = "personal-steps"
_SHARE = "context-step"


@dataclass(frozen=True)
class Envelope:
    """How the Moreau envelope is descended: gradient steps of the personal model a mini-batch, and the context's step.

    ``context_step`` is η λ, the part of the way to the personal model that the context then moves.
    """

    personal_steps: int
    context_step: float

    def to_config(self) -> dict[str, Scalar]:
        """As keys of an instruction's config."""
        return {_STEPS: self.personal_steps, _SHARE: float(self.context_step)}

    @classmethod
    def read(cls, received: Received) -> Envelope:
        """The inverse of `to_config` at the device. Raises `ProtocolError`, naming the key, for what does not fit."""
        steps, share = received.config.get(_STEPS), received.config.get(_SHARE)
        if not isinstance(steps, int) or steps < 1:
            raise ProtocolError(f"{_STEPS} is {steps!r}; it must be a whole number from 1.")
        if not isinstance(share, float) or not 0 < share <= 1:
            raise ProtocolError(f"{_SHARE} is {share!r}; it must be above 0, at most 1.")
        return cls(steps, share)
