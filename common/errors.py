"""The one exception a user is meant to read: what is wrong, what was found, what is allowed."""


class BouquetError(Exception):
    """A problem that the user can act on; the command line prints it alone, without a traceback, and exits with 2."""
