# SPDX-License-Identifier: Apache-2.0
"""Values of the caller as the library takes them: ctypes cuts a number to its bits, and a text at its first NUL."""
from __future__ import annotations

import decimal
import operator
import os


def number(name: str, value, bits: int = 32) -> int:
    """An integer of so many bits, without a sign."""
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: an integer is needed") from None
    if not 0 <= found < 1 << bits:
        raise ValueError(f"{name} is {found}: an integer from 0 to {(1 << bits) - 1} is needed")
    return found


def size(name: str, value: int | str | None) -> int:
    """Bytes: a number, or "8G", "512M"; None or "auto": 0, the default of the library."""
    if value in (None, "auto"):
        return 0
    if isinstance(value, str):
        units = {"K": 10, "M": 20, "G": 30, "T": 40}
        unit = units.get(value[-1:].upper(), 0)
        try:
            found = decimal.Decimal(value[:-1] if unit else value)
            value = int(found * (1 << unit)) if abs(found) < 1 << 63 else 1 << 63
        except decimal.DecimalException:
            raise ValueError(f"{name}: {value!r} is not a size: a number of bytes, or with K, M, G, T") from None
    return number(name, value, 63)


def text(name: str, value: str | os.PathLike) -> bytes:
    """A text or a path without a NUL."""
    found = os.fsencode(value)
    if b"\0" in found:
        raise ValueError(f"{name} is {value!r}: it has a NUL character")
    return found


class Uncopied:
    """A copy would free memory of the library a second time, and another process does not have that memory."""

    __slots__ = ()

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a {type(self).__name__} of expertfs cannot be copied or pickled: it is memory of the library")
