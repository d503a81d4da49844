# SPDX-License-Identifier: Apache-2.0
"""headrace bench: its figures against other measures, and what it leaves behind, which is nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import checked, program, run, run_json
from support import random_bytes

MIB = 1 << 20
QUICK = ("--io-size", "16M", "--repeats", "2", "--no-fio")

# Of DeepSpeed 0.19.8.
DS_IO_OPTIONS = (
    "--folder",
    "--folder_to_device_mapping",
    "--io_size",
    "--read",
    "--multi_process",
    "--block_size",
    "--queue_depth",
    "--single_submit",
    "--sequential_requests",
    "--validate",
    "--engine",
    "--loops",
    "--warmup_loops",
    "--include_warmup_time",
    "--io_parallel",
    "--gpu",
    "--use_gds",
    "--slow_bounce_buffer",
    "--fast_io_size",
    "--torch_legacy_save",
    "--use_accelerator_pin_memory",
    "--different_file_each_iteration",
)


def bench_io(*arguments: str | os.PathLike[str], code: int = 0, **options: Any) -> dict[str, Any]:
    return run_json("bench", "io", *arguments, code=code, **options)


def refusal(*arguments: str | os.PathLike[str], code: int) -> str:
    """What it says on standard error when it ends with `code`."""
    done = run("bench", *arguments)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    return done.stderr


def start(*arguments: str | os.PathLike[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program(), "bench", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def nameless_files(pid: int) -> list[str]:
    """Paths by which the files that a process holds without a name can be opened."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{entry}"
            with contextlib.suppress(OSError):
                if os.readlink(path).endswith(" (deleted)"):
                    found.append(path)
    return found


def wait_for_files(process: subprocess.Popen[str]) -> list[str]:
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        if files := nameless_files(process.pid):
            return files
        time.sleep(0.005)
    raise AssertionError(f"it made no file: {process.communicate()}")


def test_every_option_of_ds_io_has_an_answer() -> None:
    shown = run("bench", "io", "--help").stdout
    for option in DS_IO_OPTIONS:
        assert re.search(rf"{option}\b", shown), option


def test_defaults_are_those_of_ds_io(folder: Path) -> None:
    result = bench_io("--folder", folder, "--io_size", "8M", "--no-fio")["results"][0]
    assert result["direction"] == "write"
    settings = result["settings"]
    assert settings["block_bytes"] == MIB
    assert settings["queue_depth"] == 32
    assert settings["workers"] == 1
    assert (settings["engine"], settings["request"], settings["order"]) == ("auto", "file", "overlapping")
    assert len(result["samples"]) == 3


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--gpu",), "GPU support is not there yet"),
        (("--use_gds",), "GPU support is not there yet"),
        (("--slow_bounce_buffer",), "--copy always"),
        (("--use_accelerator_pin_memory",), "--pages"),
        (("--torch_legacy_save",), "headrace bench checkpoint"),
        (("--fast_io_size", "64M"), "headrace bench checkpoint"),
        (("--engine", "torch_fastio"), "headrace bench checkpoint"),
        (("--engine", "aio_basic"), "'aio'"),
        (("--engine", "urnig"), "did you mean 'uring'?"),
        (("--io_size", "12Q"), "powers of 1024"),
        (("--io_size", "0"), "is nothing"),
        (("--block_size", "1000"), "multiples of 4096"),
        (("--queue_depth", "0"), "from 1 to 4096"),
        (("--loops", "-1"), "from 1 to"),
        (("--queue-dpeth", "3"), "did you mean '--queue-depth'?"),
        (("--file", "/etc/passwd"), "exclude each other"),
        (("--engine", "null", "--validate"), "moves nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do_instead(
    folder: Path, options: tuple[str, ...], word: str
) -> None:
    assert word in refusal("io", folder, *options, code=2)


@pytest.mark.parametrize("size", ["1000", "4K1", "2G", "0", "18446744073709551616"])
def test_a_block_size_is_refused_by_the_option_before_anything_is_planned(folder: Path, size: str) -> None:
    said = refusal("io", folder, "--block-size", size, code=2)
    assert said.startswith("headrace: --block-size")
    assert "in all" not in said


def test_dashes_and_underscores_are_the_same(folder: Path) -> None:
    one = bench_io(folder, "--io_size", "4M", "--block_size", "64K", "--queue_depth", "4", "--no-fio")
    other = bench_io(folder, "--io-size", "4M", "--block-size", "64K", "--queue-depth", "4", "--no-fio")
    assert one["results"][0]["settings"] == other["results"][0]["settings"]
    assert one["results"][0]["totals"]["blocks"] == 3 * 64


def test_bytes_are_exact_by_its_own_count_and_by_the_parents(folder: Path) -> None:
    """rusage counts what the block layer did for the child: not a figure of the program's own."""
    for direction, warm_ups in (("write", 1), ("read", 0)):
        process = start("io", folder, f"--{direction}", *QUICK, "--warmup-loops", str(warm_ups), "--json")
        out, err = process.stdout, process.stderr
        assert out is not None
        assert err is not None
        text = out.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, err.read()
        out.close()
        err.close()
        result = checked(json.loads(text))["results"][0]
        assert result["totals"]["bytes"] == 2 * 16 * MIB
        if result["totals"]["direct_bytes"] != result["totals"]["bytes"]:
            pytest.skip(f"no direct I/O in {folder}: {result['why_not_faster']}")
        assert [sample["device_bytes"] for sample in result["samples"]] == [16 * MIB] * 2
        moved = 512 * (usage.ru_oublock if direction == "write" else usage.ru_inblock)
        rounds = 2 + warm_ups
        assert rounds * 16 * MIB <= moved <= rounds * 16 * MIB + 16 * MIB  # and pages of the program itself


@pytest.mark.skipif(shutil.which("dd") is None, reason="dd is not installed")
def test_the_rate_is_of_the_order_that_dd_finds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        for piece in range(16):
            file.write(random_bytes(16 * MIB, piece))
        os.fsync(file.fileno())
    result = bench_io("--file", path, "--flush-page-cache", "--no-fio")["results"][0]
    assert result["totals"]["bytes"] == 3 * 256 * MIB
    dd = ["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct"]
    rates = []
    for _ in range(3):
        began = time.monotonic()
        if subprocess.run(dd, check=False, capture_output=True).returncode != 0:
            pytest.skip(f"no direct I/O in {tmp_path}")
        rates.append(256 * MIB / 1e9 / (time.monotonic() - began))
    # One block at a time is slower than many, and others use the disk as well.
    assert 0.3 < result["gb_per_s"]["max"] / sorted(rates)[1] < 30


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
@pytest.mark.parametrize("direction", ["read", "write"])
def test_fio_runs_beside_it_on_the_same_file(folder: Path, direction: str) -> None:
    result = bench_io(folder, f"--{direction}", "--io-size", "64M", "--fio")["results"][0]
    fio = result["fio"]
    assert fio["why_not"] is None
    assert len(fio["samples_gb_per_s"]) == 3
    assert f"--rw={direction}" in fio["command"]
    assert "--bs=1048576" in fio["command"]
    assert (
        0.05 < fio["headrace_by_it"]["median"] < 50
    )  # a busy disk: that the two measure the same is the point


def test_without_fio_it_says_how_to_get_it(folder: Path) -> None:
    environment = {**os.environ, "PATH": "/nonexistent"}
    done = run("bench", "io", folder, "--io-size", "4M", env=environment)
    assert done.returncode == 0, done.stderr
    assert "apt-get install fio" in done.stdout
    result = bench_io(folder, "--io-size", "4M", env=environment)["results"][0]
    assert "not installed" in result["fio"]["why_not"]
    assert run("bench", "io", folder, "--io-size", "4M", "--fio", env=environment).returncode == 1


def fake_fio(path: Path, body: str) -> dict[str, str]:
    """An environment in which fio is a script; it counts its runs in a file."""
    path.mkdir()
    script = path / "fio"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo fio-0 && exit\necho run >> {path}/runs\n{body}\n'
    )
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}


def test_a_fio_that_measured_no_time_is_told_so(folder: Path, tmp_path: Path) -> None:
    side = '"read": {"io_bytes": 4194304, "runtime": 0}'
    job = f'{{"error": 0, "usr_cpu": 0.0, "sys_cpu": 0.0, "job_runtime": 0, {side}}}'
    environment = fake_fio(tmp_path / "bin", f"echo '{{\"jobs\": [{job}]}}'")
    arguments = (folder, "--read", "--io-size", "4M", "--registered", "never")
    result = bench_io(*arguments, env=environment)["results"][0]
    assert "measured no time" in result["fio"]["why_not"]
    assert (tmp_path / "bin" / "runs").read_text() == "run\n"


def test_a_fio_that_did_not_end_by_itself_is_not_tried_again(folder: Path, tmp_path: Path) -> None:
    environment = fake_fio(tmp_path / "bin", "kill -KILL $$")
    result = bench_io(folder, "--read", "--io-size", "4M", env=environment)["results"][0]
    assert "ended by signal 9" in result["fio"]["why_not"]
    assert (tmp_path / "bin" / "runs").read_text() == "run\n"


def test_the_cpu_time_that_fio_could_not_count_is_unknown(folder: Path, tmp_path: Path) -> None:
    side = '"read": {"io_bytes": 4194304, "runtime": 3}'
    job = f'{{"error": 0, "usr_cpu": 0.0, "sys_cpu": 0.0, "job_runtime": 3, {side}}}'
    environment = fake_fio(tmp_path / "bin", f"echo '{{\"jobs\": [{job}]}}'")
    fio = bench_io(folder, "--read", "--io-size", "4M", env=environment)["results"][0]["fio"]
    assert fio["gb_per_s"]["count"] == 3
    assert fio["cpu_seconds_per_gb"] is None


def test_the_lines_of_ds_io_are_there_for_scripts(folder: Path) -> None:
    done = run("bench", "io", folder, "--read", "--ds-io-lines", *QUICK)
    lines = dict(
        re.findall(r"^((?:Task|E2E) Read (?:Latency|Speed)) = ([\d.e+-]+) ", done.stdout, re.MULTILINE)
    )
    assert set(lines) == {"Task Read Latency", "Task Read Speed", "E2E Read Latency", "E2E Read Speed"}
    bytes_moved = float(lines["Task Read Latency"]) * float(lines["Task Read Speed"]) * 2**30
    assert bytes_moved == pytest.approx(2 * 16 * MIB, rel=1e-6)


def test_both_directions_several_files_and_every_cut_of_requests(folder: Path) -> None:
    options = ("--read", "--write", "--multi_process", "2", "--validate", "--different_file_each_iteration")
    for cut in (
        (),
        ("--single_submit",),
        ("--sequential_requests",),
        ("--single_submit", "--sequential_requests"),
    ):
        results = bench_io(folder, *options, *cut, *QUICK)["results"]
        assert [result["direction"] for result in results] == ["write", "read"]
        for result in results:
            assert result["totals"]["bytes"] == 2 * 2 * 16 * MIB
            assert result["validated_bytes"] == 3 * 2 * 16 * MIB
            assert result["settings"]["request"] == ("block" if "--single_submit" in cut else "file")


def test_warm_ups_can_count(folder: Path) -> None:
    result = bench_io(folder, "--include_warmup_time", "--warmup_loops", "2", *QUICK)["results"][0]
    assert len(result["samples"]) == 4


def test_a_byte_that_changes_meanwhile_ends_a_validation_with_status_3(folder: Path) -> None:
    process = start("io", folder, "--read", "--validate", "--io-size", "64M", "--repeats", "1000", "--no-fio")
    path = wait_for_files(process)[0]
    end = time.monotonic() + 40
    with open(path, "r+b", buffering=0) as file:
        # A write of others beside a direct one fails that one: only once the file is filled to its end.
        while os.pread(file.fileno(), 8, 64 * MIB - 8) in (b"", bytes(8)) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        while process.poll() is None and time.monotonic() < end:
            os.pwrite(file.fileno(), b"\0\0\0\0", 12345)
            os.fdatasync(file.fileno())
            time.sleep(0.1)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 3, err
    assert "validate" in err
    assert re.search(r"offset 1234[5-8]\b", err), err


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.4, 1.0])
def test_ctrl_c_ends_it_soon_and_nothing_is_left(folder: Path, delay_s: float) -> None:
    process = start("io", folder, "--read", "--write", "--io-size", "128M", "--repeats", "1000")
    wait_for_files(process)
    time.sleep(delay_s)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT, err
    assert time.monotonic() - began < 3  # 0.2 s on an idle machine
    assert "interrupted" in err
    assert out == ""
    assert nameless_files(process.pid) == []


def test_a_killed_one_leaves_neither_files_nor_fio(folder: Path) -> None:
    process = start("io", folder, "--io-size", "64M", "--repeats", "1000")
    wait_for_files(process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + 20
    fio = []
    while shutil.which("fio") and not fio and time.monotonic() < end:
        fio = children.read_text().split()
    process.kill()
    process.communicate(timeout=20)
    end = time.monotonic() + 10
    while any(is_running(pid) for pid in fio) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in fio)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_more_than_the_disk_has_is_refused_with_what_is_free(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    said = refusal("io", folder, "--io-size", str(free), code=1)
    assert "ENOSPC" in said
    assert "are free" in said
    assert str(folder) in said


def test_an_existing_file_is_read_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(random_bytes(3 * MIB + 5))
    before = (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
    result = bench_io("--file", path, "--loops", "1", "--no-fio")["results"][0]
    assert result["existing_files"]
    assert result["direction"] == "read"
    assert result["totals"]["bytes"] == 3 * MIB + 5
    assert "only read" in refusal("io", "--file", path, "--write", code=2)
    assert "needs a folder" in refusal("io", "--file", path, "--validate", code=2)
    assert before == (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "word"),
    [("folder", "folder"), ("pipe", "pipe"), ("empty", "empty"), ("/dev/null", "character device")],
)
def test_what_is_no_file_is_not_measured(tmp_path: Path, name: str, word: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    assert word in refusal("io", "--file", tmp_path / name, code=2)


def test_missing_and_looping_paths_are_told_by_errno(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "ENOENT" in refusal("io", tmp_path / "nothing", code=1)
    assert "ELOOP" in refusal("io", tmp_path / "loop", code=1)
    assert "ELOOP" in refusal("io", "--file", tmp_path / "loop", code=1)


@contextlib.contextmanager
def loop_device(backing: Path) -> Iterator[str]:
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("loop devices need root and losetup")
    made = subprocess.run(
        ["losetup", "--find", "--show", str(backing)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def test_a_block_device_is_read_with_yes_and_never_written(tmp_path: Path) -> None:
    backing = tmp_path / "disk"
    content = random_bytes(8 * MIB)
    backing.write_bytes(content)
    with loop_device(backing) as device:
        said = refusal("io", "--file", device, code=2)
        assert "block device" in said
        assert "--yes" in said
        result = bench_io("--file", device, "--yes", "--loops", "1")["results"][0]
        assert result["totals"]["bytes"] == 8 * MIB
        assert "only read" in refusal("io", "--file", device, "--yes", "--write", code=2)
        assert "not a folder" in refusal("io", device, "--yes", code=2)
    assert backing.read_bytes() == content


def test_two_at_once_do_not_disturb_each_others_files(folder: Path) -> None:
    both = [start("io", folder, "--read", "--write", "--validate", *QUICK, "--json") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        checked(json.loads(out))


def test_a_folder_whose_name_is_no_utf8_is_measured(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(path)
    done = run("bench", "io", path, "--io-size", "4M", "--no-fio", "--json")
    assert done.returncode == 0, done.stderr
    checked(json.loads(done.stdout))
    assert r"\xff\xfe" in run("bench", "io", path, "--io-size", "4M", "--no-fio").stdout


def test_a_reader_that_leaves_ends_it_quietly(folder: Path) -> None:
    process = start("io", folder, *QUICK)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == -signal.SIGPIPE
    assert "Traceback" not in said


def test_in_memory_it_says_that_nothing_was_cold(tmp_path: Path) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm cannot be written")
    result = bench_io("/dev/shm", "--read", *QUICK)["results"][0]
    assert result["cold"] is False
    assert result["totals"]["direct_bytes"] == 0
    assert result["why_not_faster"]


def test_engines_stand_side_by_side(folder: Path) -> None:
    options = ("--io-size", "8M", "--repeats", "2", "--validate")
    result = run_json("bench", "engines", folder, *options)
    names = [(row["direction"], row["engine"]) for row in result["rows"]]
    engines = ("null", "posix", "aio", "uring")
    assert names == [(direction, engine) for direction in ("read", "write") for engine in engines]
    for row in result["rows"]:
        assert (row["result"] is None) != (row["error"] is None)
        if row["engine"] in ("posix", "null"):
            assert row["result"]["totals"]["bytes"] == 2 * 8 * MIB
    shown = run(
        "bench", "engines", folder, "--io-size", "4M", "--repeats", "1", "--read", "--engine", "posix,aio"
    )
    assert shown.returncode == 0, shown.stderr
    assert "posix" in shown.stdout
    assert "uring" not in shown.stdout


def saved(path: Path, result: dict[str, Any]) -> Path:
    path.write_text(json.dumps(result), encoding="utf-8")
    return path


def slower(result: dict[str, Any], factor: float) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(result))
    for one in changed["results"]:
        for key in ("median", "min", "max", "low", "high"):
            one["gb_per_s"][key] *= factor
    return changed


def test_the_engine_null_may_stand_alone(folder: Path) -> None:
    rows = run_json("bench", "engines", folder, "--engine", "null", "--read", "--io-size", "4M")["rows"]
    assert [row["engine"] for row in rows] == ["null"]


def test_an_engine_that_there_is_not_is_refused_with_the_nearest(folder: Path) -> None:
    said = refusal("engines", folder, "--engine", "aio,urnig", code=2)
    assert "did you mean 'uring'?" in said


def test_what_makes_no_sense_is_a_usage_error_in_json_too(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    result = run_json("bench", "io", "--file", empty, code=2)
    assert result["error"]["code"] == "usage"


def test_requests_in_batches_are_so_for_fio_too(folder: Path) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    arguments = (
        "--read",
        "--io-size",
        "64M",
        "--block-size",
        "16M",
        "--queue-depth",
        "64",
        "--io-parallel",
        "2",
    )
    fio = bench_io(folder, *arguments, "--sequential-requests", "--fio")["results"][0]["fio"]
    assert fio["gb_per_s"]["count"] == 3
    # What headrace's handles let through: 128 MiB in flight.
    assert {"--iodepth=4", "--iodepth_batch_submit=4", "--iodepth_batch_complete_min=4"} <= set(
        fio["command"]
    )


def test_results_compare_with_an_interval(tmp_path: Path) -> None:
    measured = bench_io(tmp_path, "--read", "--io-size", "4M", "--repeats", "7", "--no-fio")
    a = saved(tmp_path / "a.json", measured)
    same = run_json("bench", "compare", a, a)
    assert same["rows"][0]["ratio"] == 1
    assert same["rows"][0]["verdict"] == "no difference that is sure"
    b = saved(tmp_path / "b.json", slower(measured, 0.001))
    row = run_json("bench", "compare", a, b)["rows"][0]
    assert row["ratio"] == pytest.approx(0.001)
    assert row["low"] <= row["ratio"] <= row["high"]
    assert row["verdict"] == "slower"
    assert run("bench", "compare", a, b, "--fail-below", "0.9").returncode == 1
    assert run("bench", "compare", b, a, "--fail-below", "0.9").returncode == 0


def spread(result: dict[str, Any], low: float, median: float, high: float) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(result))
    for one in changed["results"]:
        one["gb_per_s"].update(min=low, low=low, median=median, high=high, max=high)
    return changed


def test_noise_fails_nothing_and_a_lost_row_does(tmp_path: Path) -> None:
    measured = bench_io(tmp_path, "--read", "--write", "--io-size", "4M", "--repeats", "6", "--no-fio")
    a = saved(tmp_path / "a.json", spread(measured, 0.9, 1, 1.1))
    compare = ("bench", "compare", a)
    b = saved(tmp_path / "b.json", spread(measured, 0.7, 0.8, 1.2))
    assert run(*compare, b, "--fail-below", "0.95").returncode == 0
    b = saved(tmp_path / "b.json", spread(measured, 0.7, 0.75, 0.8))
    assert run(*compare, b, "--fail-below", "0.95").returncode == 1
    assert run(*compare, b, "--fail-below", "0.8").returncode == 0
    lost = json.loads(a.read_text())
    lost["results"] = [one for one in lost["results"] if one["direction"] == "read"]
    b = saved(tmp_path / "b.json", lost)
    done = run(*compare, b, "--fail-below", "0.95")
    assert done.returncode == 1
    assert "write is not in the second" in done.stderr
    assert run(*compare, b).returncode == 0
    assert run("bench", "compare", b, a, "--fail-below", "0.95").returncode == 0


def test_too_few_repeats_are_told_and_fail_nothing(tmp_path: Path) -> None:
    measured = bench_io(tmp_path, "--io-size", "4M", "--no-fio")
    a = saved(tmp_path / "a.json", measured)
    b = saved(tmp_path / "b.json", slower(measured, 0.1))
    done = run("bench", "compare", a, b, "--fail-below", "0.95")
    assert done.returncode == 0
    assert "too few repeats to be judged" in done.stderr


@pytest.mark.parametrize("ratio", ["nan", "inf", "-1", "0", "1e999", "x", "0.9x"])
def test_a_ratio_that_is_none_is_refused(ratio: str) -> None:
    assert "is no ratio" in refusal("compare", "a", "b", f"--fail-below={ratio}", code=2)


@pytest.mark.parametrize("rate", [0, 5e-324, 1e308])
def test_what_is_no_rate_is_refused(tmp_path: Path, rate: float) -> None:
    measured = bench_io(tmp_path, "--io-size", "4M", "--no-fio")
    a = saved(tmp_path / "a.json", measured)
    b = saved(tmp_path / "b.json", spread(measured, rate, 1, 1))
    assert "is no rate" in refusal("compare", a, b, code=1)
    tiny, huge = spread(measured, 1e-9, 1e-9, 1e-9), spread(measured, 1e9, 1e9, 1e9)
    a, b = saved(tmp_path / "a.json", tiny), saved(tmp_path / "b.json", huge)
    assert "1e+18" in run("bench", "compare", a, b).stdout


def test_other_settings_and_machines_are_not_compared_silently(tmp_path: Path) -> None:
    measured = bench_io(tmp_path, "--io-size", "4M", "--no-fio")
    other: dict[str, Any] = json.loads(json.dumps(measured))
    other["results"][0]["machine"]["kernel"] = "2.6.32"
    other["results"][0]["settings"]["queue_depth"] = 7
    a, b = saved(tmp_path / "a.json", measured), saved(tmp_path / "b.json", other)
    said = refusal("compare", a, b, code=1)
    assert "machine.kernel" in said
    assert "settings.queue_depth: 32 and 7" in said
    anyway = run_json("bench", "compare", a, b, "--anyway")
    assert len(anyway["differences"]) == 2
    assert anyway["rows"][0]["verdict"] == "too few repeats to say"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema": "headrace.bench-io", "version": 1, "results": [{}]}', "null", '"x"'],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert "is no result" in refusal("compare", path, path, code=1) or "JSON" in refusal(
        "compare", path, path, code=1
    )
    assert "ENOENT" in refusal("compare", tmp_path / "nothing", path, code=1)


@pytest.mark.parametrize(
    "start",
    [
        '{"schema": "headrace.bench-io", "version": 1, "results": [{"direction": "read", "x": ',
        '{"schema": "headrace.bench-io", "results": [{"direction": "read"}], "version": ',
        '{"schema": ',
    ],
)
def test_a_file_of_a_hundred_thousand_brackets_is_refused(tmp_path: Path, start: str) -> None:
    path = tmp_path / "deep.json"
    path.write_text(start + "[" * 100_000)
    assert "deeper than 64 levels" in refusal("compare", path, path, code=1)
    path.write_text(start + "[" * 100_000 + "]" * 100_000 + "}")
    assert "deeper than 64 levels" in refusal("compare", path, path, code=1)


def test_a_result_that_is_not_there_is_told_by_errno(tmp_path: Path) -> None:
    done = run("bench", "compare", tmp_path / "nope.json", tmp_path / "nope.json", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["path"], error["errno"]) == (
        "system",
        str(tmp_path / "nope.json"),
        "ENOENT",
    )


def test_checkpoint_goes_to_python() -> None:
    done = run("bench", "checkpoint", "--help")
    if done.returncode != 0:
        assert "pip install headrace" in done.stderr or "torch" in done.stderr
    else:
        assert "tensor" in done.stdout
