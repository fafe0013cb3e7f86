"""FedDANE: the mean gradient first, then a gradient-corrected proximal problem on every device.

The wire of FedDANE: a first message asks for the gradient at w, a second one brings the mean gradient g.
"""

PROCEDURE = "feddane"
GRADIENT = "gradient"  # record with g, shaped as a model; a message without it asks for the device's own gradient
