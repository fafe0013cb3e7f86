"""A reply that says nothing of the device's data, in the form of the one that could not be given.

Under an owner's demand for noise nothing may leave that is made of the data and has none: also not that something went
wrong with them. A model can be made to diverge, or to run out of memory, on some data and not on others. So the
procedure runs again as on a device that holds two blank samples and learns nothing: by the same code, so that its reply
has the same parts, is noised and is counted. What went wrong is in the device's own log.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bouquet.client.data.loading import ClientData
from bouquet.client.rounds.session import Session
from bouquet.common.model.build import model_shape


def blank_session(failed: Session) -> Session:
    """A session of the same message: its data are blank, nobody listens, and training ends where it began.

    That is kept, as a round's model is: a device that had kept nothing would say so in the next round.
    """
    s = failed
    shape, outputs = model_shape(s.node.settings)
    x, has_classes = np.zeros((2, *shape), dtype=np.float32), s.node.task.has_classes
    y = np.zeros(2, dtype=np.int64) if has_classes else np.zeros((2, outputs), dtype=np.float32)
    node = replace(s.node, blank=ClientData(x, y, x, y, outputs if has_classes else 0))
    return Session(s.message, node, s.built, s.device, s.received, s.run, s.copies, s.private, learns=False)
