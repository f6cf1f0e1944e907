# SPDX-License-Identifier: Apache-2.0
"""Pipe() and Connection as multiprocessing has them, over a pipe of farcall."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from . import _pickling
from ._closing import Closing
from .pipes import PipeEnd, pipe

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class Connection(Closing):
    """What multiprocessing.connection.Connection is: objects by send() and recv(), or bytes.

    fileno() is not to be waited on; poll() does that.
    """

    __slots__ = ("_end", "readable", "writable", "__weakref__")

    def __init__(self, end: PipeEnd, readable: bool = True, writable: bool = True) -> None:
        self._end = end
        self.readable = readable
        self.writable = writable

    def _check(self, permitted: bool, what: str) -> None:
        if self._end.closed:
            raise OSError("handle is closed")
        if not permitted:
            raise OSError(f"connection is {what}-only")

    def send(self, obj: object) -> None:
        self._check(self.writable, "read")
        self._end.send(_pickling.dumps(obj))

    def recv(self) -> Any:
        """Only from whom you trust: to unpickle is to run code."""
        return pickle.loads(self.recv_bytes())

    def send_bytes(self, buf: ReadableBuffer, offset: int = 0, size: int | None = None) -> None:
        self._check(self.writable, "read")
        view = memoryview(buf)
        if offset == 0 and size is None:
            self._end.send(view)
            return
        view = view.cast("B")
        if offset < 0 or offset > len(view):
            raise ValueError("offset is negative, or beyond the buffer")
        end = len(view) if size is None else offset + size
        if end < offset or end > len(view):
            raise ValueError("size is negative, or beyond the buffer")
        self._end.send(view[offset:end])

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        self._check(self.readable, "write")
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        try:
            message = self._end.recv()
        except ConnectionResetError:
            raise EOFError from None
        if maxlength is not None and len(message) > maxlength:
            self.close()
            raise OSError("bad message length")
        return message

    def recv_bytes_into(self, buf: WriteableBuffer, offset: int = 0) -> int:
        self._check(self.readable, "write")
        view = memoryview(buf).cast("B")
        if offset < 0 or offset > len(view):
            raise ValueError("offset is negative, or beyond the buffer")
        try:
            return self._end.recv_into(view[offset:])
        except ConnectionResetError:
            raise EOFError from None

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is something to receive, or the end, within the time."""
        self._check(self.readable, "write")
        return self._end.poll(None if timeout is None else max(0.0, timeout))

    def fileno(self) -> int:
        self._check(True, "")
        return self._end.fileno()

    @property
    def closed(self) -> bool:
        return self._end.closed

    def close(self) -> None:
        self._end.close()


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """As multiprocessing.Pipe(). With duplex=False the first receives, the second sends.

    >>> a, b = Pipe()
    >>> a.send({"x": 1}); b.recv()
    {'x': 1}
    """
    one, other = pipe()
    return Connection(one, writable=duplex), Connection(other, readable=duplex)
