"""What this device's owner allows: when it may work, and how much of it."""
