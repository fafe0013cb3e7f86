"""DC-PFL: dynamic clustering and layer-wise aggregation.

The wire of DC-PFL: the part of `bouquet.common.protocol` that only it needs.

Server → device: in a trial, beside ``arrays`` (the group model of the old structure), the one of the ``new-structure``;
then, in a second message, which of the two trained models to take. In other rounds, where layers are left out, the
round in which the device was last sent the whole model: its own layers must come from there.
Device → server: the losses of both models after local training.
"""

PROCEDURE = "dc-pfl"

NEW = "new-structure"  # the record, and the device's slot, of the new structure's model
WHOLE_ROUND = "whole-round"  # in the config, and a fact on the device: when it was last sent the whole model
TAKE = "take"  # in the config of a trial's second message: true for the new structure's model

# Metrics of the reply to a trial's first message: mean loss after local training, on the data trained on or, where the
# config holds a part of them out, on that; the largest float32 for a model that diverged, because metrics are finite.
DIVERGED = 3.4028234663852886e38
LOSS_OLD = "trial-loss-old"
LOSS_NEW = "trial-loss-new"
