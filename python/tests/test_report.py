# SPDX-License-Identifier: Apache-2.0
"""headrace.report: its schema, its verdicts, and what Python adds to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace._python_facts import python_facts, torch_cuda
from support import NOBODY, disk_folder, need_root, need_tool, open_descriptors, run_script

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs/schema/report.json"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=disk_folder(), prefix="headrace-report-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def engine_of(folder: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in folder["engines"] if e["engine"] == name)
    return found


def test_the_result_is_what_the_schema_says(folder: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    (folder / "file").touch()
    result = headrace.report(folder, folder / "missing", folder / "file", "/dev/shm")
    validator.validate(result)
    assert [f["path"] for f in result["folders"]] == [
        str(folder),
        str(folder / "missing"),
        str(folder / "file"),
        "/dev/shm",
    ]
    # And it would notice.
    del result["folders"][0]["engines"][0]["verdict"]
    assert not validator.is_valid(result)


def test_engines_that_can_be_set_up_bring_their_bytes_back_right(folder: Path) -> None:
    before = open_descriptors()
    result = headrace.report(folder)
    (one,) = result["folders"]
    assert one["usable"]
    assert one["error"] is None
    for machine, tried in zip(result["machine"]["engines"], one["engines"], strict=True):
        assert machine["engine"] == tried["engine"]
        if machine["available"]:
            assert tried["verdict"] in ("works", "partly"), tried["why"]
            assert [t["shape"] for t in tried["round_trips"]] == ["bulk", "buffer", "ragged"]
            assert all(t["bytes_right"] for t in tried["round_trips"])
    assert list(folder.iterdir()) == []
    assert open_descriptors() == before


def test_without_folders_only_the_machine_is_looked_at() -> None:
    result = headrace.report()
    assert result["folders"] == []
    assert result["machine"]["kernel"]["release"] == os.uname().release
    assert result["machine"]["processors"]["allowed"] == len(os.sched_getaffinity(0))
    assert result["headrace"] == headrace.__version__


def test_a_folder_in_which_nothing_can_be_tried_says_why_and_the_others_go_on(folder: Path) -> None:
    file = folder / "file"
    file.touch()
    result = headrace.report(folder / "missing", bytes(file), folder)
    missing, no_folder, good = result["folders"]
    assert missing["error"]["errno"] == "ENOENT"
    assert no_folder["error"]["errno"] == "ENOTDIR"
    for bad in (missing, no_folder):
        assert bad["error"]["remedy"]
        assert bad["error"]["path"] == bad["path"]
        assert bad["engines"] == []
        assert not bad["usable"]
    assert good["usable"]


def test_a_folder_of_somebody_else_says_that_it_may_not_be_written(folder: Path) -> None:
    need_root("to become another user")
    code = f"""
        import os, sys, headrace
        headrace.report()  # imported while the files may be read
        os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
        os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
        print(headrace.report(sys.argv[1])["folders"][0]["error"]["errno"])
    """
    assert run_script(code, str(folder)).stdout.strip() == "EACCES"


def test_names_that_are_no_text_are_taken(folder: Path) -> None:
    odd = bytes(folder) + b"/\xff\n"
    os.mkdir(odd)
    result = headrace.report(odd)
    assert result["folders"][0]["usable"]
    assert "\ufffd" in result["folders"][0]["path"]


@pytest.mark.parametrize("wrong", [1, None, ["/tmp"]])
def test_what_is_no_path_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be str, bytes or"):
        headrace.report(wrong)


def test_other_threads_run_meanwhile(folder: Path) -> None:
    count = 0
    over = threading.Event()

    def work() -> None:
        nonlocal count
        while not over.is_set():
            count += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        before = count
        headrace.report(folder)
        assert count > before
    finally:
        over.set()
        thread.join()


def test_ctrl_c_ends_it_and_leaves_nothing(folder: Path) -> None:
    code = """
        import os, signal, sys, threading, headrace
        # Each round of folders asks for signals many times; this one comes on the way.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            headrace.report(*[sys.argv[1]] * 100)
        except KeyboardInterrupt:
            print("stopped")
    """
    assert run_script(code, str(folder)).stdout.strip() == "stopped"
    assert list(folder.iterdir()) == []


def test_a_killed_one_leaves_nothing(folder: Path) -> None:
    code = "import sys, headrace; print('go', flush=True); headrace.report(*[sys.argv[1]] * 100)"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"go\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.send_signal(signal.SIGKILL)
    assert list(folder.iterdir()) == []


REPORT = "import sys, json, headrace; print(json.dumps(headrace.report(sys.argv[1])))"


def refusing(system_call: str, errno: str) -> tuple[str, ...]:
    """A command under which the system call fails."""
    inject = ("-e", f"trace={system_call}", "-e", f"inject={system_call}:error={errno}")
    return (need_tool("strace"), "-f", "-qq", "-o", "/dev/null", *inject)


def test_without_io_uring_it_says_so_and_the_others_work(folder: Path) -> None:
    done = run_script(REPORT, str(folder), before=refusing("io_uring_setup", "EPERM"))
    (one,) = json.loads(done.stdout)["folders"]
    uring = engine_of(one, "uring")
    assert uring["verdict"] == "failed"
    assert "EPERM" in uring["why"]
    assert "seccomp" in uring["remedy"] or "io_uring_disabled" in uring["remedy"]
    assert engine_of(one, "posix")["verdict"] != "failed"
    assert one["usable"]


def test_without_places_for_aio_it_names_the_limit(folder: Path) -> None:
    done = run_script(REPORT, str(folder), before=refusing("io_setup", "EAGAIN"))
    aio = engine_of(json.loads(done.stdout)["folders"][0], "aio")
    assert aio["verdict"] == "failed"
    assert "fs.aio-max-nr" in aio["remedy"]


def test_python_tells_of_itself_without_importing_anything() -> None:
    code = """
        import json, sys
        import headrace
        facts = headrace.report()["python"]
        others = ("torch", "numpy", "safetensors", "deepspeed")
        print(json.dumps([facts, [name for name in others if name in sys.modules]]))
    """
    facts, imported = json.loads(run_script(code).stdout)
    assert imported == []
    assert facts["version"] == sys.version.split()[0]
    assert facts["packages"]["headrace"]["found"] or "site-packages" not in headrace.__file__
    try:
        import torch
    except ImportError:
        assert facts["packages"]["torch"] == {"found": False, "version": None, "cuda": None}
    else:
        assert facts["packages"]["torch"]["found"]
        assert facts["packages"]["torch"]["cuda"] == torch.version.cuda


def test_the_cuda_version_of_torch_is_read_where_torch_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    version = tmp_path / "torch/version.py"
    version.write_text("__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")
    assert torch_cuda() == "12.8"
    version.write_text("cuda = None\n")
    assert torch_cuda() is None
    version.unlink()
    assert torch_cuda() is None


def test_the_facts_of_python_are_what_the_file_prints_where_headrace_is_not() -> None:
    file = ROOT / "python/headrace/_python_facts.py"
    done = subprocess.run(
        [sys.executable, "-c", file.read_text(encoding="utf-8")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == json.loads(json.dumps(python_facts()))
