"""Simulation, comparison and report."""
