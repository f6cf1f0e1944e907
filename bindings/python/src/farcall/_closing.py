# SPDX-License-Identifier: Apache-2.0
"""What is closed at the end of a with statement, and what is received from in a for loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """Comes after the class that can be closed."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Receiving(Closing):
    """Comes after the class that receives."""

    __slots__ = ()

    def recv(self, timeout: float | None = None) -> bytes:
        raise NotImplementedError

    async def arecv(self, timeout: float | None = None) -> bytes:
        raise NotImplementedError

    def __iter__(self) -> Iterator[bytes]:
        """The messages until the sender has finished."""
        try:
            while True:
                yield self.recv()
        except EOFError:
            return

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self.arecv()
        except EOFError:
            return
