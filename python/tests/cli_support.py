# SPDX-License-Identifier: Apache-2.0
"""The program `headrace` as a user runs it: a process of its own, on a terminal or without."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"
Word = str | os.PathLike[str] | bytes


def program() -> str:
    """The one that the wheel installed beside this Python, or what HEADRACE_PROGRAM names."""
    named = os.environ.get("HEADRACE_PROGRAM")
    return named or str(Path(sys.executable).parent / "headrace")


def run(
    *arguments: Word, before: Sequence[str] = (), timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, whatever that is. Bytes of its output that are no UTF-8 become surrogates."""
    options.setdefault("stdin", subprocess.DEVNULL)
    if not {"stdout", "stderr", "capture_output"} & options.keys():
        options["capture_output"] = True
    return subprocess.run(
        [*before, program(), *arguments],
        check=False,
        timeout=timeout,
        text=True,
        errors="surrogateescape",
        **options,
    )


@cache
def validator(name: str) -> Any:
    """Of docs/schema/NAME.json."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def checked(result: dict[str, Any]) -> dict[str, Any]:
    """The same, which must be what its schema says."""
    validator(str(result["schema"]).removeprefix("headrace.")).validate(result)
    return result


def run_json(*arguments: Word, code: int = 0, **options: Any) -> dict[str, Any]:
    """Its result with --json, held against its schema; the exit code must be `code`."""
    done = run(*arguments, "--json", **options)
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr)
    return checked(json.loads(done.stdout))


def done(*arguments: Word, **options: Any) -> str:
    """Its output; it must end well, and say nothing on standard error."""
    ended = run(*arguments, **options)
    assert (ended.returncode, ended.stderr) == (0, ""), (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout


def refusal(*arguments: Word, code: int = 1, **options: Any) -> str:
    """What it says on standard error; it must end with `code`, write no result, and not crash."""
    ended = run(*arguments, **options)
    assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
    assert ended.stdout == ""
    assert ended.stderr.startswith("headrace: "), ended.stderr
    return ended.stderr


class Terminal:
    """The program, or another command, with a terminal of its own; standard output may be apart."""

    def __init__(
        self,
        *arguments: Word,
        command: Sequence[Word] = (),
        columns: int = 200,
        stdout: int | None = None,
        cwd: Path | None = None,
        **variables: str,
    ) -> None:
        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            # Under nohup the tests ignore SIGHUP, and what they start would.
            command or ["env", "--default-signal=HUP", program(), *arguments],
            stdin=other if command else subprocess.DEVNULL,
            stdout=other if stdout is None else stdout,
            stderr=other,
            env=environment | {"TERM": "xterm"} | variables,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(other)
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)
        if self.process.stdout:
            self.process.stdout.close()

    def _more(self) -> bool:
        try:
            piece = os.read(self._side, 65536)
        except OSError:  # EIO: the program has ended
            return False
        self.seen += piece.decode(errors="surrogateescape")
        return bool(piece)

    def type(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def read_until(self, text: str) -> None:
        while text not in self.seen and self._more():
            pass
        assert text in self.seen, self.seen

    def finish(self) -> int:
        """Its exit code, a signal's number negative; all that it wrote is in `seen` then."""
        while self._more():
            pass
        return self.process.wait()


def on_terminal(*arguments: Word, columns: int = 80, **variables: str) -> tuple[int, str]:
    """Exit code, and what a terminal of so many columns was sent."""
    with Terminal(*arguments, columns=columns, **variables) as terminal:
        return terminal.finish(), terminal.seen.replace("\r\n", "\n")


# Linux counts what a process had before exec as its own: so the parent is a small one.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)
"""


def measured(*arguments: Word) -> tuple[int, int, float]:
    """Exit code, most bytes that were resident, CPU seconds."""
    command = [sys.executable, "-I", "-S", "-c", MEASURE, program(), *arguments]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    code, resident, seconds = told.split()
    return int(code), int(resident), float(seconds)


def safetensors_file(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], **metadata: str) -> Path:
    """Made by hand: name → type as the format calls it, shape, bytes."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))
    return path


def sparse_safetensors(path: Path, mebibytes: int, tensors: int = 8) -> Path:
    """Float32 zeros that take no space on the disk, and as long to read as any others."""
    each = (mebibytes << 20) // tensors
    header = {
        f"layer.{i}.weight": {
            "dtype": "F32",
            "shape": [each // 4],
            "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + tensors * each)
    return path


def flipped(source: Path, offset: int, target: Path | None = None, mask: int = 1) -> Path:
    """A copy with a bit of one byte turned."""
    target = target or source.with_name(f"flipped-{source.name}")
    data = bytearray(source.read_bytes())
    data[offset] ^= mask
    target.write_bytes(data)
    return target


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def strace(*options: str) -> list[str]:
    """To stand before the program; skips where that cannot be."""
    import pytest

    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if (
        subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode
        != 0
    ):
        pytest.skip("strace may not trace here")
    return ["strace", "-f", "-qq", *options]
