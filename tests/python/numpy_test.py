# SPDX-License-Identifier: Apache-2.0
"""Arrays of numpy, in and out without a copy of Python's."""

import numpy
import pytest

import farcall


@pytest.mark.parametrize("shape", [(1000,), (20, 50), (2, 5, 100)])
def test_an_array_is_sent_and_received_into(shape):
    a, b = farcall.pipe()
    array = numpy.arange(1000, dtype=numpy.float64).reshape(shape)
    a.send(array)
    target = numpy.empty(shape)
    assert b.recv_into(target) == array.nbytes
    assert (target == array).all()


def test_an_array_with_gaps_is_refused():
    a, _ = farcall.pipe()
    with pytest.raises((BufferError, ValueError)):
        a.send(numpy.arange(10)[::2])


def test_a_received_message_is_an_array_without_a_copy():
    a, b = farcall.pipe()
    a.send(numpy.array([1, 2, 3], dtype=numpy.int32))
    assert numpy.frombuffer(b.recv(), dtype=numpy.int32).tolist() == [1, 2, 3]
