"""TensorBoard's event files, scalars only: a TFRecord of small protocol buffers, written by hand so that nothing must
be installed."""

from __future__ import annotations

import itertools
import os
import struct
import time
from typing import BinaryIO, Dict, List


def _table() -> List[int]:
    rows = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        rows.append(n)
    return rows


_CRC: List[int] = []
_files = itertools.count()  # two of one second are two files


def _masked_crc(data: bytes) -> int:
    if not _CRC:
        _CRC.extend(_table())
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


class Scalars:
    """A new event file in a folder; touches no existing file."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        name = "events.out.tfevents.%d.memfit.%d.%d" % (time.time(), os.getpid(), next(_files))
        self._file: BinaryIO = open(os.path.join(folder, name), "xb")
        self._event(_bytes(3, b"brain.Event:2"))

    def _event(self, rest: bytes) -> None:
        data = b"\x09" + struct.pack("<d", time.time()) + rest
        head = struct.pack("<Q", len(data))
        self._file.write(head + struct.pack("<I", _masked_crc(head)) + data + struct.pack("<I", _masked_crc(data)))
        self._file.flush()

    def put(self, step: int, values: Dict[str, float]) -> None:
        summary = b"".join(
            _bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", value)) for name, value in values.items()
        )
        self._event(b"\x10" + _varint(step) + _bytes(5, summary))

    def close(self) -> None:
        self._file.close()
