# SPDX-License-Identifier: Apache-2.0
"""`headrace report`: exit codes, text that fits its terminal, JSON, and what it leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest
from cli_support import program, run, run_json
from support import disk_folder, need_tool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=disk_folder(), prefix="headrace-report-") as path:
        yield Path(path)


def test_what_lies_in_the_current_folder_is_not_run(tmp_path: Path) -> None:
    """By what is written in Python neither; before 3.11 there it is."""
    for name in ("json", "importlib", "site", "sysconfig", "headrace"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\nraise SystemExit(1)\n")
    told = run_json("report", cwd=tmp_path)
    assert not (tmp_path / "ran").exists()
    assert headrace.__version__ in json.dumps(told)
    if sys.version_info >= (3, 11):
        assert run("demo", "--help", cwd=tmp_path).returncode == 0
        assert run("bench", "checkpoint", "--help", cwd=tmp_path).returncode == 0
        assert not (tmp_path / "ran").exists()


def on_terminal(columns: int, *command: str) -> tuple[int, list[str]]:
    """Exit code and lines of a command on a terminal so wide, without styles and status lines."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm"})
    text = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    shown = re.sub(r"\r[^\r\n]*\x1b\[K", "", text.decode())
    return os.waitstatus_to_exitcode(status), re.sub(r"\x1b\[\d*m", "", shown).splitlines()


def test_exit_code_is_0_where_something_works_everywhere_and_1_where_not(folder: Path) -> None:
    assert run("report").returncode == 0
    done = run("report", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert "works" in done.stdout or "partly" in done.stdout
    done = run("report", str(folder), str(folder / "missing"))
    assert done.returncode == 1
    assert "ENOENT" in done.stdout
    assert "To do: " in done.stdout
    assert list(folder.iterdir()) == []


def test_json_is_what_the_schema_says_and_what_python_returns(folder: Path) -> None:
    result = run_json("report", folder, folder / "missing", code=1)
    ours = headrace.report(folder, folder / "missing")
    assert list(result) == list(ours)
    assert list(result["folders"][0]) == list(ours["folders"][0])
    assert result["folders"][1] == ours["folders"][1]


@pytest.mark.parametrize("columns", [80, 60])
def test_text_fits_the_terminal(folder: Path, columns: int) -> None:
    code, lines = on_terminal(columns, program(), "report", "/dev/shm", str(folder))
    assert code == 0
    for line in lines:
        # What is too long is one word, such as a path.
        assert len(line) <= columns or len(line.split()) == 1, line


def test_a_terminal_of_20_columns_breaks_nothing(folder: Path) -> None:
    code, lines = on_terminal(20, program(), "report", str(folder))
    assert code == 0
    assert "  uring" in lines
    for line in lines:
        assert len(line) <= 20 or len(line.split()) == 1, line


def test_names_cannot_write_on_the_terminal(folder: Path) -> None:
    odd = folder / "\x1b]0;title\x07\n"
    odd.mkdir()
    done = subprocess.run(
        [program(), "report", os.fsencode(odd), b"/\xff"], capture_output=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\\x1b]0;title\\x07\\x0a" in done.stdout
    assert b"/\\xff" in done.stdout


def alone_run(alone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Where no python3 is on PATH, only what lies beside the program."""
    return subprocess.run(
        [alone, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PATH": "/nowhere"},
    )


def test_without_python_it_says_so_and_goes_on(folder: Path) -> None:
    alone = folder / "headrace"  # beside no python3
    shutil.copy(program(), alone)
    done = alone_run(alone, "report")
    assert done.returncode == 0
    assert "no python3 was found" in done.stdout
    assert json.loads(alone_run(alone, "report", "--json").stdout)["python"] == {"found": False}


def test_a_python_that_talks_nonsense_is_not_believed(folder: Path) -> None:
    alone = folder / "headrace"
    shutil.copy(program(), alone)
    python = folder / "python3"
    for answer in ("", "{", "[]", '{"found": true}', '{"found": true, "version": 3, "packages": {}}'):
        python.write_text(f"#!/bin/sh\necho '{answer}'\n")
        python.chmod(0o755)
        done = alone_run(alone, "report", "--json")
        assert done.returncode == 0, answer
        assert json.loads(done.stdout)["python"] == {"found": False}, answer


def test_ctrl_c_ends_it_by_the_signal_and_leaves_nothing(folder: Path) -> None:
    strace = need_tool("strace")
    # A device that takes a second for each sync: the signal comes while an engine is waited for.
    slow = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1000000"]
    command = [strace, "-f", "-qq", "-o", "/dev/null", *slow, program(), "report", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.5)
        traced = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        os.kill(int(traced[0]), signal.SIGINT)
        out, notes = child.communicate(timeout=30)
    assert child.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert out == b""
    assert b"stopped as asked" in notes
    assert list(folder.iterdir()) == []


def test_help_has_examples() -> None:
    done = run("report", "--help")
    assert done.returncode == 0
    assert "headrace report /mnt/nvme0" in done.stdout
    assert run("report", "--jsn").returncode == 2
