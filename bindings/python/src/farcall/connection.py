# SPDX-License-Identifier: Apache-2.0
"""Pipe() and Connection as multiprocessing has them, over a pipe of farcall."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
from typing import TYPE_CHECKING, Any

from . import _farcall, _pickling
from ._closing import Closing
from .pipes import PipeEnd, pipe

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


_PATIENCE = 1.0  # seconds that a doorbell may be under way


class _Readable:
    """A descriptor that is readable at any time."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number, writer = os.pipe()
        os.close(writer)

    def __del__(self) -> None:
        os.close(self.number)


class Connection(Closing):
    """What multiprocessing.connection.Connection is: objects by send() and recv(), or bytes.

    fileno() is for multiprocessing.connection.wait() and select.select(), which ask for it each time
    that they wait; loops that ask once, as asyncio's add_reader(), miss what comes later.
    """

    __slots__ = ("_end", "_given_up", "_polling", "_readable", "readable", "writable", "__weakref__")
    _readable: _Readable

    def __init__(self, end: PipeEnd, readable: bool = True, writable: bool = True) -> None:
        self._end = end
        self._polling = self._given_up = False
        self.readable = readable
        self.writable = writable

    def _check(self, permitted: bool, what: str) -> None:
        if self._end.closed:
            raise OSError("handle is closed")
        if not permitted:
            raise OSError(f"connection is {what}-only")

    def _begin_receiving(self) -> None:
        self._check(self.readable, "write")
        self._end_polling()

    def _end_polling(self) -> None:
        if self._polling:
            self._polling = False
            self._end.poll_end()

    def _take_late_doorbell(self) -> None:
        """Of a message that has been received the other end may ring the doorbell only now. In the next
        wait it would tell of a message that is not there, and who then receives would wait for it."""
        self._polling = False
        if not self._end.poll_end():
            self._given_up = False
        elif not self._given_up:
            poll = select.poll()
            poll.register(self._end.fileno(), select.POLLIN)
            poll.poll(_PATIENCE * 1000)
            # An end that is stopped, or makes fun of this one, is waited for once.
            self._given_up = self._end.poll_end()

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
        self._begin_receiving()
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        try:
            message = self._end.recv()
        except ConnectionResetError:
            raise EOFError from None
        if maxlength is not None and len(message) > maxlength:
            if self.writable:
                self.readable = False
            else:
                self.close()
            raise OSError("bad message length")
        return message

    def recv_bytes_into(self, buf: WriteableBuffer, offset: int = 0) -> int:
        self._begin_receiving()
        view = memoryview(buf).cast("B")
        if offset < 0 or offset > len(view):
            raise ValueError("offset is negative, or beyond the buffer")
        try:
            return self._end.recv_into(view[offset:])
        except ConnectionResetError:
            raise EOFError from None
        except _farcall.MessageTooLong:
            raise multiprocessing.BufferTooShort(self.recv_bytes()) from None

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is something to receive, or the end, within the time."""
        self._begin_receiving()
        return self._end.poll(None if timeout is None else max(0.0, timeout))

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is something to receive, or the end; for one
        wait."""
        self._check(True, "")
        if not self.readable:
            return self._end.fileno()
        self._take_late_doorbell()
        self._polling = self._end.poll_begin()
        if self._polling:
            return self._end.fileno()
        if not hasattr(self, "_readable"):
            self._readable = _Readable()
        return self._readable.number

    @property
    def closed(self) -> bool:
        return self._end.closed

    def close(self) -> None:
        if not self._end.closed:
            self._end_polling()
        self._end.close()


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """As multiprocessing.Pipe(). With duplex=False the first receives, the second sends.

    >>> a, b = Pipe()
    >>> a.send({"x": 1}); b.recv()
    {'x': 1}
    """
    one, other = pipe()
    return Connection(one, writable=duplex), Connection(other, readable=duplex)
