# SPDX-License-Identifier: Apache-2.0
"""What hangs fails: the stacks of all threads are shown, and the run ends."""

import faulthandler

import pytest


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(280, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
