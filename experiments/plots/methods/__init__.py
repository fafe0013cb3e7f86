"""Plots of what single methods record, a file a method."""
