"""Figures of a run: of all clients, of each, and of what single methods record."""
