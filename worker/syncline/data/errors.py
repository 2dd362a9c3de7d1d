"""The one error of the data rooms: what was given cannot be read, or cannot be trusted."""

from syncline_proto.errors import SynclineError


class DataError(SynclineError):
    """A source, a tokenizer or a prepared folder is not what it should be.

    The message is one sentence that names the file (and the line, where there is one).
    """

    code = "DATA"
    exit_code = 13
