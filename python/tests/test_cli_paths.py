# SPDX-License-Identifier: Apache-2.0
"""What is given as a checkpoint and is none: told in plain words, by every command, in no time."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import done, names, program, refusal, run, run_json, safetensors_file
from support import NOBODY, need_root

COMMANDS = {
    "inspect": ["inspect"],
    "verify": ["verify"],
    "convert": ["convert"],
    "against": ["verify", "--against"],
}


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.pt")
    return folder / "pipe.pt"


def unix_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "socket"))
    return folder / "socket"


def circle(folder: Path) -> Path:
    (folder / "one.pt").symlink_to("other.pt")
    (folder / "other.pt").symlink_to("one.pt")
    return folder / "one.pt"


def written(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "file.pt").write_bytes(data)
        return folder / "file.pt"

    return write


def folder_of(*files: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        inside = folder / "folder"
        inside.mkdir()
        for file in files:
            safetensors_file(inside / file, {file: ("U8", [2], b"ab")})
        return inside

    return make


def unreadable(folder: Path) -> Path:
    path = safetensors_file(folder / "secret.safetensors", {"w": ("U8", [2], b"ab")})
    path.chmod(0)
    return path


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
# Who makes it, the exit code, what is said.
NONE = {
    "nothing there": (lambda folder: folder / "nowhere.pt", 1, "ENOENT"),
    "a folder that is not there": (lambda folder: folder / "no" / "where.pt", 1, "ENOENT"),
    "below a file": (lambda folder: written(b"x")(folder) / "x.pt", 1, "ENOTDIR"),
    "an empty name": (lambda folder: "", 1, "the path is empty"),
    "a very long name": (lambda folder: folder / ("x" * 300), 1, "ENAMETOOLONG"),
    "a very long path": (lambda folder: folder / "/".join(["x" * 200] * 30), 1, "ENAMETOOLONG"),
    "a pipe": (fifo, 1, "pipes"),
    "a socket": (unix_socket, 1, "sockets"),
    "a circle of links": (circle, 1, "ELOOP"),
    "a device without end": (lambda folder: "/dev/zero", 1, "/dev/zero"),
    "no device": (lambda folder: "/dev/null", 1, "/dev/null"),
    "memory of the program": (lambda folder: "/proc/self/mem", 3, "empty"),
    "an empty file": (written(b""), 3, "the file is empty"),
    "one byte": (written(b"P"), 3, "neither"),
    "eight bytes": (written(b"\x10" + bytes(7)), 3, "neither"),
    "zeros": (written(bytes(5000)), 3, "zeros"),
    "text": (written(b"hello " * 100), 3, "neither"),
    "a pointer of Git LFS": (written(LFS), 3, "git lfs pull"),
    "half a zip": (written(b"PK\x03\x04" + bytes(100)), 3, "file.pt"),
    "a header that is too long": (written(b"\xff" * 7 + b"\x7f{"), 3, "header"),
    "a header that is cut": (written(b"\x50" + bytes(7) + b'{"w": '), 3, "header"),
    "a folder without checkpoints": (folder_of(), 1, "no file ends in"),
    "two checkpoints in a folder": (folder_of("a.safetensors", "b.safetensors"), 1, "a.safetensors, b.saf"),
    "a part too few": (folder_of("m-00001-of-00002.safetensors"), 1, "number 2 is missing"),
    "a part too many": (
        folder_of("m-00001-of-00001.safetensors", "m-00002-of-00001.safetensors"), 1, "several checkpoints"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", NONE)
def test_what_is_no_checkpoint_is_told(what: str, command: str, tmp_path: Path) -> None:
    make, code, told = NONE[what]
    path = make(tmp_path)
    before = names(tmp_path)
    words = list(COMMANDS[command])
    if command == "against":
        words.insert(
            1, str(safetensors_file(tmp_path.parent / "good.safetensors", {"w": ("U8", [2], b"ab")}))
        )
    words.append(str(path))
    if command == "convert":
        words.append(str(tmp_path / "out.safetensors"))
    ended = run(*words, timeout=20)
    said = ended.stdout if command == "verify" and code == 3 else ended.stderr
    assert (ended.returncode, told in said) == (code, True), (ended.returncode, ended.stdout, ended.stderr)
    assert str(path) in said
    assert names(tmp_path) == before


@pytest.mark.parametrize("command", ["inspect", "verify", "convert"])
def test_a_file_without_permission_is_told(command: str, tmp_path: Path) -> None:
    need_root("another user id")
    path = unreadable(tmp_path)
    tmp_path.chmod(0o777)
    words = [command, str(path), *(["out.pt"] if command == "convert" else [])]
    # The folders above may be closed to that user: it begins inside.
    before = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    shutil.copy(program(), tmp_path / "headrace")
    ended = subprocess.run(
        [*before, "./headrace", *words[:1], path.name, *words[2:]],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "EACCES" in ended.stderr
    assert "check the permissions" in ended.stderr


def test_a_folder_with_weights_in_both_forms_means_the_safetensors(tmp_path: Path) -> None:
    path = folder_of("model.safetensors")(tmp_path)
    done("convert", path / "model.safetensors", path / "pytorch_model.bin")
    assert [Path(f["path"]).name for f in run_json("inspect", path)["files"]] == ["model.safetensors"]


def test_one_checkpoint_can_be_named_in_five_ways(tmp_path: Path) -> None:
    source = safetensors_file(tmp_path / "x.safetensors", {c: ("U8", [2], b"ab") for c in "pq"})
    done("convert", source, tmp_path / "shards", "--shard-size", "2")
    (tmp_path / "link").symlink_to("shards")
    ways = ["shards", "shards/", "shards/model.safetensors.index.json", "shards/model", "link"]
    told = [run_json("verify", way, "--against", source, cwd=tmp_path) for way in ways]
    assert [(t["equal"], t["compared_tensors"]) for t in told] == [(True, 2)] * 5


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (b"", "no JSON"),
        (b"[]", "weight_map"),
        (b'{"weight_map": 1}', "weight_map"),
        (b'{"weight_map": {"w": 1}}', "file name"),
        (b'{"weight_map": {"w": "../x.safetensors"}}', "beside it"),
        (b'{"weight_map": {"w": "/etc/passwd"}}', "beside it"),
        (b'{"weight_map": {"w": "no.safetensors"}}', "not there"),
        (b'{"weight_map": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "file name"),
        (b'{"weight_map": {"w": "\xff"}}', "JSON"),
    ],
)
def test_a_broken_index_is_told(tmp_path: Path, index: bytes, told: str) -> None:
    path = folder_of("x.safetensors")(tmp_path)
    (path / "model.safetensors.index.json").write_bytes(index)
    assert told in refusal("inspect", path, code=3)
    assert told in run("verify", path).stdout
    assert told in refusal("convert", path, tmp_path / "out.pt", code=3)


def test_a_file_name_that_is_no_utf8_works_everywhere(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/a\xff\xfe.safetensors"
    safetensors_file(Path(os.fsdecode(name)), {"w": ("U8", [2], b"ab")})
    assert "a\\xff\\xfe.safetensors" in done("inspect", name)
    assert "a\ufffd\ufffd.safetensors" in run_json("inspect", name)["path"]
    result = run_json("convert", name, os.fsencode(tmp_path) + b"/\xfe.pt")
    assert result["files"][0].endswith("/\ufffd.pt")
    assert run_json("verify", os.fsencode(tmp_path) + b"/\xfe.pt", "--against", name)["equal"]
    assert "\\xff" in refusal("inspect", b"/nowhere/\xff.pt")
