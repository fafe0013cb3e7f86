"""What a device can be asked to do in a round, by name: the registry, and the standard procedure."""
