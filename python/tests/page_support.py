# SPDX-License-Identifier: Apache-2.0
"""A page in a headless Chromium: its DOM when it has drawn itself, and what it said on the console."""

from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def browser() -> str:
    """The path of one, or the test is skipped."""
    named = os.environ.get("HEADRACE_CHROMIUM")
    for name in (named,) if named else _NAMES:
        if name and (found := shutil.which(name)):
            return found
    pytest.skip("no Chromium (Debian: apt-get install chromium-headless-shell)")


class Dom(HTMLParser):
    """Start tags with their attributes, and the text of all."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data

    def having(self, **wanted: str) -> list[dict[str, str]]:
        """Attributes of the elements with these; '_' stands for '-'."""
        names = {name.replace("_", "-"): value for name, value in wanted.items()}
        return [a for _, a in self.tags if all(a.get(name) == value for name, value in names.items())]


def open_page(page: Path, profile: Path, *options: str, size: str = "1280,1000") -> tuple[Dom, list[str]]:
    """The DOM and the lines of the console."""
    done = subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            f"--window-size={size}",
            "--virtual-time-budget=5000",
            "--enable-logging=stderr",
            *options,
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Dom(done.stdout), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
