# SPDX-License-Identifier: Apache-2.0
"""How coroutines wait: through the loop that runs them, with no thread."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ._closing import Receiving

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ._farcall import Call

# Turns of the loop that are waited for before it is told of a descriptor. As with the library's own
# spinning they are taken where that has paid lately: an answer from another processor is there sooner
# than the kernel can wake this one.
MOST_TURNS = 32
FEWEST_TURNS = 2
# A wait through the loop that was as short as this would have been one of turns.
SHORT = 150e-6
# How often in a row a wait is over at once before other tasks have their turn.
MOST_AT_ONCE = 128


class Patience:
    """How many turns the next wait takes."""

    __slots__ = ("turns",)

    def __init__(self) -> None:
        self.turns = FEWEST_TURNS

    def paid(self) -> None:
        self.turns = min(MOST_TURNS, self.turns * 2 or FEWEST_TURNS)

    def was_in_vain(self) -> None:
        self.turns //= 2

    def slept(self, seconds: float) -> None:
        if seconds < SHORT:
            self.turns = max(self.turns, FEWEST_TURNS * 4)


def check_timeout(timeout: float | None) -> None:
    """As what does not wait for coroutines refuses it."""
    if timeout is not None and not timeout >= 0:  # also nan
        raise ValueError("a timeout is None or at least 0")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Waiters:
    """The coroutines that sleep on one object. close() ends their waits."""

    __slots__ = ("patience", "_at_once", "_sleeping")

    def __init__(self) -> None:
        self.patience = Patience()
        self._at_once = 0
        self._sleeping: set[asyncio.Future[None]] = set()

    async def sleep(
        self,
        descriptor: Callable[[], int],
        begin: Callable[[], bool],
        end: Callable[[], object],
    ) -> None:
        """Until there may be something to do."""
        if not begin():
            self._at_once += 1
            if self._at_once > MOST_AT_ONCE:
                self._at_once = 0
                await asyncio.sleep(0)
            return
        began = time.monotonic()
        try:
            number = descriptor()
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self._sleeping.add(waiter)
            try:
                loop.add_reader(number, _wake, waiter)
                try:
                    await waiter
                finally:
                    loop.remove_reader(number)
            finally:
                self._sleeping.discard(waiter)
        finally:
            end()
        self.patience.slept(time.monotonic() - began)

    def close(self) -> None:
        for waiter in list(self._sleeping):
            loop = waiter.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_end, waiter)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(ValueError("this is closed"))


async def receive(
    waiters: Waiters,
    attempt: Callable[[], bytes | None],
    descriptor: Callable[[], int],
    begin: Callable[[], bool],
    end: Callable[[], object],
) -> bytes:
    """What attempt() gives as soon as that is not None."""
    for _ in range(waiters.patience.turns):
        await asyncio.sleep(0)
        if (message := attempt()) is not None:
            waiters.patience.paid()
            return message
    waiters.patience.was_in_vain()
    while True:
        await waiters.sleep(descriptor, begin, end)
        if (message := attempt()) is not None:
            return message


class _Waiting:
    """Comes after the class whose operations are waited for. Its own subclasses have the slot."""

    if not TYPE_CHECKING:
        __slots__ = ()
    _coroutines: Waiters
    _turn: Callable[[], object]  # a reference to the task that was to give way last

    def _waiters(self) -> Waiters:
        try:
            return self._coroutines
        except AttributeError:
            self._coroutines = Waiters()
            return self._coroutines

    async def _give_way(self) -> None:
        """Before an attempt: who is cancelled in this has taken nothing. Not where another task was to
        do so last, as what several send stays in order.
        """
        task = asyncio.current_task()
        is_alone = hasattr(self, "_turn") and self._turn() is task
        self._turn = weakref.ref(task)
        if is_alone:
            await asyncio.sleep(0)

    def _end_waits(self) -> None:
        if hasattr(self, "_coroutines"):
            self._coroutines.close()


class AwaitedReceiving(_Waiting, Receiving):
    """Has the coroutines of what receives."""

    __slots__ = ()

    if TYPE_CHECKING:

        def try_recv(self) -> bytes | None: ...
        def _recv_in_turn(self) -> bytes | None: ...
        def _end_recv_turn(self) -> bool: ...
        def fileno(self) -> int: ...
        def poll_begin(self) -> bool: ...
        def poll_end(self) -> object: ...

    async def arecv(self, timeout: float | None = None) -> bytes:
        """As recv(), for coroutines. One at a time."""
        check_timeout(timeout)
        if timeout == 0:
            return self.recv(timeout=0)
        if (message := self._recv_in_turn()) is not None:
            return message
        if self._end_recv_turn():
            await self._give_way()
            if (message := self.try_recv()) is not None:
                return message
        if timeout is None:
            return await self._receive()
        async with asyncio.timeout(timeout):
            return await self._receive()

    def _receive(self) -> Coroutine[Any, Any, bytes]:
        return receive(
            self._waiters(), self.try_recv, self.fileno, self.poll_begin, self.poll_end
        )


class AwaitedSending(_Waiting):
    """Has the coroutines of what sends."""

    __slots__ = ()

    if TYPE_CHECKING:

        def send(self, data: ReadableBuffer, timeout: float | None = None) -> None: ...
        def try_send(self, data: ReadableBuffer, /) -> bool: ...
        def _send_in_turn(self, data: ReadableBuffer, /) -> bool: ...
        def _end_send_turn(self) -> bool: ...
        def send_fileno(self) -> int: ...
        def send_poll_begin(self) -> bool: ...
        def send_poll_end(self) -> None: ...

    async def asend(self, data: ReadableBuffer, timeout: float | None = None) -> None:
        """As send(), for coroutines. One at a time."""
        check_timeout(timeout)
        if timeout == 0:
            self.send(data, timeout=0)
        elif not self._send_in_turn(data):
            if self._end_send_turn():
                await self._give_way()
                if self.try_send(data):
                    return
            if timeout is None:
                await self._send(data)
            else:
                async with asyncio.timeout(timeout):
                    await self._send(data)

    async def _send(self, data: ReadableBuffer) -> None:
        waiters = self._waiters()
        while True:
            await waiters.sleep(self.send_fileno, self.send_poll_begin, self.send_poll_end)
            if self.try_send(data):
                return


class AwaitedAnswers(_Waiting):
    """Has the coroutines of what calls."""

    __slots__ = ()

    if TYPE_CHECKING:

        def begin(self, data: ReadableBuffer, timeout: float | None = None) -> Call: ...

    async def acall(self, data: ReadableBuffer, timeout: float | None = None) -> bytes:
        """As call(), for coroutines: any number at once.

        A cancelled one is given up: the server is told, and may have seen the request.
        """
        if timeout is None:
            return await self._answer(self.begin(data))
        call = self.begin(data, timeout)
        if timeout <= 0:
            return await self._answer(call)
        async with asyncio.timeout(timeout):
            return await self._answer(call)

    async def _answer(self, call: Call) -> bytes:
        try:
            return await receive(
                self._waiters(), call.try_take, call.fileno, call.poll_begin, call.poll_end
            )
        finally:
            call.close()
