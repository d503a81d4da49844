# SPDX-License-Identifier: Apache-2.0
"""headrace convert: the target appears whole or not at all, and nothing else is touched or left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import (
    Terminal,
    done,
    measured,
    names,
    program,
    refusal,
    run,
    run_json,
    safetensors_file,
    sparse_safetensors,
    strace,
)
from support import NOBODY, mounted, need_root

TARGETS = {
    "torch": ["out.pt"],
    "legacy": ["out.pt", "--format", "torch-legacy"],
    "safetensors": ["out.safetensors"],
    "half": ["out.safetensors", "--dtype", "float16"],
    "shards": ["out", "--shard-size", "1500K"],
}
FILES = [kind for kind in TARGETS if kind != "shards"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {
        n: ("F32", [262_144], array("f", (i % 9973 + start for i in range(262_144))).tobytes())
        for start, n in zip((0, 7, -9_900, -26_000), "abcd", strict=True)
    }
    return safetensors_file(tmp_path / "source.safetensors", tensors)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """A file in the way of each kind of target, which must be there at the end, the same one."""
    for name in ("out.pt", "out.safetensors"):
        (tmp_path / name).write_bytes(b"old")
        (tmp_path / name).chmod(0o640)
    before = [(tmp_path / n).stat().st_ino for n in ("out.pt", "out.safetensors")]
    yield tmp_path
    for name, inode in zip(("out.pt", "out.safetensors"), before, strict=True):
        assert (tmp_path / name).read_bytes() == b"old"
        assert (tmp_path / name).stat().st_ino == inode
    assert not [n for n in names(tmp_path) if "headrace" in n]


@pytest.mark.parametrize("kind", FILES)
def test_a_file_in_the_way_is_refused_and_kept(source: Path, old: Path, kind: str) -> None:
    told = refusal("convert", source, *TARGETS[kind], cwd=old)
    assert "EEXIST" in told
    assert "--overwrite" in told


@pytest.mark.parametrize("kind", FILES)
def test_with_overwrite_the_new_file_takes_the_place_and_the_permissions(source: Path, kind: str) -> None:
    target = source.parent / TARGETS[kind][0]
    target.write_bytes(b"old")
    target.chmod(0o604)
    done("convert", source, *TARGETS[kind], "--overwrite", cwd=source.parent)
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert run("verify", target).returncode == 0
    assert names(source.parent) == sorted([source.name, target.name])


@pytest.mark.parametrize("words", [[], ["--dtype", "float16"], ["--format", "torch"]])
def test_the_source_itself_can_be_replaced(source: Path, words: list[str]) -> None:
    copy = source.parent / "copy.safetensors"
    copy.write_bytes(source.read_bytes())
    done("convert", copy, copy, "--overwrite", *words)
    if "--dtype" not in words:
        assert run_json("verify", source, "--against", copy)["equal"]
    assert run("verify", copy).returncode == 0
    link = source.parent / "link.safetensors"
    link.symlink_to(copy.name)
    done("convert", link, link, "--overwrite", *words)
    assert link.is_symlink()
    assert names(source.parent) == ["copy.safetensors", "link.safetensors", source.name]


def test_a_target_that_cannot_be_is_told(source: Path) -> None:
    folder = source.parent
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe.pt")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "socket.pt"))
    (folder / "circle.pt").symlink_to("circle.pt")
    before = names(folder)
    reasons = {
        "ENOENT": ["missing/out.pt"],
        "EISDIR": ["folder", "folder/", "new/"],
        "regular file": ["pipe.pt", "socket.pt", "/dev/null"],
        "ELOOP": ["circle.pt"],
        "ENAMETOOLONG": ["x" * 300],
        "ENOTDIR": ["source.safetensors/out.pt"],
        "/proc/out.pt": ["/proc/out.pt"],
    }
    for told, target in ((reason, target) for reason, targets in reasons.items() for target in targets):
        said = refusal("convert", source, target, "--format", "torch", "--overwrite", cwd=folder)
        assert told in said, target
    assert "the path is empty" in refusal("convert", source, "", "--format", "torch")
    assert names(folder) == before
    for target in ("folder", "pipe.pt", "socket.pt"):
        refusal("convert", source, target, "--format", "torch", cwd=folder)
    assert names(folder) == before


def test_a_link_to_nowhere_is_followed(source: Path) -> None:
    link = source.parent / "link.pt"
    link.symlink_to("real.pt")
    done("convert", source, link)
    assert link.is_symlink()
    assert (source.parent / "real.pt").is_file()


@pytest.mark.parametrize("kind", TARGETS)
def test_a_folder_without_permission_is_told(source: Path, kind: str) -> None:
    need_root("another user id")
    folder = source.parent / "closed"
    folder.mkdir(mode=0o755)
    with open(source, "rb") as file, open(program(), "rb") as binary:  # whose folders that user may not enter
        descriptors = (file.fileno(), binary.fileno())
        before = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        them = [f"/proc/self/fd/{n}" for n in descriptors]
        ended = subprocess.run(
            [*before, them[1], "convert", them[0], *TARGETS[kind]],
            cwd=folder, pass_fds=descriptors, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "EACCES" in ended.stderr
    assert names(folder) == []


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    with mounted("-t", "tmpfs", "-o", f"size={megabytes}M", "none", folder=folder / "disk") as disk:
        yield disk


@pytest.mark.parametrize("kind", TARGETS)
def test_a_full_disk_keeps_the_old_and_leaves_nothing(source: Path, kind: str) -> None:
    with small_disk(source.parent, megabytes=2 if kind != "half" else 1) as disk:
        target = disk / TARGETS[kind][0]
        if kind != "shards":
            target.write_bytes(b"old")
        told = refusal("convert", source, *TARGETS[kind], "--overwrite", cwd=disk)
        assert "ENOSPC" in told
        assert "bytes are free there" in told
        assert names(disk) == ([] if kind == "shards" else [target.name])
        assert kind == "shards" or target.read_bytes() == b"old"


CALLS = {"EIO": ["pwrite64,pwritev,pwritev2", "fdatasync,fsync", "rename,renameat,renameat2", "ftruncate"],
         "ENOSPC": ["pwrite64,pwritev,pwritev2", "fallocate"]}  # fmt: skip


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(
    ("error", "call"), [(error, call) for error, calls in CALLS.items() for call in calls]
)
def test_every_call_that_fails_keeps_the_old_and_leaves_nothing(
    source: Path, old: Path, kind: str, error: str, call: str
) -> None:
    failing = strace(
        "-e", f"trace=io_uring_setup,io_setup,{call}", "-e", "inject=io_uring_setup,io_setup:error=ENOSYS",
        "-e", f"inject={call}:error={error}", "-o", "/dev/null",
    )  # fmt: skip
    ended = run("convert", source, *TARGETS[kind], "--overwrite", cwd=old, before=failing)
    assert ended.returncode == 1, ended.stdout
    assert error in ended.stderr
    assert ".headrace-" not in ended.stderr, "the name of a temporary says nothing to its reader"
    if kind == "shards":
        assert not (old / "out").exists()


def test_a_source_that_cannot_be_read_keeps_the_old_and_leaves_nothing(old: Path) -> None:
    source = sparse_safetensors(old / "sparse.safetensors", mebibytes=128)
    for kind in FILES:
        failing = strace(
            "-e", "trace=io_uring_setup,io_setup,pread64,preadv,preadv2",
            "-e", "inject=io_uring_setup,io_setup:error=ENOSYS",
            "-e", "inject=pread64,preadv,preadv2:error=EIO:when=3+", "-o", "/dev/null",
        )  # fmt: skip
        ended = run("convert", source, *TARGETS[kind], "--overwrite", cwd=old, before=failing)
        assert ended.returncode == 1
        assert "EIO" in ended.stderr
        assert str(source) in ended.stderr


# Folders of shards.


def test_a_folder_with_something_in_it_is_refused(source: Path) -> None:
    folder = source.parent / "out"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    for words in ([], ["--overwrite"]):
        told = refusal("convert", source, folder, "--shard-size", "1M", *words)
        assert "ENOTEMPTY" in told
    assert names(folder) == ["mine"]
    assert names(source.parent) == ["out", source.name]
    assert "ENOTDIR" in refusal("convert", source, source, "--shard-size", "1M", "--overwrite")


def test_an_empty_folder_is_filled_and_keeps_its_permissions(source: Path) -> None:
    folder = source.parent / "out"
    folder.mkdir()
    folder.chmod(0o700)
    done("convert", source, folder, "--shard-size", "1M")
    assert len(names(folder)) == 5
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["out/", "./out", "../{}/out", "out//"])
def test_a_folder_may_be_named_in_many_ways(source: Path, name: str) -> None:
    result = run_json(
        "convert", source, name.format(source.parent.name), "--shard-size", "1M", cwd=source.parent
    )
    assert len(names(source.parent / "out")) == 5
    assert all((source.parent / file).is_file() for file in [*result["files"], result["index"]])


def test_a_link_to_an_empty_folder_is_followed(source: Path) -> None:
    (source.parent / "real").mkdir()
    (source.parent / "link").symlink_to("real")
    done("convert", source, source.parent / "link", "--shard-size", "1M")
    assert (source.parent / "link").is_symlink()
    assert len(names(source.parent / "real")) == 5
    assert names(source.parent) == ["link", "real", source.name]


def test_a_folder_that_cannot_be_replaced_is_told_before_anything_is_written(source: Path) -> None:
    inside = source.parent / "here"
    inside.mkdir()
    for name in (".", "./", "../here"):
        told = refusal("convert", source, name, "--shard-size", "1M", cwd=inside)
        assert "working folder" in told
    assert names(inside) == []
    (source.parent / "nowhere").symlink_to("no/where")
    refusal("convert", source, source.parent / "nowhere", "--shard-size", "1M")
    refusal("convert", source, source.parent / "no" / "where", "--shard-size", "1M")
    assert names(source.parent) == ["here", "nowhere", source.name]
    with small_disk(source.parent, megabytes=20) as disk:
        assert "mounted" in refusal("convert", source, disk, "--shard-size", "1M")
        assert names(disk) == []
    assert names(source.parent) == ["disk", "here", "nowhere", source.name]


def test_new_files_and_folders_have_the_permissions_that_the_umask_leaves(source: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        folder = source.parent / f"{mask:o}"
        script = f"umask {mask:o}; exec '{program()}' convert '{source}' \"$@\""
        for words in (["out.pt"], ["out", "--shard-size", "1M"]):
            folder.mkdir(exist_ok=True)
            subprocess.run(
                ["bash", "-c", script, "bash", *words], cwd=folder, check=True, capture_output=True
            )
        assert stat.S_IMODE((folder / "out.pt").stat().st_mode) == 0o666 & ~mask
        assert stat.S_IMODE((folder / "out").stat().st_mode) == 0o777 & ~mask
        for name in names(folder / "out"):
            assert stat.S_IMODE((folder / "out" / name).stat().st_mode) == 0o666 & ~mask


# Two at once.


@pytest.mark.parametrize("words", [["out.pt"], ["out", "--shard-size", "1M"]])
def test_of_two_runs_at_once_one_wins_and_the_other_says_so(source: Path, words: list[str]) -> None:
    command = [program(), "convert", source, *words]
    wins = 0
    for _ in range(5):
        pair = [
            subprocess.Popen(
                command, cwd=source.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        said = [process.communicate()[1] for process in pair]
        codes = sorted(process.returncode for process in pair)
        wins += codes == [0, 1]
        assert codes == [0, 1], said
        assert any(error in "".join(said) for error in ("EEXIST", "ENOTEMPTY")), said
        assert run_json("verify", source, "--against", source.parent / words[0])["equal"]
        assert names(source.parent) == sorted([words[0], source.name])
        subprocess.run(["rm", "-r", source.parent / words[0]], check=True)
    assert wins == 5


def test_of_two_runs_at_once_that_overwrite_one_whole_file_is_left(source: Path) -> None:
    target = source.parent / "out.pt"
    for _ in range(5):
        pair = [
            subprocess.Popen([program(), "convert", source, target, "--overwrite"], stdout=subprocess.DEVNULL)
            for _ in range(2)
        ]
        assert [process.wait() for process in pair] == [0, 0]
        assert run_json("verify", source, "--against", target)["equal"]
        assert names(source.parent) == ["out.pt", source.name]


def test_a_killed_run_leaves_the_old_and_the_next_one_is_not_in_its_way(tmp_path: Path) -> None:
    big = sparse_safetensors(tmp_path / "big.safetensors", mebibytes=2048)
    for words in (["out.pt"], ["out", "--shard-size", "256M"]):
        with Terminal("convert", big, *words, cwd=tmp_path) as terminal:
            terminal.read_until("%")
            terminal.process.send_signal(signal.SIGKILL)
            assert terminal.finish() == -signal.SIGKILL
        assert not (tmp_path / words[0]).exists()
        small = safetensors_file(tmp_path / "small.safetensors", {"w": ("U8", [4], b"abcd")})
        done("convert", small, *words, cwd=tmp_path)
        assert run_json("verify", small, "--against", words[0], cwd=tmp_path)["equal"]


# What it costs.


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    big = sparse_safetensors(tmp_path / "big.safetensors", mebibytes=3072, tensors=3)
    for words in (["out.pt"], ["out.bin", "--format", "torch-legacy"], ["half.pt", "--dtype", "float16"]):
        code, resident, _ = measured("convert", str(big), str(tmp_path / words[0]), *words[1:])
        assert code == 0
        assert resident < 300 << 20
        (tmp_path / words[0]).unlink()


def test_memory_stays_far_below_the_size(tmp_path: Path) -> None:
    big = sparse_safetensors(tmp_path / "big.safetensors", mebibytes=512, tensors=1)
    code, resident, _ = measured("convert", str(big), str(tmp_path / "out.pt"))
    assert code == 0
    assert resident < 220 << 20


def test_a_tensor_that_claims_a_petabyte_takes_no_memory_and_no_time(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(1).expand(1 << 40)}, tmp_path / "x.pt")
    code, resident, seconds = measured("inspect", str(tmp_path / "x.pt"))
    assert (code, resident < 64 << 20, seconds < 1) == (0, True, True)
    told = refusal("convert", tmp_path / "x.pt", tmp_path / "x.safetensors")
    assert "ENOSPC" in told or "EFBIG" in told
    assert names(tmp_path) == ["x.pt"]
