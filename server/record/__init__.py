"""The record of a run, written and read: rounds, summary, bytes, status."""
