# SPDX-License-Identifier: Apache-2.0
"""guard.py FOLDER HUGEPAGES: tidies up at the end of its standard input, whose other end a run holds.

A process of its own, so that it also happens when the run is killed. Removes FOLDER, which the run made, and
sets vm.nr_hugepages back to HUGEPAGES ("-": leave it).
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

NR_HUGEPAGES = Path("/proc/sys/vm/nr_hugepages")
SECONDS_MAX = 60.0


def main() -> None:
    folder, hugepages = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    if hugepages != "-" and NR_HUGEPAGES.read_text().strip() != hugepages:
        NR_HUGEPAGES.write_text(hugepages)
    deadline = time.monotonic() + SECONDS_MAX
    while (
        Path(folder).exists() and time.monotonic() < deadline
    ):  # a dying contender may still be writing there
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
