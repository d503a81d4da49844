# SPDX-License-Identifier: Apache-2.0
"""What a reader needs to know of the machine that figures come from. No host name, no user name."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from system import memory_info

REPOSITORY = Path(__file__).resolve().parents[2]


def describe(folder: str) -> dict[str, Any]:
    """Kernel, processors, memory, and the disk and file system under `folder`."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "distribution": distribution(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in read("/proc/cpuinfo"),
        "memory_bytes": memory_info()["MemTotal"],
        "transparent_huge_pages": chosen(read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "disk": disk(folder),
        "commit": commit(),
    }


def read(path: str | Path) -> str:
    """A small file's text; nothing when it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def chosen(text: str) -> str:
    """The word in brackets, as sysfs marks the setting in force."""
    return text.partition("[")[2].partition("]")[0] or text


def cpu_model() -> str:
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model", "CPU implementer")):
            return line.partition(":")[2].strip()
    return "unknown"


def distribution() -> str:
    for line in read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "unknown"


def disk(folder: str) -> dict[str, Any]:
    """File system, mount options, and the block device with its queue limits where there is one."""
    status = os.stat(folder)
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    found: dict[str, Any] = {}
    for line in read("/proc/self/mountinfo").splitlines():
        fields = line.split()
        if fields[2] == number:
            after = fields[fields.index("-") + 1 :]
            found = {"file_system": after[0], "options": f"{fields[5]},{after[2]}"}
    device = Path("/sys/dev/block") / number
    if not device.exists():
        return found
    device = device.resolve()
    if not (device / "queue").exists():  # a partition
        device = device.parent
    found["device"] = device.name
    found["model"] = read(device / "device" / "model")
    found["driver"] = (device / "device" / "driver").resolve().name
    for name in (
        "scheduler",
        "max_segments",
        "max_sectors_kb",
        "nr_requests",
        "logical_block_size",
        "rotational",
    ):
        found[name] = chosen(read(device / "queue" / name))
    return found


def commit() -> str:
    """The repository's commit, with "-changed" when tracked files differ from it; "" outside a repository."""
    try:
        words = [
            "git",
            "-C",
            str(REPOSITORY),
            "describe",
            "--always",
            "--abbrev=12",
            "--exclude=*",
            "--dirty=-changed",
        ]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
