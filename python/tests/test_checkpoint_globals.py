# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace.load: which names in a pickle are admitted, and that nothing of it is run."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, only
from headrace import _torch_unpickle
from support import run_script

FORMATS = ["torch", "torch-legacy"]


def test_safe_globals_of_the_user_are_admitted(tmp_path: Path) -> None:
    import datetime

    headrace.save({"when": datetime.timedelta(3), "a": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(Exception, match=r"datetime\.timedelta.*add_safe_globals"):
        headrace.load(tmp_path / "a.pt")
    with torch.serialization.safe_globals([datetime.timedelta]):
        assert_same({"when": datetime.timedelta(3), "a": torch.ones(2)}, headrace.load(tmp_path / "a.pt"))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_element_types_younger_than_headrace_or_than_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class File:
        name = "a.pt"

        @staticmethod
        def globals(known: bool) -> list[str]:
            return ["torch.float99"]

    file: Any = File()
    with pytest.raises(pickle.UnpicklingError, match=r"needs torch\.float99, which weights_only=True"):
        _torch_unpickle.refuse_unsafe(file)
    monkeypatch.setattr(torch, "float99", torch.ones, raising=False)
    with pytest.raises(pickle.UnpicklingError, match=r"torch\.float99"):
        _torch_unpickle.refuse_unsafe(file)
    monkeypatch.setattr(torch, "float99", torch.float32, raising=False)
    _torch_unpickle.refuse_unsafe(file)
    # As torch 2.14 writes it; an older torch has no such type.
    headrace.save({"a": torch.zeros(4, dtype=torch.complex32)}, tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    if hasattr(torch, "bcomplex32"):
        return
    known, renamed = b"ctorch\ncomplex32\n", b"ctorch\nbcomplex32\n"
    assert whole.count(known) == 1
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for one in old.infolist():
            new.writestr(one.filename, old.read(one).replace(known, renamed))
    with pytest.raises(ValueError, match=r"has no torch\.bcomplex32, which the file needs; a newer torch"):
        headrace.load(tmp_path / "b.pt")
    with headrace.open(tmp_path / "b.pt") as opened:
        assert list(opened.keys()) == ["a"]


def test_the_environment_can_insist_on_weights_only(tmp_path: Path) -> None:
    done = run_script(
        """
        import os, sys
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
        import pickle, torch, headrace
        class Evil:
            def __reduce__(self):
                return os.system, ("echo it ran",)
        torch.save({"e": Evil()}, sys.argv[1])
        for load in (torch.load, headrace.load):
            try:
                load(sys.argv[1], weights_only=False)
            except pickle.UnpicklingError:
                print("refused")
        """,
        str(tmp_path / "a.pt"),
    )
    assert done.stdout.split("\n")[:-1] == ["refused", "refused"], done


def test_weights_only_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    for container in FORMATS:
        headrace.save({"a": torch.ones(2), "b": Evil()}, tmp_path / "a.pt", format=container)  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"posix.mkdir"):
            headrace.load(tmp_path / "a.pt")
        with headrace.open(tmp_path / "a.pt") as opened:
            assert opened["a"].load().tolist() == [1, 1]
        only(tmp_path, "a.pt")


@pytest.mark.parametrize("format", FORMATS)
def test_without_weights_only_any_pickle_loads_that_torch_loads(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a.pt"
    zipped = format == "torch"
    in_itself: list[Any] = []
    in_itself.append((in_itself,))
    for obj, protocol in (({"w": torch.ones(2)}, 4), ({"n": 2**2040}, 2), ({"t": in_itself[0]}, 2)):
        torch.save(obj, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
        with pytest.raises(
            headrace.FormatError, match="is not read: torch's weights_only accepts protocol 2"
        ):
            headrace.load(path)
        with pytest.raises(headrace.FormatError, match="is not read"):
            headrace.load(path, weights_only=False, verify="require")
        found = headrace.load(path, weights_only=False)
        if "t" in obj:
            assert found["t"][0][0] is found["t"]
        else:
            assert_same(obj, found)
    cut = path.read_bytes()
    path.write_bytes(cut[: len(cut) // 2])
    with pytest.raises(headrace.FormatError):
        headrace.load(path, weights_only=False)
