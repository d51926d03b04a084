"""A trainer that takes a gigabyte of memory and touches every page of it."""

from __future__ import annotations

import time

eaten = bytearray(1 << 30)
eaten[::4096] = bytes([1]) * len(eaten[::4096])
time.sleep(600)
