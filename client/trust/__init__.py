"""Which apps this device's owner trusts."""
