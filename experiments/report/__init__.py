"""Runs and comparisons as HTML pages; the templates lie beside."""
