# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and its like end a command in order; on a terminal it shows how far it is, elsewhere it is quiet."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from cli_support import (
    Terminal,
    names,
    on_terminal,
    program,
    run,
    safetensors_file,
    sparse_safetensors,
    validator,
)
from support import wait_until

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
HOW_FAR = re.compile(r"\(\d\S* \S?B of \d\S* [GM]B were done, in [\d.]+ s\)")


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Half a minute's counting, and no byte on the disk."""
    return sparse_safetensors(tmp_path / "long.safetensors", mebibytes=20 << 10)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return sparse_safetensors(tmp_path / "model.safetensors", mebibytes=2 << 10)


@pytest.mark.parametrize("stop", STOPS)
def test_a_signal_ends_verify_at_once_and_it_says_how_far_it_was(long: Path, stop: signal.Signals) -> None:
    with Terminal("verify", long, "--stats") as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(stop)
        assert terminal.finish() == -stop
    said = terminal.seen.rpartition("\x1b[K")[2]
    assert said.startswith(f"headrace: read of '{long}': it was stopped")
    assert HOW_FAR.search(said)


def test_an_element_that_was_expanded_for_ever_can_be_stopped(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    torch.save(torch.zeros(1).expand(2**48), path)
    with Terminal("verify", path, "--against", path) as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == -signal.SIGINT
    assert "it was stopped" in terminal.seen


def test_ctrl_c_on_the_terminal_is_that_signal(long: Path) -> None:
    # A shell in between, as at home: the key's signal goes to the foreground of the terminal.
    with Terminal(
        command=["bash", "-c", f"'{program()}' verify '{long}' --against '{long}'; echo not here"]
    ) as shell:
        shell.read_until("GB/s")
        os.killpg(shell.process.pid, signal.SIGINT)
        assert shell.finish() == -signal.SIGINT  # bash ends by it too, because the program did
    assert "it was stopped" in shell.seen
    assert "not here" not in shell.seen


def test_a_stopped_command_with_json_tells_an_error_object(long: Path) -> None:
    with Terminal("verify", long, "--stats", "--json", stdout=subprocess.PIPE) as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == -signal.SIGINT
        assert terminal.process.stdout is not None
        result = json.loads(terminal.process.stdout.read())
    assert (result["schema"], result["error"]["code"]) == ("headrace.error", "interrupted")
    assert HOW_FAR.search(result["error"]["message"])
    rules = validator("error")
    if rules is not None:
        rules.validate(result)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Long enough for the progress to be shown."""
    return sparse_safetensors(tmp_path / "short.safetensors", mebibytes=3 << 10)


CONVERSIONS = {
    "torch": ["out.pt"],
    "legacy": ["out.pt", "--format", "torch-legacy"],
    "safetensors": ["out.safetensors"],
    "half": ["out.safetensors", "--dtype", "float16"],
    "shards": ["out", "--shard-size", "300M"],
}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_stopped_conversion_leaves_nothing_behind(
    model: Path, tmp_path: Path, kind: str, stop: signal.Signals
) -> None:
    with Terminal("convert", model, *CONVERSIONS[kind], cwd=tmp_path) as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(stop)
        assert terminal.finish() == -stop
    assert names(tmp_path) == [model.name]
    assert HOW_FAR.search(terminal.seen)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_the_old_file_stays_when_its_replacement_is_stopped(
    model: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    old = safetensors_file(tmp_path / "out.safetensors", {"w": ("U8", [4], b"abcd")})
    before = old.read_bytes(), old.stat().st_ino
    with Terminal("convert", model, old, "--overwrite") as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(stop)
        assert terminal.finish() == -stop
    assert (old.read_bytes(), old.stat().st_ino) == before
    left = [name for name in names(tmp_path) if name.startswith(".headrace-")]
    assert len(left) == (1 if stop == signal.SIGKILL else 0)


def test_the_source_as_target_stays_when_it_is_stopped(model: Path) -> None:
    before = model.stat()
    with Terminal("convert", model, model, "--overwrite", "--dtype", "float64") as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.finish() == -signal.SIGTERM
    after = model.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )


def test_what_was_ignored_stays_ignored(model: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", program(), "convert", model, tmp_path / "out.pt"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: any(name.startswith(".headrace-") for name in names(tmp_path)))
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 0
    assert names(tmp_path) == [model.name, "out.pt"]


def test_a_second_signal_ends_it_whatever_it_waits_for(long: Path) -> None:
    with Terminal("verify", long, "--stats") as terminal:
        terminal.read_until("% [")
        terminal.process.send_signal(signal.SIGSTOP)  # so that both are pending when it goes on
        terminal.process.send_signal(signal.SIGINT)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.process.send_signal(signal.SIGCONT)
        assert terminal.finish() in (-signal.SIGINT, -signal.SIGTERM)


@pytest.mark.parametrize("columns", [1, 2, 8, 20, 40, 80, 300])
def test_the_progress_line_never_wraps_and_goes_away(short: Path, columns: int) -> None:
    code, seen = on_terminal("verify", short, "--stats", columns=columns)
    assert code == 0
    progress, _, result = seen.rpartition("\r\x1b[K")
    assert f"{short}: good" in result
    shown = [line.removesuffix("\x1b[K") for line in progress.split("\r") if line]
    assert shown
    assert max(map(len, shown)) < max(columns, 2)
    assert "\n" not in progress


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_take_a_line_back_gets_none(short: Path, variables: dict[str, str]) -> None:
    code, seen = on_terminal("verify", short, "--stats", **variables)
    assert code == 0
    assert "\x1b" not in seen
    assert "\r" not in seen
    assert f"{short}: good" in seen


def test_without_a_terminal_it_is_quiet(short: Path) -> None:
    ended = run("verify", short, "--stats")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("\n") == 9 + 2


def test_no_color_takes_the_style_and_leaves_the_progress(short: Path) -> None:
    assert "\x1b[1m" in on_terminal("inspect", short)[1]
    assert "\x1b" not in on_terminal("inspect", short, NO_COLOR="1")[1]
    assert "\x1b[1m" in on_terminal("inspect", short, NO_COLOR="")[1]
    assert "\x1b[K" in on_terminal("verify", short, "--stats", NO_COLOR="1")[1]
