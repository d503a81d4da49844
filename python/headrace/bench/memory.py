# SPDX-License-Identifier: Apache-2.0
"""Memory that a measurement may count on, and how much of a file sits in it."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

from .._measure import evict

PAGE_BYTES = 4096
COLD_SHARE_MAX = 0.01  # bench io calls as much cold
PIECE_BYTES = 32 << 20  # touched at once, without the interpreter's lock; Ctrl-C is heard in between
MADV_POPULATE_WRITE = 23  # Linux 5.14; as in <linux/mman.h>


def _call(name: str, *types: type) -> ctypes._NamedFuncPointer:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes = list(types)
    return function  # type: ignore[no-any-return]


def prime(size_bytes: int) -> None:
    """Touches and frees that much memory, half of what is free at most.

    On a virtual machine whose host takes unused memory back, whoever touches it first pays (2 to 7 s for each
    10^9 bytes were seen): the page cache of one row, the arrays of another. So it is paid here, outside of
    the timing, by two threads.
    """
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pieces = min(-(-size_bytes // PIECE_BYTES), free_bytes // 2 // PIECE_BYTES)
    if pieces == 0:
        return
    madvise = _call("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with mmap.mmap(-1, pieces * PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        first = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(first)

        def touch(one: int) -> None:
            for piece in range(one, pieces, 2):
                place = piece * PIECE_BYTES
                if madvise(start + place, PIECE_BYTES, MADV_POPULATE_WRITE) != 0:
                    memory[place : place + PIECE_BYTES : PAGE_BYTES] = bytes(PIECE_BYTES // PAGE_BYTES)

        threads = [threading.Thread(target=touch, args=(one,)) for one in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del first


def cached_share(path: Path) -> float | None:
    """How much of the file sits in the page cache, 0 to 1, by mincore(); None where the kernel does not tell.

    It brings nothing in. (A read with RWF_NOWAIT would: the kernel begins to read what is not there, and a
    fast device is done before the call looks.)
    """
    mincore = _call("mincore", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0:
            return 0.0
        with mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY) as memory:
            first = ctypes.c_char.from_buffer(memory)
            found = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))
            failed = mincore(ctypes.addressof(first), size_bytes, ctypes.addressof(found))
            del first
    pages = -(-size_bytes // mmap.PAGESIZE)
    return None if failed else found.raw[:pages].count(b"\1") / pages


def drop_cache(path: Path) -> float | None:
    """The share of the file that sits in the page cache all the same; None where the kernel does not tell."""
    evict(path)
    return cached_share(path)
