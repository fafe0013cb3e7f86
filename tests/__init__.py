"""The tests, which mirror the rooms."""
