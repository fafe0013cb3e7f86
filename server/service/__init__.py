"""The gRPC service that devices reach, and the grid that a strategy sees of it."""
