"""Models that a federation left: finding, using and exporting them."""
