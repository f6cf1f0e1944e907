# SPDX-License-Identifier: Apache-2.0
"""Sizes, as numbers and as people write them."""

from __future__ import annotations

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(given: int | str | None) -> int:
    """Bytes; 0 for what is usual.

    >>> size("64K"), size("1M"), size(4096), size(None)
    (65536, 1048576, 4096, 0)
    """
    if given is None:
        return 0
    if isinstance(given, str):
        number, unit = given, 1
        if given[-1:].upper() in _UNITS:
            number, unit = given[:-1], _UNITS[given[-1].upper()]
        if not (number.isascii() and number.isdecimal()):
            raise ValueError(f"a size is a number of bytes, or such as '64K', '1M', not {given!r}")
        given = int(number) * unit
    if given <= 0:
        raise ValueError("a size is more than 0")
    return given
