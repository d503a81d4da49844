# SPDX-License-Identifier: Apache-2.0
"""The Python in README.md and docs/ runs as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import cli_support
import pytest

TREE = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {"README.md": ["numpy"], "docs/checkpoints.md": ["torch"], "docs/fastpersist.md": ["torch"]}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in PAGES[page]:
        pytest.importorskip(module)
    blocks = BLOCK.findall((TREE / page).read_text(encoding="utf-8"))
    assert blocks
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "__docs__"})


def test_the_reference_of_the_program_is_what_it_says() -> None:
    command = [sys.executable, TREE / "tools" / "make_cli_reference.py", cli_support.program(), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def make_checkpoints(folder: Path) -> None:
    """What the pages about checkpoints name."""
    torch = pytest.importorskip("torch")
    import headrace

    state = {
        f"encoder.{i}.{part}": torch.randn(size, generator=torch.Generator().manual_seed(i))
        for i in range(8)
        for part, size in (("weight", (300, 300)), ("bias", (300,)))
    }
    headrace.save(state, folder / "model.safetensors")
    torch.save(state, folder / "pytorch_model.bin")
    torch.save({"model": state, "step": 5}, folder / "train.pt")
    done = cli_support.run("convert", folder / "model.safetensors", folder / "shards", "--shard-size", "1MB")
    assert done.returncode == 0, done.stderr
    import torch.distributed.checkpoint as dcp

    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)


@pytest.mark.parametrize("page", ["inspect", "verify", "convert"])
def test_the_commands_of_a_page_do_what_they_say(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (TREE / "docs" / "cli" / f"{page}.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ headrace (.*)$", text, re.MULTILINE)
    assert len(commands) >= 5
    make_checkpoints(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        done = cli_support.run(*shlex.split(command))
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert done.stdout
