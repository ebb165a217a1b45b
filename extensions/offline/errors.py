"""Define why a run ends early. The command line maps each error to an exit status."""


class RunFailed(Exception):
    """The run cannot go on now. The same command resumes it when the cause is gone."""


class WrongCommand(Exception):
    """The command does not fit the model, the input or an earlier run; nothing was changed."""


class UnreadableRow(Exception):
    """The row of an image cannot be read; the message has the reason."""


class RequestRefused(Exception):
    """The model refuses the rows of one request; the message has the reason."""
