# SPDX-License-Identifier: Apache-2.0
"""The Python in README.md and docs/ runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

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
