"""A JSON text with a CRC-32C around it, which is JSON again: one that was changed is refused.

Knows nothing of what is sealed, and of files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from syncline_proto.codec import crc32c

_SEALED = re.compile(
    rb'\{"(\w{1,40})":(\d{1,9}),"crc32c":"([0-9a-f]{8})","(\w{1,40})":(.*)\}\n', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Seal:
    """One kind of sealed text: ``{"NUMBERED": N, "crc32c": "1a2b3c4d", "BODY": TEXT}``."""

    numbered: str
    """What the number is called, and so in what is told."""
    number: int
    """The form that is written, and the only one that is read."""
    body: str

    def close(self, text: str) -> bytes:
        """Seal a JSON text: its number, and the CRC-32C of its bytes, around it."""
        data = text.encode()
        head = b'{"%b":%d,"crc32c":"%08x","%b":%b}\n'
        names = self.numbered.encode(), self.body.encode()
        return head % (names[0], self.number, crc32c(data), names[1], data)

    def open(self, data: bytes) -> str:
        """What ``close`` was given.

        Raises:
            ValueError: a bit is another, or the number is.
        """
        match = _SEALED.fullmatch(data)
        if match is None or (match[1].decode(), match[4].decode()) != (self.numbered, self.body):
            raise ValueError("it is not sealed")
        if int(match[2]) != self.number:
            raise ValueError(f"it is of {self.numbered} {int(match[2])}, not {self.number}")
        if int(match[3], 16) != crc32c(match[5]):
            raise ValueError("its checksum is another")
        return match[5].decode()
