"""What clipping and Gaussian noise on the device are worth: the (ε, δ) that a device's uploads have spent.

**What is protected** is everything that a device has learned from: the server, and whoever reads its traffic or its
models, cannot tell from the uploads which of any two data sets the device holds, but for (ε, δ). That is local
differential privacy at the level of the client, against a server that knows the noise's scale, all messages of all
others, and chooses what the device is sent. A device's upload is f(data) + noise, f clipped to a ball of radius C
(`bouquet.client.uploads.privacy`). Two data sets move f by the ball's diameter, Δ = 2 C: what is told of ε by those who
take C compares a device's update with none at all, and is the ε of twice the noise multiplier here.

**The accountant.** A release by the Gaussian mechanism with deviation σ = z C is μ-Gaussian differentially private,
μ = Δ / σ = 2 / z, and T of them, each chosen after the ones before, are √T·μ together: exactly, nothing is lost (Dong,
Roth, Su: Gaussian Differential Privacy. JRSS-B 84, 2022, Theorem 2.7, Corollary 3.3). For such a mechanism
δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle, Wang: Improving the Gaussian Mechanism. ICML 2018, Theorem 8), so that
no smaller ε holds; zero-concentrated privacy with ρ = T Δ²/(2σ²) bounds it by ρ + 2 √(ρ ln 1/δ) (Bun, Steinke 2016,
Proposition 1.3). Nothing is amplified by sampling: the server knows whom it asked.
"""

from __future__ import annotations

import math

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout

RELEASES = "privacy-releases"  # in a reply: how many uploads of this run the device has made, this one included
DELTA = 1e-5  # δ of every (ε, δ) here
SENSITIVITY = 2.0  # Δ in multiples of the clipping norm
_FAR = -20.0  # below it Φ is taken from its asymptotic series


def epsilon_spent(releases: int, noise_multiplier: float, delta: float = DELTA) -> float:
    """The least ε for which ``releases`` uploads are (ε, δ) differentially private; infinite without noise.

    ``noise_multiplier`` is z, the noise's deviation in multiples of the clipping norm; ``delta`` is δ, between 0 and 1.
    """
    if releases == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return epsilon_at(math.sqrt(releases) * SENSITIVITY / noise_multiplier, delta)


def epsilon_at(mu: float, delta: float = DELTA) -> float:
    """The least ε for which a μ-Gaussian differentially private mechanism is (ε, δ) differentially private."""
    if delta_at(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle, mu) > delta else (low, middle)
    return high


def delta_at(epsilon: float, mu: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) of a μ-Gaussian differentially private mechanism."""
    first = _log_normal_cdf(mu / 2 - epsilon / mu)
    second = epsilon + _log_normal_cdf(-mu / 2 - epsilon / mu)
    return math.exp(first) - math.exp(min(second, first))


def _log_normal_cdf(x: float) -> float:
    """ln Φ(x); far below 0, where Φ is no longer a number, by its asymptotic series."""
    if x > _FAR:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    square = 1 / (x * x)
    series = 1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square)))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)


def check_model(layout: ParameterLayout) -> None:
    """Raise `BouquetError`, naming the tensor, for a model whose uploads cannot be noised."""
    if buffer := next((spec for spec in layout.tensors if spec.kind == "buffer"), None):
        raise BouquetError(
            f"Setting privacy.clip_norm does not fit this model: {buffer.name!r} is a running statistic of its inputs, "
            "and a noised variance can be below 0. Take a model without batch normalisation (model.norm = 'group')."
        )
