# SPDX-License-Identifier: Apache-2.0
"""Pipes: messages both ways between two processes, or two threads."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from . import _farcall, _sizes, _waiting

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Wait = Literal["adaptive", "spin", "block"]


class PipeEnd(_farcall.PipeEnd, _waiting.AwaitedReceiving, _waiting.AwaitedSending):
    """One end of a pipe: what it sends the other end receives, message by message.

    Made by pipe(), serve_pipe() and open_pipe(). Until it is used, an end can be passed to another
    process: as an argument of a multiprocessing.Process, by fork, or through whatever pickles for
    multiprocessing. The first use makes it this process's.

    Several threads may use an end at once. Those of one direction take turns.

    >>> import asyncio
    >>> async def main():
    ...     a, b = pipe()
    ...     with a, b:
    ...         await a.asend(b"question")
    ...         return await b.arecv(timeout=1)
    >>> asyncio.run(main())
    b'question'
    """

    __slots__ = ("_coroutines", "_turn", "__weakref__")

    # ---- objects ----

    def send_object(self, value: object, timeout: float | None = None) -> None:
        """Sends what pickle makes of an object."""
        self.send(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), timeout)

    def recv_object(self, timeout: float | None = None) -> Any:
        """Receives an object. Only from whom you trust: to unpickle is to run code."""
        return pickle.loads(self.recv(timeout))

    # ---- the end ----

    def close(self) -> None:
        """Closes this end. The other one can still receive what has been sent."""
        super().close()
        self._end_waits()

    def __repr__(self) -> str:
        return f"<farcall.PipeEnd {'closed' if self.closed else 'open'} at {id(self):#x}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the end of a pipe can be pickled for a process of multiprocessing only")


def _adopt(
    kind: type[PipeEnd], duplicates: list[Any], capacity: int, wait: Wait
) -> PipeEnd:
    descriptors = [duplicate.detach() for duplicate in duplicates]
    try:
        return _farcall.adopt_pipe(kind, descriptors, capacity, wait)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _reduce(end: PipeEnd) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    duplicates = [reduction.DupFd(descriptor) for descriptor in end._pass()]
    return _adopt, (type(end), duplicates, end.capacity, end.wait)


reduction.register(PipeEnd, _reduce)


def pipe(
    capacity: int | str | None = None, wait: Wait = "adaptive"
) -> tuple[PipeEnd, PipeEnd]:
    """Both ends of a pipe, of `capacity` bytes each way (256 KiB, or as in "1M").

    wait: "adaptive" spins as long as that has paid lately, then sleeps; "spin" never sleeps; "block"
    sleeps at once.

    >>> a, b = pipe()
    >>> a.send(b"hello"); b.recv()
    b'hello'
    >>> b.send(bytearray(b"and back")); a.recv(timeout=1)
    b'and back'
    >>> a.close()
    >>> b.recv()
    Traceback (most recent call last):
      ...
    EOFError: the other end has finished
    """
    return _farcall.create_pipe(PipeEnd, _sizes.size(capacity), wait)


def serve_pipe(
    name: str,
    capacity: int | str | None = None,
    wait: Wait = "adaptive",
    timeout: float | None = None,
) -> PipeEnd:
    """Waits until a process of this user opens `name`, and returns the end that leads to it."""
    return _farcall.serve_pipe(PipeEnd, name, _sizes.size(capacity), wait, timeout)


def open_pipe(name: str, wait: Wait = "adaptive", timeout: float | None = None) -> PipeEnd:
    """Waits until somebody serves `name`, and returns the other end.

    ConnectionRefusedError where nobody does in time, PermissionError where another user does.
    """
    return _farcall.open_pipe(PipeEnd, name, 0, wait, timeout)
