# SPDX-License-Identifier: Apache-2.0
"""Broadcasts: messages from one writer to up to 64 readers, each at its own pace."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Literal, NoReturn

from . import _farcall, _sizes, _waiting
from ._closing import Closing
from .pipes import Wait

Policy = Literal["block", "overwrite", "drop_reader"]
Start = Literal["newest", "oldest"]


class Subscriber(_farcall.Subscriber, _waiting.AwaitedReceiving):
    """A reader of a broadcast. It is iterated until the writer closes; so it is by `async for`.

    `missed` counts what was overwritten before it could be received, `just_missed` how many of those
    came just before the last message. A reader that was dropped gets ConnectionAbortedError.
    """

    __slots__ = ("_coroutines", "_turn", "__weakref__")

    def close(self) -> None:
        """This is no reader any more."""
        super().close()
        self._end_waits()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a reader stays where it is: open another one, or pass an Invitation")


class Invitation:
    """Makes a process of multiprocessing a reader, once, of a broadcast that needs no name.

    >>> w = Broadcast()
    >>> r = w.invite().accept()
    >>> w.send(b"hello"); r.recv()
    b'hello'
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def accept(self, start: Start = "newest", wait: Wait = "adaptive") -> Subscriber:
        """Becomes a reader."""
        if self._descriptor < 0:
            raise ValueError("this has been accepted, or closed")
        reader = _farcall.adopt_subscriber(Subscriber, self._descriptor, start, wait)
        self._descriptor = -1
        return reader

    def close(self) -> None:
        """Declines, or leaves it to who has been passed it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an invitation can be pickled for a process of multiprocessing only")


def _rebuild(duplicate: Any) -> Invitation:
    return Invitation(duplicate.detach())


def _reduce(given: Invitation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if given._descriptor < 0:
        raise ValueError("this has been accepted, or closed")
    return _rebuild, (reduction.DupFd(given._descriptor),)


reduction.register(Invitation, _reduce)


class Broadcast(_farcall.Publisher, _waiting.AwaitedSending, Closing):
    """The writer of a broadcast.

    name: what readers of this user pass to subscribe(); without one they need an invite().
    policy: what becomes of slow readers. "overwrite", the default: they miss messages, and learn how many;
    "block", the default of C, C++ and Rust: the writer waits for them; "drop_reader": they are readers no more.

    >>> with Broadcast("farcall-example") as w, subscribe("farcall-example") as r:
    ...     w.readers
    ...     w.send(b"step 1")
    ...     r.recv()
    1
    b'step 1'
    """

    __slots__ = ("_coroutines", "_turn", "__weakref__")

    def __new__(
        cls,
        name: str | None = None,
        capacity: int | str | None = None,
        policy: Policy = "overwrite",
        wait: Wait = "adaptive",
        readers: int = 0,
    ) -> Broadcast:
        return _farcall.create_publisher(cls, name, _sizes.size(capacity), policy, wait, readers)

    def invite(self) -> Invitation:
        """An invitation, for a process that shall be a reader."""
        return Invitation(self._invite())

    def close(self) -> None:
        """Readers end once they have read what is there."""
        super().close()
        self._end_waits()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a writer stays where it is")


def subscribe(
    name: str, start: Start = "newest", wait: Wait = "adaptive", timeout: float | None = None
) -> Subscriber:
    """Waits until somebody publishes `name`, and becomes a reader of it.

    start: "newest" begins with what is sent from now on, "oldest" with the oldest that is still there;
    with drop_reader, as "newest" where that one is written over before the reader has begun. In
    either case it is dropped if what it would begin with is written over by then. A publisher whose
    capacity is more than 1 GiB is refused.
    """
    return _farcall.open_subscriber(Subscriber, name, start, wait, timeout)
