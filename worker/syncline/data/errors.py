"""The one error of the data modules: what was given is not there, or cannot be read or trusted."""

from syncline_proto.errors import SynclineError


class DataError(SynclineError):
    """A source, a tokenizer or a prepared folder is missing or not what it should be.

    The message is one sentence that names the file (and the line, where there is one).
    """

    code = "DATA"
    exit_code = 13
