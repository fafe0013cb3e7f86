"""The agent: what a device runs to take part in its server's federation, over one gRPC service with mutual TLS."""
