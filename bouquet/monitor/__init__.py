"""What a person or a program sees of a run: on the terminal, on the live page, and for Prometheus."""
