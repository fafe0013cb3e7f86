"""The command line `bouquet`."""
