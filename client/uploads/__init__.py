"""What becomes of a model before it leaves the device: compression, clipping and noise."""
