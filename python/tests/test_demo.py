# SPDX-License-Identifier: Apache-2.0
"""The demo: on a small model here, so that it is quick."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import Terminal, checked, validator
from headrace._measure import file_system_of
from headrace.demo import checkpoint, main, model, peers, run
from headrace.demo.measure import Row, Run, all_cold, row
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
    assert re.search(r"0\.\d GB will be written and read in .*, in 1 rounds: about \d+ s on", done.stderr)
    assert len(done.stderr.splitlines()) <= 3  # a line every ten seconds
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
    result = checked(json.loads(done.stdout))
    assert result["schema"] == "headrace.demo"
    rules = validator("demo")
    for key in result:
        assert not rules.is_valid({name: value for name, value in result.items() if name != key}), key
    assert not rules.is_valid(result | {"rows": [result["rows"][0] | {"another": 1}]})
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
    assert done.stderr.startswith("headrace: ")
    assert "See: headrace demo --help" in done.stderr


def test_failures_exit_with_1_and_say_what_helps(tmp_path: Path) -> None:
    done = demo("--model", str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    done = demo("--model", str(tmp_path / "m.safetensors"), "--folder", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "--folder" in done.stderr
    (tmp_path / "none.safetensors").write_bytes(safetensors({}, 0))
    done = demo("--model", str(tmp_path / "none.safetensors"), "--size", "1", "--folder", str(tmp_path))
    assert done.returncode == 1
    assert "its tensors are empty" in done.stderr
    assert "Traceback" not in done.stderr
    done = demo("--model", str(tmp_path / "m.safetensors"), "--size", str(1 << 40))
    assert done.returncode == 1
    assert "--size" in done.stderr


def test_without_a_model_one_is_made() -> None:
    data = model.make()
    start, tensors = model.parse(data)
    assert len(tensors) == 148
    assert sum(tensor.end - tensor.begin for tensor in tensors) == 4 * 124_439_808  # as published
    assert start % 8 == 0
    for tensor in tensors:
        piece = data[tensor.begin : tensor.end].tobytes()
        assert piece.count(0) < len(piece) // 100 + 100
    assert not data.readonly


@pytest.mark.watchdog(200)
def test_it_runs_without_any_option_but_a_folder(tmp_path: Path) -> None:
    done = demo("--folder", str(tmp_path), "--rounds", "1", "--size", "16", timeout=190)
    assert done.returncode == 0, done.stderr
    assert "Every byte read is the one that was written" in done.stdout
    if model.find_model() is None:
        assert "random, in the shapes of GPT-2, 498 MB" in done.stderr
        assert "save 148 tensors" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_heading_says_cold_only_where_all_of_it_was() -> None:
    cold, warm, untold = (Run(1, 1, "way", cached) for cached in (0.001, 0.4, None))
    assert all_cold([cold, cold])
    assert not all_cold([cold, warm])
    assert not all_cold([cold, untold])
    assert row("read", "headrace", 1000, [cold, warm, cold]).route == "way, 40% cached"
    assert row("read", "headrace", 1000, [cold]).route == "way"
    assert row("read", "headrace", 1000, [cold, warm]).cached_share == 0.4
    assert row("write", "headrace", 1000, [untold]).cached_share is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_soon_by_the_signal_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    command = [sys.executable, "-m", "headrace", "demo", "--model", str(tmp_path / "m.safetensors")]
    options = ["--folder", str(tmp_path), "--size", "64", "--rounds", "1000"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        deadline = time.monotonic() + 40
        while len(os.listdir(tmp_path)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        start = time.monotonic()
        run.send_signal(number)
        assert run.stderr is not None
        err = run.stderr.read().decode()
        assert run.wait() == -number
        assert time.monotonic() - start < 3
    assert f"interrupted by {number.name}; nothing is left behind" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_help_looks_like_that_of_the_other_commands() -> None:
    done = demo("--help")
    assert done.returncode == 0
    assert "\nUsage: headrace demo [OPTION]...\n" in done.stdout
    assert "\nExamples:\n  headrace demo\n" in done.stdout
    assert "  -h, --help\n        Print this help and exit." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_an_error_is_json_too(tmp_path: Path) -> None:
    for arguments, code in (["--size", "0"], 2), (["--model", str(tmp_path / "missing")], 1):
        done = demo(*arguments, "--json")
        assert done.returncode == code
        assert checked(json.loads(done.stdout))["schema"] == "headrace.error"


def small(tmp_path: Path) -> list[str]:
    """Options of a run that is quick."""
    (tmp_path / "m.safetensors").write_bytes(safetensors())
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    model_file = str(tmp_path / "m.safetensors")
    return ["--model", model_file, "--size", "2", "--rounds", "1", "--folder", str(folder)]


def test_fio_writes_into_a_folder_with_a_colon(tmp_path: Path) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    folder = tmp_path / "a:b"
    folder.mkdir()
    (tmp_path / "a").write_text("precious")
    memory = memoryview(bytearray(16 << 20))
    path = folder / "buffer"
    case = run.Case("16 MiB", path, [(path, memory, 0)], [(path, memory, 0)])
    fio = peers.Fio()
    fio.measure(case, folder)
    assert (tmp_path / "a").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["a", "a:b"]
    if not fio.notes:  # it needs io_uring
        assert {operation for operation, _ in case.runs} == {"write", "read"}
        assert os.listdir(folder) == []


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_other_bytes_end_it_with_3(
    as_json: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = run.by_python_read

    def wrong(pieces: list[run.Piece]) -> str:
        route = read(pieces)
        pieces[-1][1][-1] ^= 1
        return route

    def checked_error(said: str) -> None:
        assert main([*small(tmp_path), *as_json]) == 3
        found = capsys.readouterr()
        assert f"headrace: demo: {said}" in found.err.splitlines()[-1]
        if as_json:
            assert checked(json.loads(found.out))["error"]["code"] == "corrupt"
        assert os.listdir(tmp_path / "work") == []

    with monkeypatch.context() as patch:
        patch.setattr(run, "by_python_read", wrong)
        checked_error("plain Python read other bytes than were written")
    monkeypatch.setattr(checkpoint, "differs", lambda *_: True)
    checked_error("headrace, safetensors gave other bytes of tensor a")


def test_any_other_exception_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "by_python_read", lambda _: {}["no"])
    assert main([*small(tmp_path), "--json"]) == 1
    found = capsys.readouterr()
    assert found.err.splitlines()[-1] == "headrace: demo: KeyError: 'no'"
    assert checked(json.loads(found.out))["error"]["code"] == "unavailable"


@pytest.mark.parametrize("stderr", ["2>&-", "2</dev/null", "2>/dev/full"])
def test_it_works_where_standard_error_takes_nothing(stderr: str, tmp_path: Path) -> None:
    command = ["sh", "-c", f'exec "$@" {stderr}', "sh", sys.executable, "-m", "headrace", "demo"]
    done = subprocess.run(
        [*command, *small(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=50, check=True
    )
    assert "Every byte read is the one that was written" in done.stdout
    done = subprocess.run(
        [*command, "--model", "none", "--json"], stdout=subprocess.PIPE, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert checked(json.loads(done.stdout))["error"]["errno"] == "ENOENT"


def test_a_name_is_shown_safely_whatever_it_holds(tmp_path: Path) -> None:
    missing = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff\x1b[31m\xc3\xa4")
    done = demo("--model", missing, "--json")
    shown = f"headrace: demo: {tmp_path}/a\\xff\\x1b[31mä: No such file or directory\n"
    assert (done.returncode, done.stderr) == (1, shown)
    assert checked(json.loads(done.stdout))["error"]["path"] == f"{tmp_path}/a\ufffd\x1b[31mä"


def test_the_progress_line_goes_before_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "demo", *small(tmp_path)]
    limited = ["sh", "-c", 'ulimit -f 8 && exec "$@"', "sh", *command]
    with Terminal(command=limited, stdout=subprocess.DEVNULL) as terminal:
        assert terminal.finish() == 1
        assert "once without counting" in terminal.seen
        assert re.search(r"\r\033\[Kheadrace: demo: [^\r\n]*File too large[^\r\n]*\r\n$", terminal.seen)


def test_a_terminal_that_cannot_take_a_line_back_gets_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "demo", *small(tmp_path)]
    with Terminal(command=command, stdout=subprocess.DEVNULL, TERM="dumb") as terminal:
        assert terminal.finish() == 0
        assert "\033" not in terminal.seen


def test_a_file_system_that_nobody_tells_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    found = file_system_of(tmp_path)
    monkeypatch.undo()
    assert found == "unknown"


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
