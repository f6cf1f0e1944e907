# SPDX-License-Identifier: Apache-2.0
"""A queue of objects for any number of processes on both sides."""

from __future__ import annotations

import collections
import os
import queue
import threading
import weakref
from collections.abc import Callable
from multiprocessing import reduction, util
from typing import Any

from . import _farcall, _pickling, _sizes


_IDLE = 0.1  # seconds that a thread that puts waits for more

# All of this process.
_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _forked() -> None:
    for one in _queues:
        one._items.forked()
        one._begin_here()


# At once: later another thread of the child might be halfway through a put.
os.register_at_fork(after_in_child=_forked)


class _Change(threading.Condition):
    """Told whenever what waits to be put has changed."""

    feeder: threading.Thread | None = None  # the thread that puts it
    last = False  # whether that thread ends as soon as nothing waits
    joining: Any = None  # what waits for it when the process exits

    def forget_joining(self) -> None:
        with self:
            if self.joining is not None:
                self.joining.cancel()
            self.joining = None


class Queue:
    """As multiprocessing.Queue, and SimpleQueue: objects, in the order in which they were put.

    capacity: bytes of shared memory. What does not fit there at once waits in the process that put it,
    and a thread of that process puts it when there is room, as with multiprocessing. A process that
    has put such items does not exit before they are gone, unless cancel_join_thread() was called.

    Items can be of any size. Processes of a queue trust each other: to unpickle is to run code. One
    that is killed does not hold up the others, and what it had not sent takes no place; where it dies,
    or is interrupted, in the middle of an item larger than the capacity, the queue ends with an OSError
    for all.

    >>> q = Queue()
    >>> q.put({"x": 1}); q.put("second")
    >>> q.get(), q.get()
    ({'x': 1}, 'second')
    """

    def __init__(self, maxsize: int = 0, *, capacity: int | str = "1M", ctx: object = None) -> None:
        maxsize = max(0, maxsize)
        self._start(_farcall.create_queue(_sizes.size(capacity), maxsize), maxsize)

    def _start(self, items: _farcall.ItemQueue, maxsize: int) -> None:
        self._items = items
        self._maxsize = maxsize
        self._closed = False
        self._joins = True
        self._begin_here()
        _queues.add(self)

    def _begin_here(self) -> None:
        """What a process has of its own; a forked child begins anew."""
        self._waiting: collections.deque[bytes] = collections.deque()
        self._change = _Change()
        self._feeder: threading.Thread | None = None

    # ---- put ----

    def put(self, obj: object, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object; queue.Full where `maxsize` items are there and none goes in time."""
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        patience = None if block and timeout is None else _patience(block, timeout)
        if not self._waiting:
            item = self._items.put_object(obj, patience)
            if item is True:
                return
        else:  # Behind what waits already: the order of one process is kept.
            item = bytes(_pickling.dumps(obj))
            if not self._items.reserve(patience):
                raise queue.Full
        if item is False:
            raise queue.Full
        self._put_later(item)

    def put_nowait(self, obj: object) -> None:
        """put(obj, False)."""
        self.put(obj, False)

    def _put_later(self, item: bytes) -> None:
        with self._change:
            self._waiting.append(item)
            if self._change.feeder is None:
                self._start_feeder()
            self._change.notify_all()

    def _start_feeder(self) -> None:
        """Or takes the last item back. A signal may end this when the thread runs, which ends then."""
        change = self._change
        feeder = threading.Thread(
            target=self._feed, args=(self._items, self._waiting, change),
            name="farcall-queue", daemon=True)
        try:
            change.feeder = feeder
            if self._joins:
                change.joining = util.Finalize(
                    None, Queue._wait, [self._waiting, change], exitpriority=-5)
            feeder.start()
        except BaseException:  # there is no more thread to be had, or Ctrl-C
            change.feeder = None
            change.forget_joining()
            self._waiting.pop()
            self._items.give_back()
            raise
        self._feeder = feeder

    @staticmethod
    def _feed(
        items: _farcall.ItemQueue, waiting: collections.deque[bytes], change: _Change
    ) -> None:
        """The thread. An item stays first in line until it is in the queue."""
        while True:
            with change:
                if change.feeder is not threading.current_thread():
                    return
                if not change.wait_for(lambda: waiting or change.last, _IDLE) or not waiting:
                    change.feeder = None
                    change.forget_joining()
                    return
            try:
                items.put(waiting[0])
            except (OSError, ValueError):  # closed, or broken: nobody will get them
                with change:
                    waiting.clear()
                    change.notify_all()
                continue
            with change:
                waiting.popleft()
                change.notify_all()

    @staticmethod
    def _wait(waiting: collections.deque[bytes], change: threading.Condition) -> None:
        with change:
            while waiting:
                change.wait()

    # ---- get ----

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Gets the first object; queue.Empty where there is none in time."""
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        return self._items.get(None if block and timeout is None else _patience(block, timeout))

    def get_nowait(self) -> Any:
        """get(False)."""
        return self.get(False)

    # ---- state ----

    def qsize(self) -> int:
        """How many have been put, and not got. Others may change it at any time."""
        return self._items.size()

    def empty(self) -> bool:
        """Whether there is nothing to get at this moment."""
        return self._items.empty()

    def full(self) -> bool:
        """Whether `maxsize` items are there at this moment."""
        return self._maxsize > 0 and self._items.size() >= self._maxsize

    # ---- the end ----

    def close(self) -> None:
        """This process puts and gets nothing more; what it has put goes on its way."""
        self._closed = True
        with self._change:
            self._change.last = True
            self._change.notify_all()

    def join_thread(self) -> None:
        """After close(): waits until all that this process has put is in the queue."""
        if not self._closed:
            raise ValueError(f"Queue {self!r} not closed")
        self._wait(self._waiting, self._change)
        if self._feeder is not None:
            self._feeder.join()

    def cancel_join_thread(self) -> None:
        """This process may exit before all that it has put is in the queue; that is lost then."""
        self._joins = False
        self._change.forget_joining()

    def __getstate__(self) -> None:
        raise TypeError("a queue can be pickled for a process of multiprocessing only")


def _patience(block: bool, timeout: float | None) -> float | None:
    return 0.0 if not block else None if timeout is None else max(0.0, timeout)


def _adopt(duplicates: list[Any], maxsize: int) -> Queue:
    descriptors = [duplicate.detach() for duplicate in duplicates]
    try:
        items = _farcall.adopt_queue(descriptors)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    made = Queue.__new__(Queue)
    made._start(items, maxsize)
    return made


def _reduce(given: Queue) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    duplicates = [reduction.DupFd(descriptor) for descriptor in given._items.descriptors()]
    return _adopt, (duplicates, given._maxsize)


reduction.register(Queue, _reduce)
