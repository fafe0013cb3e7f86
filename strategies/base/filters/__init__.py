"""Filters, which see each message on its way out and each reply coming in: copies, privacy, a vote."""
