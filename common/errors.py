"""The one exception a user is meant to read: what is wrong, what was found, what is allowed."""

from bouquet.common.texts import printable

SAYS_MORE = "The device's log says more."


class BouquetError(Exception):
    """A problem that the user can act on; the command line prints it alone, without a traceback, and exits with 2.

    ``public`` is what others than this machine's owner are told in its place, where the text names what is theirs:
    files and folders.

    Examples
    --------
    >>> try:
    ...     bouquet.FeSEM(proximal_weight=-1)
    ... except bouquet.BouquetError as error:
    ...     print(error)
    proximal_weight = -1: input should be greater than or equal to 0.
    """

    status = 2

    def __init__(self, text: str = "", *, public: str = "") -> None:
        super().__init__(printable(text))
        self.public = printable(public or text)


class RunFailed(BouquetError):
    """A run that came to nothing after it had begun: exit status 1; its checkpoint is there to go on from."""

    status = 1


class NotNow(BouquetError):
    """The device's owner does not let it work now (`client.owner`); ``seconds`` until it is to be asked again."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


class RunStopped(BouquetError):
    """The run's owner asked for its end; nothing went wrong."""
