# SPDX-License-Identifier: Apache-2.0
"""The demo: on a small model here, so that it is quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace._measure import file_system_of
from headrace.demo import model
from headrace.demo.measure import Row
from headrace.demo.screen import print_table
from support import random_bytes

HEADER = {
    "__metadata__": {"format": "pt"},
    "b": {"dtype": "F32", "shape": [5, 5], "data_offsets": [100, 200]},
    "a": {"dtype": "F32", "shape": [5, 5], "data_offsets": [0, 100]},
    "empty": {"dtype": "F32", "shape": [0], "data_offsets": [200, 200]},
    "c": {"dtype": "U8", "shape": [100_001], "data_offsets": [200, 100_201]},
}


def safetensors(header: object = HEADER, size: int = 100_201) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + random_bytes(size)


def demo(*arguments: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_the_table_compares_headrace_with_plain_python(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    options = (
        "--model",
        str(tmp_path / "m.safetensors"),
        "--size",
        "4",
        "--rounds",
        "1",
        "--folder",
        str(tmp_path),
    )
    done = demo(*options)
    assert done.returncode == 0, done.stderr
    for word in (
        "save 4 tensors as a checkpoint, durable",
        "load 4 tensors as a checkpoint, cold",
        "atomic, synced",
        "##########",
        "write 4 tensors",
        "read 4 tensors",
        "GB/s",
        "CPU s/GB",
        "route",
        "4 MiB",
        "plain Python",
        "headrace",
    ):
        assert word in done.stdout
    assert "Every byte read is the one that was written" in done.stdout
    assert done.stdout.count("headrace") >= 4
    assert "13/13" in done.stderr or "12/13" in done.stderr
    assert os.listdir(tmp_path) == ["m.safetensors"]
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_the_table_fits_into_80_columns_whatever_the_route(capsys: pytest.CaptureFixture[str]) -> None:
    route = "uring, direct 97%, staged 98%, registered 97%, partly cached"
    names = ("headrace", "torch.save, torch.load")
    print_table([Row("read 1 GiB, cold", name, 1 << 30, 12.345, 0.123, route) for name in names])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count("partly cached") == 2
    assert lines[1] == "read 1 GiB, cold"


def test_a_folder_in_memory_is_said_to_be_no_disk(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or file_system_of(memory) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs that can be written to")
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    model_file = str(tmp_path / "m.safetensors")
    done = demo("--model", model_file, "--size", "2", "--rounds", "1", "--folder", str(memory))
    assert done.returncode == 0, done.stderr
    assert "tmpfs keeps its files in memory: no disk took part" in done.stdout
    assert "--folder" in done.stdout
    table = done.stdout[: done.stdout.index("Every byte")]
    for word in ("page cache", "cold", "durable", "direct"):
        assert word not in table
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_the_table_can_be_json(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    done = demo(
        "--model",
        str(tmp_path / "m.safetensors"),
        "--size",
        "2",
        "--rounds",
        "1",
        "--json",
        "--engine",
        "posix",
    )
    result = json.loads(done.stdout)
    assert len(result["rows"]) == 12
    ways = {row["way"].partition(",")[0] for row in result["rows"]}
    assert ways == {"headrace", "plain Python"}
    assert all(row["gb_per_s"] > 0 and row["cpu_s_per_gb"] >= 0 for row in result["rows"])
    assert result["machine"]["engine"] == "posix"


@pytest.mark.watchdog(400)  # DeepSpeed compiles its op at first use
def test_peers_are_added_as_far_as_they_are_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    options = ("--model", str(tmp_path / "m.safetensors"), "--size", "2", "--rounds", "1", "--peers")
    done = demo(*options, timeout=380)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("torch.save, torch.load") == 4
    assert done.stdout.count("headrace, torch zip") == 2


@pytest.mark.parametrize(
    "arguments", [["--size", "0"], ["--rounds", "x"], ["--nonsense"], ["--engine", "fast"]]
)
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_failures_exit_with_1_and_say_what_helps(tmp_path: Path) -> None:
    done = demo("--model", str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    done = demo("--model", str(tmp_path / "m.safetensors"), "--folder", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "--folder" in done.stderr
    done = demo("--model", str(tmp_path / "m.safetensors"), "--size", str(1 << 40))
    assert done.returncode == 1
    assert "--size" in done.stderr


def test_the_header_gives_the_tensors_in_file_order() -> None:
    data = memoryview(safetensors())
    start, tensors = model.parse(data)
    assert [tensor.name for tensor in tensors] == ["a", "b", "empty", "c"]
    assert (tensors[0].begin, tensors[-1].end) == (start, len(data))
    assert tensors[0].shape == (5, 5)


def entry(begin: object, end: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [1], "data_offsets": [begin, end]}


BAD = {
    "nothing": b"",
    "a length and no more": b"\1" + bytes(7),
    "a length that no file has": b"\xff" * 8 + b"{}",
    "no JSON": (3).to_bytes(8, "little") + b"{x}",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "a gap": safetensors({"a": entry(0, 1), "b": entry(2, 3)}, 3),
    "an overlap": safetensors({"a": entry(0, 2), "b": entry(1, 3)}, 3),
    "an end before the start": safetensors({"a": entry(0, -1)}, 0),
    "a file cut short": safetensors({"a": entry(0, 10)}, 9),
    "bytes that no tensor has": safetensors({"a": entry(0, 10)}, 11),
    "offsets that are no numbers": safetensors({"a": entry("x", 1)}, 1),
    "one offset": safetensors({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}, 1),
    "no shape": safetensors({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, 1),
}


@pytest.mark.parametrize("what", list(BAD))
def test_a_malformed_model_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"safetensors|tensor"):
        model.parse(memoryview(BAD[what]))
