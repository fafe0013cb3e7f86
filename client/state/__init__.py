"""What the device keeps on its disk."""
