# SPDX-License-Identifier: Apache-2.0
"""Calls: a function of one process that others call, by the path of a door.

Any program that knows Doors can be at either end, in whatever language it is written.

>>> import os, tempfile
>>> path = os.path.join(tempfile.mkdtemp(), "upper")
>>> with serve(path, str.upper):
...     call(path, b"hello")
b'HELLO'
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Union

from . import _farcall
from ._closing import Closing
from ._waiting import AwaitedAnswers, check_timeout

Path = Union[str, bytes, "os.PathLike[Any]"]
Buffer = Any  # bytes-like; collections.abc.Buffer comes with Python 3.12


class Caller(NamedTuple):
    """Who calls, as the kernel knows it: effective ids; pid is 0 where it cannot be seen from here."""

    pid: int
    uid: int
    gid: int


class Server(_farcall.Server, Closing):
    """What serve() returns: serves until it is closed, or the program ends; whether it is kept or not.

    The end of a program waits for the calls in progress, as it does for threads.
    """

    __slots__ = ("__weakref__",)

    def close(self) -> None:
        """Takes no call any more. Those in progress are answered still."""
        _servers.discard(self)
        super().close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a server stays where it is: open its path in the other process")


class Door(_farcall.Client, AwaitedAnswers, Closing):
    """What open_door() returns: calls the function behind a path. Threads may share it."""

    __slots__ = ("__weakref__", "_coroutines")

    def __call__(self, data: Buffer, timeout: float | None = None) -> bytes:
        """As call()."""
        return self.call(data, timeout)

    def __reduce__(self) -> NoReturn:
        raise TypeError("open its path in the other process; children that are forked have it already")


_servers: set[Server] = set()
_PAUSE = 0.02  # between two looks for somebody who serves


@atexit.register
def _close_all() -> None:
    for server in list(_servers):
        server.close()
    while _farcall.end_calls():
        time.sleep(0.001)


def serve(
    path: Path, function: Callable[..., Any], mode: int = 0o600, longest: int | None = None
) -> Server:
    """Lets whoever may read the file at `path` call function(data), in threads of their own.

    function: gets bytes, and returns bytes, text (sent as UTF-8) or None (nothing); a method of str
    gets text. An exception is printed as one that nobody could catch is (sys.unraisablehook), and the
    caller gets ConnectionAbortedError. caller() tells it who calls.
    mode: of the file, which is made, and removed in the end, unless it is there.
    longest: request in bytes; a longer one is refused (MessageTooLong).
    """
    if getattr(function, "__objclass__", None) is str:
        method = function
        function = lambda data: method(data.decode())  # noqa: E731
    server = _farcall.serve_calls(Server, path, function, mode, longest or 0)
    _servers.add(server)
    return server


def open_door(path: Path, timeout: float | None = 0) -> Door:
    """The door at `path`, to be called. `timeout`: waits so long until somebody serves it.

    FileNotFoundError, ConnectionRefusedError where nobody does, PermissionError.
    """
    return _farcall.open_client(Door, path, timeout)


def call(path: Path, data: Buffer, timeout: float | None = None) -> bytes:
    """Calls what is served at `path`, once. For more than one call, open_door() costs less.

    timeout: for all of it, and for a server to come where there is a file but nobody serves.

    BrokenPipeError where the server has gone and has not seen the request; ConnectionAbortedError
    where it has seen it, and has failed or died; after TimeoutError it may have, or not.
    """
    if timeout is None:
        with open_door(path) as door:
            return door.call(data)
    end = time.monotonic() + timeout
    os.stat(path)  # raises FileNotFoundError at once
    with open_door(path, timeout) as door:
        return door.call(data, max(0.0, end - time.monotonic()))


async def acall(path: Path, data: Buffer, timeout: float | None = None) -> bytes:
    """As call(), for coroutines.

    Opening a door asks its server, which the loop waits for: for more than one call, open_door().
    """
    if timeout is None:
        with open_door(path) as door:
            return await door.acall(data)
    end = time.monotonic() + timeout
    os.stat(path)  # raises FileNotFoundError at once
    check_timeout(timeout)
    while True:
        try:
            door = open_door(path)
            break
        except ConnectionRefusedError:
            if (left := end - time.monotonic()) <= 0:
                raise
        await asyncio.sleep(min(left, _PAUSE))
    with door:
        return await door.acall(data, max(0.0, end - time.monotonic()))


def caller() -> Caller:
    """Who has made the call that the calling thread serves. RuntimeError where it serves none."""
    return Caller(*_farcall.caller())
