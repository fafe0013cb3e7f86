"""Anchored: clusters as anchors of personal models. Bouquet's own method.

The wire of the anchored method: a key of the config.
"""

PROCEDURE = "anchored"
ANCHOR_WEIGHT = "anchor-weight"  # λ
