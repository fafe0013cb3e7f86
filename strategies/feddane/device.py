"""FedDANE's device: in the first exchange its gradient at the global model, in the second its corrected subproblem.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method. Asilomar 2019, Algorithm 2.

Each message is a new process. The device's own gradient is computed again in the second exchange, to the same bits,
and not kept between the two: a pass over its data, where a file would have to be written and synced.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.procedures import standard
from bouquet.client.rounds.session import Session
from bouquet.client.training.objective import LinearTerm
from bouquet.common import protocol
from bouquet.common.protocol import ARRAYS, Payload
from bouquet.strategies.feddane import GRADIENT

evaluate = standard.evaluate


def train(session: Session) -> Message:
    """Answer a train message: with ∇F_k(w), or with the solution of the subproblem.

    That is min_w' F_k(w') + ⟨g − ∇F_k(w), w' − w⟩ + (μ/2)·‖w' − w‖², whose gradient at w is g on every device.
    """
    received = session.whole(ARRAYS)
    own = session.gradient(received)
    if GRADIENT not in session.received.models:
        session.metrics[protocol.NUM_EXAMPLES] = len(session.train_data[1])
        return session.reply(own, is_model=False)
    correction = session.tensors(Payload(session.whole(GRADIENT) - own))
    session.report_start(received)
    trained, loss = session.train(received, [LinearTerm(correction), *session.proximal_terms()])
    session.report_trained(trained, loss)
    session.keep(trained)
    return session.reply(trained)
