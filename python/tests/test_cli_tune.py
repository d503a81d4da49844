# SPDX-License-Identifier: Apache-2.0
"""headrace tune: what it finds can be used by whom it is for, and it keeps within its bounds."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import headrace
import pytest
from cli_support import checked, program, run, run_json
from headrace import deepnvme
from page_support import open_page

MIB = 1 << 20
SWEEP = {
    "engine": ["posix", "aio"],
    "block_size": ["256K", 1048576],
    "queue_depth": [4, 16],
    "io_parallel": [1],
}
OPTIONS = (
    "--nvme_dir",
    "--sweep_config",
    "--no_read",
    "--no_write",
    "--io_size",
    "--gpu",
    "--gds",
    "--flush_page_cache",
    "--log_dir",
    "--loops",
    "--verbose",
)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(SWEEP))
    return path


def quick(folder: Path, sweep: Path) -> tuple[str, ...]:
    return (str(folder), "--sweep-config", str(sweep), "--io-size", "2M", "--no-fio")


def tuned(*arguments: str) -> dict[str, Any]:
    return run_json("tune", *arguments)


def refusal(*arguments: str, code: int = 2) -> str:
    done = run("tune", *arguments)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    return done.stderr


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, Path]:
    """One run for many tests: the result, and where it was saved as JSON and as a page."""
    place = tmp_path_factory.mktemp("tune")
    sweep = place / "sweep.json"
    sweep.write_text(json.dumps(SWEEP))
    scratch = place / "scratch"
    scratch.mkdir()
    saved, page = place / "tune.json", place / "tune.html"
    shown = tuned(*quick(scratch, sweep), "--output", str(saved), "--html", str(page))
    assert list(scratch.iterdir()) == []
    assert json.loads(saved.read_text(encoding="utf-8")) == shown
    return shown, saved, page


def test_every_option_of_ds_nvme_tune_has_an_answer() -> None:
    shown = run("tune", "--help").stdout
    for option in OPTIONS:
        assert re.search(rf"{option}\b", shown), option


def test_all_combinations_are_measured_and_told(results: tuple[dict[str, Any], Path, Path]) -> None:
    result = results[0]
    named = [p for p in result["points"] if not p["is_default"] and not extras(p["settings"])]
    assert len(named) >= 8
    for point in result["points"]:
        for direction in ("read", "write"):
            track = point[direction]
            if track is None:
                continue
            assert track["error"] is None
            assert all(r["gb_per_s"] and min(r["gb_per_s"]) > 0 for r in track["rounds"])
    last = [p for p in result["points"] if p["read"] and p["read"]["dropped_after"] is None]
    assert result["read"]["point"] in {p["index"] for p in last}
    assert result["read"]["gb_per_s"]["count"] == 5


def extras(settings: dict[str, Any]) -> bool:
    return bool(
        settings["sequential_requests"] or settings["single_submit"] or settings["registered"] != "auto"
    )


@pytest.mark.parametrize("use", ["read", "write", "both"])
def test_a_handle_takes_its_settings(results: tuple[dict[str, Any], Path, Path], use: str) -> None:
    settings = results[0][use]["handle"]
    with headrace.Handle(**settings) as handle:
        facts = handle.facts()
    assert facts["engine"] == settings["engine"]
    for name in ("workers", "block_bytes", "queue_depth"):
        assert facts[name] == settings[name]


@pytest.mark.parametrize("use", ["read", "write", "both"])
def test_deepnvme_takes_its_settings_by_name_and_in_order(
    results: tuple[dict[str, Any], Path, Path], use: str
) -> None:
    settings = results[0][use]["deepnvme"]
    assert list(settings) == list(inspect.signature(deepnvme.aio_handle).parameters)
    for handle in (deepnvme.aio_handle(**settings), deepnvme.aio_handle(*settings.values())):
        assert handle.get_block_size() == settings["block_size"]
        assert handle.get_queue_depth() == settings["queue_depth"]
        assert handle.get_single_submit() is settings["single_submit"]
        assert handle.get_overlap_events() is settings["overlap_events"]
        assert handle.get_intra_op_parallelism() == settings["intra_op_parallelism"]


@pytest.mark.parametrize("use", ["read", "write", "both"])
def test_deepspeeds_configuration_reader_takes_the_aio_section(
    results: tuple[dict[str, Any], Path, Path], use: str
) -> None:
    section = results[0][use]["aio"]
    types = {name: type(value) for name, value in section.items()}
    # The keys that it reads, with their types; what else a section holds it ignores without a word.
    assert types == {
        "block_size": int,
        "queue_depth": int,
        "intra_op_parallelism": int,
        "single_submit": bool,
        "overlap_events": bool,
        "use_gds": bool,
    }
    try:
        from deepspeed.runtime.swap_tensor.aio_config import get_aio_config
    except ImportError:
        return
    assert {k: v for k, v in get_aio_config({"aio": section}).items() if k in section} == section


def test_a_profile_is_taken_by_a_handle_and_arguments_win(
    results: tuple[dict[str, Any], Path, Path],
) -> None:
    result, saved, _ = results
    for use in ("read", "write", "both"):
        with headrace.Handle(profile=saved, profile_for=use) as handle:  # type: ignore[arg-type]
            assert handle.facts()["engine"] == result[use]["handle"]["engine"]
            assert handle.facts()["queue_depth"] == result[use]["handle"]["queue_depth"]
    with headrace.Handle(profile=str(saved), engine="posix", workers=3, block_bytes=8 * MIB) as handle:
        facts = handle.facts()
        assert (facts["engine"], facts["workers"], facts["block_bytes"]) == ("posix", 3, 8 * MIB)
        assert facts["queue_depth"] == result["both"]["handle"]["queue_depth"]


def test_a_profile_that_is_none_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        headrace.Handle(profile=tmp_path / "nowhere.json")
    path = tmp_path / "other.json"
    path.write_text('{"schema": "headrace.report", "version": 1}')
    with pytest.raises(headrace.FormatError, match=r"headrace\.tune"):
        headrace.Handle(profile=path)
    path.write_text('{"schema": "headrace.tune", "version": 1, "both": null, "read": {}}')
    with pytest.raises(headrace.UnavailableError, match='"read"'):
        headrace.Handle(profile=path)
    with pytest.raises(ValueError, match="profile_for"):
        headrace.Handle(profile=path, profile_for="reading")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="profile_for"):
        headrace.Handle(profile_for="read")
    with pytest.raises(TypeError):
        headrace.Handle(profile=7)  # type: ignore[arg-type]


def test_one_direction_alone_works(folder: Path, sweep: Path) -> None:
    reads = tuned(*quick(folder, sweep), "--no_write")
    assert reads["write"] is None
    assert reads["both"] is None
    assert reads["written_bytes"] == 2 * MIB  # what is read has to be there
    writes = tuned(*quick(folder, sweep), "--no_read")
    assert writes["read"] is None
    assert writes["read_bytes"] == 0


def test_what_is_written_is_bounded_and_told_before(folder: Path, sweep: Path) -> None:
    done = run("tune", *quick(folder, sweep), "--max-written", "800M", "--json")
    result = json.loads(done.stdout)
    assert 0 < result["written_bytes"] <= 800 * MIB
    assert "writes at most 839 MB" in done.stderr.splitlines()[0]
    assert "takes" in refusal(*quick(folder, sweep), "--max-written", "1M")


def test_it_ends_with_its_two_result_lines(folder: Path, sweep: Path) -> None:
    lines = run("tune", *quick(folder, sweep)).stdout.splitlines()
    assert re.fullmatch(
        r"Best read: \d+\.\d\d GB/s \(\d+\.\d\d to \d+\.\d\d, not sure\).*: (uring|aio|posix), .* blocks, "
        r"depth \d+, .*",
        lines[-2],
    )
    assert re.fullmatch(
        r"Best write: \d+\.\d\d GB/s.*: (uring|aio|posix), .* blocks, depth \d+, .*", lines[-1]
    )


def test_folders_go_by_both_names_and_several_are_tuned_at_once(tmp_path: Path, sweep: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    result = tuned(
        "--nvme_dir",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "--sweep_config",
        str(sweep),
        "--io_size",
        "1M",
        "--no_write",
        "--no-fio",
    )
    assert [place["path"] for place in result["places"]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert result["points"][0]["read"]["rounds"][0]["bytes"] == 2 * MIB


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"blok_size": [1]}', "did you mean 'block_size'"),
        ('{"block_size": 1048576}', "list"),
        ('{"block_size": []}', "list"),
        ('{"block_size": ["1Q"]}', "no size"),
        ('{"block_size": [5000]}', "multiples of 4096"),
        ('{"queue_depth": [1.5]}', "whole number"),
        ('{"queue_depth": [-1]}', "whole number"),
        ('{"queue_depth": [4294967296]}', "whole number from 0 to 4294967295"),
        ('{"io_parallel": [100]}', "1 to 64"),
        ('{"single_submit": ["false"]}', "neither true nor false"),
        ('{"engine": ["urnig"]}', "none of"),
        ("[]", "no JSON object"),
        ("{", "not JSON"),
        ('{"block_size": ' + "[" * 100_000 + "]" * 100_000 + "}", "deeper than 64 levels"),
        ('{"block_size": [4096], "block_size": [8192]}', "twice"),
    ],
)
def test_a_sweep_file_that_makes_no_sense_is_refused(
    folder: Path, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert said in refusal(str(folder), "--sweep_config", str(path))


def test_more_combinations_than_can_be_measured_are_refused_before_they_are_built(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.json"
    sizes = [4096 * i for i in range(1, 1025)]
    sweep = {"block_size": sizes, "queue_depth": list(range(1, 1025)), "io_parallel": list(range(1, 65))}
    path.write_text(json.dumps(sweep))
    began = time.monotonic()
    assert "combinations of settings; allowed: 1024" in refusal(str(folder), "--sweep-config", str(path))
    assert time.monotonic() - began < 5  # 0.1 s on an idle machine; 200 million would take a minute
    path.write_text(json.dumps({"queue_depth": [1] * 1025}))
    assert "1025 queue depths; allowed: 1024" in refusal(str(folder), "--sweep-config", str(path))


def test_what_makes_no_sense_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "GPU support is not there" in refusal(str(folder), "--gpu")
    assert "GPU support is not there" in refusal(str(folder), "--gds")
    assert "nothing to do" in refusal(str(folder), "--no-read", "--no-write")
    assert "name a folder" in refusal()
    assert "did you mean '--loops'" in refusal(str(folder), "--lops", "3")
    assert "no folder" in refusal(str(folder), "--output", str(tmp_path / "none" / "x.json"))
    said = refusal(str(tmp_path / "none"), code=1)
    assert "ENOENT" in said
    assert "combinations" not in said  # nothing is planned where nothing can be done
    said = refusal(str(folder), "--io-size", "100T", code=1)
    assert "ENOSPC" in said
    assert "combinations" not in said


def test_bytes_that_do_not_fill_what_is_read_are_refused(folder: Path) -> None:
    said = refusal(str(folder), "--no-write", "--max-written", "20K")
    assert "the files that are read take 8388608; allow more" in said
    done = run("tune", str(folder), "--no-write", "--max-written", "20K", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "usage"


def test_a_fio_that_was_asked_for_and_fails_fails_the_command(folder: Path, tmp_path: Path) -> None:
    fio = tmp_path / "fio"
    fio.write_text('#!/bin/sh\n[ "$1" = --version ] && echo fio-0 && exit\nexit 3\n')
    fio.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run("tune", str(folder), "--fio", "--io-size", "1M", "--no-write", env=environment)
    assert done.returncode == 1
    assert "--fio was asked for, and fio did not run" in done.stderr


def test_where_results_go_is_tried_before_anything_is_measured(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for options, word in (
        (("--log-dir", str(file)), "ENOTDIR"),
        (("--log-dir", "/proc/x"), "ENOENT"),
        (("--html", "/proc/x"), "E(NOENT|ACCES|OPNOTSUPP|PERM)"),
        (("-o", "/dev/null"), "'/dev/null'"),
    ):
        said = refusal(str(folder), *options, code=1)
        assert re.search(word, said), said
        assert "combinations" not in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "scratch"]
    assert refusal(str(tmp_path / "none"), "-o", str(tmp_path / "x"), "--log-dir", str(tmp_path), code=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "scratch"]


def test_one_file_for_two_results_is_refused_by_whatever_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    for other in ("x", "./x", "link", f"../{tmp_path.name}/x"):
        done = run("tune", str(folder), "-o", "x", "--html", other, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "name the same file" in done.stderr


def test_points_that_cannot_be_measured_are_told_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    # Registered memory is io_uring's alone.
    path.write_text(json.dumps({**SWEEP, "registered": ["auto", "required"]}))
    result = tuned(*quick(folder, path), "--no-write")
    failed = [p for p in result["points"] if p["read"] and p["read"]["error"]]
    assert failed
    assert all(p["settings"]["registered"] == "required" for p in failed)
    assert result["read"]["gb_per_s"]["median"] > 0


def test_logs_of_runs_are_not_mixed(folder: Path, sweep: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for _ in range(2):
        assert run("tune", *quick(folder, sweep), "--no-write", "--log_dir", str(logs)).returncode == 0
    runs = sorted(logs.iterdir())
    assert len(runs) == 2
    for one in runs:
        files = list((one / "read").iterdir())
        assert len(files) >= 8
        assert all(json.loads(f.read_text())["read"]["rounds"] for f in files)


def test_interrupted_it_tells_what_is_known_and_leaves_nothing(folder: Path) -> None:
    process = subprocess.Popen(
        [program(), "tune", str(folder), "--no-fio", "--max-written", "60GB", "--max-read", "60GB", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    result = json.loads(out)
    assert result.get("interrupted", False) or result["error"]["code"] == "interrupted"
    assert "interrupted" in err


@pytest.mark.parametrize("form", ["text", "json"])
def test_interrupted_it_replaces_no_profile_and_says_that_nothing_is_confirmed(
    folder: Path, tmp_path: Path, form: str
) -> None:
    kept, page = tmp_path / "keep.json", tmp_path / "page.html"
    kept.write_text("good")
    options = ["--no-write", "--no-fio", "-o", str(kept), "--html", str(page)]
    process = subprocess.Popen(
        [program(), "tune", str(folder), *options, *(["--json"] if form == "json" else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    io = Path(f"/proc/{process.pid}/io")
    while int(re.findall(r"^read_bytes: (\d+)", io.read_text(), re.MULTILINE)[0]) < 500 * MIB:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert kept.read_text() == "good"
    assert not page.exists()
    assert f"nothing was written to '{kept}'" in err
    if form == "json":
        assert checked(json.loads(out))["interrupted"]
    else:
        assert re.search(r"^Best read so far: .* unconfirmed, ", out, re.MULTILINE)
        assert "one sample" not in out or "of the defaults" not in out
        assert "DeepSpeed" not in out
        assert "Handle(" not in out


def test_the_page_draws_a_mark_for_each_point_and_has_no_console_error(
    results: tuple[dict[str, Any], Path, Path], tmp_path: Path
) -> None:
    result, _, page = results
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    dom, console = open_page(page, tmp_path / "browser")
    assert console == []
    for direction in ("read", "write"):
        count = sum(1 for p in result["points"] if p[direction] and p[direction]["gb_per_s"] is not None)
        for chart in ("block", "depth", "cost"):
            marks = dom.having(data_chart=chart, data_direction=direction, role="img")
            assert len(marks) == count
            assert all(mark["aria-label"] for mark in marks)
            # The Tab key stops once at each chart.
            assert sum(mark["tabindex"] == "0" for mark in marks) == 1
    rows = sum(1 for tag, _ in dom.tags if tag == "tr")
    assert rows == len(result["points"]) + 1
    charts = [a for tag, a in dom.tags if tag == "svg" and a.get("role") == "group"]
    assert len(charts) == 6
    ids = {a["id"] for _, a in dom.tags if "id" in a}
    assert all(set(chart["aria-labelledby"].split()) <= ids for chart in charts)
    assert "headrace.Handle(" in dom.text
    assert '"aio": {' in dom.text


def test_the_page_fits_a_phone(results: tuple[dict[str, Any], Path, Path], tmp_path: Path) -> None:
    # Measured by the page itself in a frame as wide as a phone: a browser's window may not be so narrow.
    frame = tmp_path / "frame.html"
    inner = results[2].read_text(encoding="utf-8")
    inner = inner.replace(
        "</body>",
        "<script>addEventListener('load', () => parent.postMessage("
        "document.documentElement.scrollWidth, '*'))</script></body>",
    )
    (tmp_path / "inner.html").write_text(inner, encoding="utf-8")
    frame.write_text(
        "<!doctype html><title>frame</title><script>addEventListener('message',"
        " (event) => { document.title = `wide ${event.data}`; })</script>"
        "<iframe src='inner.html' width='360' height='800' style='border:0'></iframe>",
        encoding="utf-8",
    )
    dom, console = open_page(frame, tmp_path / "browser", "--hide-scrollbars")
    assert console == []
    assert "wide 360" in dom.text


def test_names_of_the_machine_cannot_break_the_page(tmp_path: Path, sweep: Path) -> None:
    scratch = tmp_path / "</script><img src=x onerror=alert(1)>"
    scratch.mkdir(parents=True)
    page = tmp_path / "tune.html"
    done = run("tune", *quick(scratch, sweep), "--no-write", "--html", str(page))
    assert done.returncode == 0, done.stderr
    dom, console = open_page(page, tmp_path / "browser")
    assert console == []
    assert "</script><img src=x onerror=alert(1)>" in dom.text
    assert not [1 for tag, _ in dom.tags if tag == "img"]
