"""Filters, which see each message on its way out and each reply coming in: copies, what is sent once, privacy, a vote."""
