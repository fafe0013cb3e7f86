"""The device: its data, local SGD, and what it keeps on its own disk."""
