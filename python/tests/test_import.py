# SPDX-License-Identifier: Apache-2.0
"""What importing headrace costs and needs: little time, and nothing that another machine may lack."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import headrace
import pytest
from headrace import _core
from support import need_tool, run_script

EXTENSION = str(_core.__file__)


def test_the_import_takes_less_than_50_ms() -> None:
    """The best of several: other programs share this machine, and none of them makes an import faster."""
    code = """
        import sys, time
        start = time.perf_counter()
        import headrace
        print(time.perf_counter() - start)
    """
    assert min(float(run_script(code).stdout) for _ in range(7)) < 0.050


def test_the_import_brings_in_no_framework_and_no_logging() -> None:
    code = """
        import sys
        before = set(sys.modules)  # an environment's own start-up may have brought some of these
        import headrace
        with headrace.Handle() as h:
            h.write("/dev/null", b"abc").result()
        unwanted = ("torch", "numpy", "logging", "concurrent.futures", "asyncio", "typing")
        print([m for m in unwanted if m in sys.modules and m not in before])
    """
    done = run_script(code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_import_starts_no_thread() -> None:
    code = """
        import os
        import headrace
        print(len(os.listdir("/proc/self/task")))
    """
    assert run_script(code).stdout.strip() == "1"


def test_torch_and_numpy_are_found_though_they_are_imported_later(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    code = """
        import sys
        import headrace
        with headrace.Handle() as h:
            h.write(sys.argv[1], bytes(16)).result()
            import numpy
            target = numpy.zeros(2, dtype="M8[s]")
            print(h.read(sys.argv[1], target).result())
        print(headrace.numpy.empty(3).shape)
    """
    done = run_script(code, str(tmp_path / "file"))
    assert done.stdout.splitlines() == ["16", "(3,)"], done.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", headrace.__version__)
    try:
        installed = metadata.version("headrace")
    except metadata.PackageNotFoundError:
        pytest.skip("headrace is not installed as a package here")
    assert installed == headrace.__version__


def test_every_public_name_is_there() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert {"torch", "numpy", "Handle"} <= set(dir(headrace))
    with pytest.raises(AttributeError):
        _ = headrace.nonsense


def test_the_extension_needs_nothing_but_the_systems_own_libraries() -> None:
    """garnet PR 907, python-libaio PR 16: linked to a library whose name differs between distributions."""
    text = subprocess.run(
        [need_tool("readelf"), "-d", EXTENSION], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    allowed = {
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }
    allowed |= {"libpthread.so.0", "libdl.so.2", "librt.so.1"}  # empty since glibc 2.34
    assert needed <= allowed


def test_the_extension_has_no_symbols_of_torch() -> None:
    """pytorch #187727: a prebuilt extension that did not load after an upgrade."""
    text = subprocess.run(
        [need_tool("nm"), "-D", "-C", EXTENSION], capture_output=True, text=True, check=True
    ).stdout
    undefined = [line.split(" U ", 1)[1] for line in text.splitlines() if " U " in line]
    assert undefined
    assert not [
        name for name in undefined if re.search(r"\b(c10|at|torch|io_setup|io_submit|cuFile|cuda)\b", name)
    ]
    exported = [line.split()[-1] for line in text.splitlines() if re.match(r"[0-9a-f]+ [TDB] ", line)]
    assert exported == ["PyInit__core"]


def test_the_extension_uses_no_instructions_that_an_old_processor_lacks() -> None:
    """DeepSpeed #1886: illegal instruction on another processor than the one it was built on."""
    if "x86" not in subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("looks for AVX, which is x86's")
    objdump = need_tool("objdump")

    def wide(binary: str | Path) -> Counter[str]:
        """How many instructions of AVX there are, by the object that they are in and the function."""
        part, found = "", Counter[str]()
        with subprocess.Popen(
            [objdump, "-d", "--no-show-raw-insn", binary], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "file format" in line:
                    part = line.split(":")[0]
                elif line.endswith(">:\n"):
                    function = f"{part} {line.strip()}"
                elif "%ymm" in line or "%zmm" in line:
                    found[function] += 1
        assert process.returncode == 0
        assert part
        return found

    ours = sum(wide(EXTENSION).values())
    if ours == 0:
        return
    # libdeflate chooses at run time. A wheel is stripped: whose instructions they are, their number tells.
    folder = subprocess.run(
        [need_tool("pkg-config"), "--variable=libdir", "libdeflate"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    sums = {name: n for name, n in wide(Path(folder) / "libdeflate.a").items() if name.startswith("crc32")}
    assert all(re.search(r"avx|vpclmul|x86", name.split()[-1]) for name in sums), sums
    assert ours == sum(sums.values())


def test_an_unknown_module_argument_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
