"""The wire between a device and its server: the contract (`fleet.proto`), and what both ends make of it."""
