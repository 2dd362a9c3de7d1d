"""h11's parser with bounds on what one turn of the event loop may cost.

A request's head, its trailers and each of its chunks cost far more than their bytes tell, and all
that came at once is parsed at once, before anybody knows who asks. What is over a bound is
refused; nothing is parsed beyond it. Pieces into which the network cuts a body count as nothing.
"""

from __future__ import annotations

import h11

SLICE = 16 << 10
"""Bytes handed to h11 at once. It looks whether a head or trailer is too long only between two."""

CHUNKS_FREE = 500
"""In every request's body, of whatever size; they cost as much as another request."""

CHUNK_BYTES = 256
"""Of a body of more chunks they hold so many on average; an honest client's hold thousands."""


class Parser(h11.Connection):
    """The server's side of a connection.

    Bodies of too many small chunks are against its rules, and so are those of two lengths.
    """

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self._later = bytearray()
        self._chunks = 0
        self._bytes = 0

    def receive_data(self, data: bytes) -> None:
        self._later += data

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, as h11 does.

        Raises:
            h11.RemoteProtocolError: what came is no HTTP, or over a bound.
        """
        event = super().next_event()
        while event is h11.NEED_DATA and self._later:
            part = bytes(self._later[:SLICE])
            del self._later[:SLICE]
            super().receive_data(part)
            event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                # Where the body ends would be another place to who goes by the length.
                raise h11.RemoteProtocolError("a body of two lengths")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > CHUNKS_FREE + self._bytes // CHUNK_BYTES:
                raise h11.RemoteProtocolError("too many small chunks")
        return event
