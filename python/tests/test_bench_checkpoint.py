# SPDX-License-Identifier: Apache-2.0
"""python -m headrace bench checkpoint, at sizes that are quick."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import headrace
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import support  # noqa: E402
from cli_support import Terminal, checked, validator  # noqa: E402
from headrace.bench import main, models, writers  # noqa: E402
from headrace.bench.memory import cached_share, prime  # noqa: E402
from headrace.bench.options import TAGS, parse  # noqa: E402
from headrace.bench.report import cache_words  # noqa: E402

# What a script that reads the guide's output looks for.
GUIDE_LINE = re.compile(r"^(\S+) -- +(\d+\.\d\d) GB, +(\d+\.\d\d) secs, +(\d+\.\d\d) GB/s$", re.MULTILINE)
TINY = f"{__name__}:tiny"
OURS = [tag for tag in TAGS["tensor"] if "_ds_" not in tag]
DEEPSPEED = [tag for tag in TAGS["tensor"] if "_ds_" in tag]


class Tiny(torch.nn.Module):  # type: ignore[misc]
    """A model with the interface of a language model: token ids to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 64)
        self.head = torch.nn.Linear(64, 50, bias=False)
        self.head.weight = self.words.weight  # tied, as in gpt2 and llama

    def forward(self, input_ids: Any) -> Any:
        return self.head(self.words(input_ids))


def tiny() -> Tiny:
    return Tiny()


def bench(benchmark: str, folder: Path, *arguments: str) -> int:
    return main(["checkpoint", benchmark, "--folder", str(folder), "--io_buffer_mb", "1", *arguments])


def kept_in(folder: Path) -> Path:
    """The one folder that --keep left there, and nothing beside it."""
    (name,) = os.listdir(folder)
    assert name.startswith("headrace-bench-")
    return folder / name


@pytest.fixture
def no_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)


@pytest.mark.usefixtures("no_deepspeed")
@pytest.mark.parametrize("container", [[], ["--zipfile"]])
def test_a_tensor_is_saved_in_every_way(
    container: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("tensor", tmp_path, "--mb_size", "6", *container) == 0
    out = capsys.readouterr().out
    assert [line[0] for line in GUIDE_LINE.findall(out)] == [tag for tag in OURS if "mock" not in tag]
    assert [size for _, size, *_ in GUIDE_LINE.findall(out)] == ["0.01"] * 4
    assert re.search(r"^headrace_mock_save --  0.00 GB,  \d+\.\d\d secs,     - GB/s$", out, re.MULTILINE)
    lines = out.splitlines()
    said = {lines[i].split()[0]: lines[i + 1].strip() for i in range(len(lines)) if " secs, " in lines[i]}
    said = {tag: durability for tag, durability in said.items() if tag.endswith("_save")}
    assert said == {
        "test_save": "not synced, not atomic",
        "headrace_mock_save": "nothing written",
        "headrace_py_save": "not synced, not atomic",
        "headrace_fast_save": "durable, atomic",
        "headrace_save": "durable, atomic",
    }
    for tag in DEEPSPEED:
        assert (f"{tag} -- skipped: deepspeed is not installed" in out) == ("gds" not in tag)
    assert out.count("stats = {") == 3
    first = GUIDE_LINE.search(out)
    assert first
    assert out.index("a GB is 2^30 bytes") < first.start() < out.index("medians of 1; a GB is 10^9 bytes")
    assert os.listdir(tmp_path) == []


def test_rows_are_separated_by_blanks_or_commas(tmp_path: Path) -> None:
    def rows(*words: str) -> tuple[str, ...]:
        return parse(
            ["checkpoint", "tensor", "--mb_size", "1", "--rows", *words, "--folder", str(tmp_path)]
        ).rows

    assert (
        rows("test_save", "headrace_save")
        == rows("test_save,headrace_save")
        == ("test_save", "headrace_save")
    )
    assert rows("test_save,", "headrace_save") == ("test_save", "headrace_save")
    options = parse(["checkpoint", "tensor", "--rows=test_save,headrace_save", str(tmp_path)])
    assert (options.rows, options.folder) == (("test_save", "headrace_save"), tmp_path)
    with pytest.raises(SystemExit):
        parse(["checkpoint", "tensor", "--rows=", str(tmp_path)])


def test_gds_is_tried_in_a_process_that_it_may_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "deepspeed" / "ops"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]))
    options = parse(["checkpoint", "tensor", "--folder", str(tmp_path), "--mb_size", "1"])
    builder = package / "op_builder.py"
    builder.write_text("import os\nos.write(2, b'file register error: not registered\\n')\nos._exit(1)\n")
    said = f"DeepSpeed's gds_handle cannot write to {tmp_path}: file register error: not registered"
    assert writers.why_no_gds(options) == said
    builder.write_text(
        "class Handle:\n"
        "    def pin_device_tensor(self, block): pass\n"
        "    def sync_pwrite(self, block, path, offset): open(path, 'wb').write(bytes(block.tolist()))\n"
        "class GDSBuilder:\n"
        "    def load(self): return self\n"
        "    def gds_handle(self, *_): return Handle()\n"
    )
    assert writers.why_no_gds(options) == ""
    assert os.listdir(tmp_path) == ["site"]


def test_the_command_gives_json_on_stdout_and_the_lines_on_stderr(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "bench", "checkpoint", "tensor", "--mb_size", "2", "--json"]
    options = [
        "--folder",
        str(tmp_path),
        "--rounds",
        "2",
        "--no-statistics",
        "--rows",
        "test_save",
        "headrace_save",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=50, check=True)
    result = json.loads(done.stdout)
    assert checked(result)["schema"] == "headrace.bench-checkpoint"
    assert result["benchmark"] == "tensor"
    assert result["machine"]["torch"] == torch.__version__
    assert [row["tag"] for row in result["rows"]] == ["test_save", "headrace_save"]
    for row in result["rows"]:
        assert len(row["seconds"]) == 2
        assert row["size_bytes"] > 2 << 20
        rate = row["size_bytes"] / 1e9 / (sum(row["seconds"]) / 2)
        assert row["gb_per_s"] == pytest.approx(rate)
    assert len(GUIDE_LINE.findall(done.stderr)) == 4
    assert "stats = " not in done.stderr


def test_kept_files_are_what_was_saved(tmp_path: Path) -> None:
    rows = ["--rows", "test_save", "headrace_py_save", "headrace_fast_save", "headrace_save"]
    assert bench("tensor", tmp_path, "--mb_size", "3", "--single_io_buffer", "--keep", *rows) == 0
    kept = kept_in(tmp_path)
    names = sorted(os.listdir(kept))
    assert names == sorted(f"{tag}_3MB.pt" for tag in rows[1:])
    tensors = [torch.load(kept / name, weights_only=True) for name in names]
    assert tensors[0].shape == (3 << 20,)
    assert tensors[0].dtype == torch.uint8
    assert tensors[0].count_nonzero() > 0
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)


@pytest.mark.parametrize("container", [[], ["--zipfile"]])
def test_a_model_is_saved_with_its_optimizer(container: list[str], tmp_path: Path) -> None:
    rows = ["--rows", *OURS]
    assert bench("model", tmp_path, "--model", TINY, "--optimizer", "--keep", *container, *rows) == 0
    kept = kept_in(tmp_path)
    for tag in OURS:
        if "mock" in tag:
            assert (kept / f"{tag}_tiny.pt").stat().st_size == 0
            continue
        state = torch.load(kept / f"{tag}_tiny.pt", weights_only=False)
        assert isinstance(state["model"], Tiny)
        assert {int(one["step"]) for one in state["optimizer"].state.values()} == {1}


@pytest.mark.usefixtures("no_deepspeed")
@pytest.mark.parametrize("way", [[], ["--zipfile"], ["--regular_torch_save"], ["--safetensors"]])
def test_a_model_loaded_again_gives_the_same_logits(
    way: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if way == ["--safetensors"]:
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    assert bench("load", tmp_path, "--model", TINY, "--no-statistics", *way) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^ *\d+\.\d\d GB, +\d+\.\d\d secs, +\d+\.\d\d GB/s$", out, re.MULTILINE)) == 2
    assert re.search(r"^headrace_save, durable, atomic:\n *\d+\.\d\d GB, ", out, re.MULTILINE)
    assert len(re.findall(r"^Loaded in \d+\.\d\d seconds\.$", out, re.MULTILINE)) == 4
    assert out.count("the logits agree within 0.001") == 4
    assert os.listdir(tmp_path) == []


def test_other_weights_fail_the_load_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = headrace.load

    def wrong(path: Path, **named: Any) -> Any:
        return {name: tensor + 0.1 for name, tensor in load(path, **named).items()}

    monkeypatch.setattr(headrace, "load", wrong)
    for as_json in ([], ["--json"]):
        assert bench("load", tmp_path, "--model", TINY, "--rows", "headrace_save", *as_json) == 3
        found = capsys.readouterr()
        assert "headrace_save, loaded by headrace.load: the logits differ" in found.err
        if as_json:
            assert checked(json.loads(found.out))["error"]["code"] == "corrupt"
    assert os.listdir(tmp_path) == []


def test_a_file_that_breaks_its_format_ends_it_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = headrace.load

    def damaged(path: Path, **named: Any) -> Any:
        os.truncate(path, 1000)
        return load(path, **named)

    monkeypatch.setattr(headrace, "load", damaged)
    arguments = ["--model", TINY, "--rows", "headrace_save", "--zipfile", "--json"]
    assert bench("load", tmp_path, *arguments) == 3
    assert checked(json.loads(capsys.readouterr().out))["error"]["code"] == "corrupt"


def test_every_loader_finds_the_file_cold_or_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    arguments = ["--model", TINY, "--rows", "headrace_save", "--safetensors", "--rounds", "2"]
    assert bench("load", tmp_path, *arguments, "--json") == 0
    found = capsys.readouterr()
    (row,) = checked(json.loads(found.out))["rows"]
    in_memory = support.file_system_of(tmp_path) in ("tmpfs", "ramfs")
    told = [None, None] if in_memory else [0, 0]  # load_file maps it: what is mapped stays
    assert row["cached_shares"] == {"safetensors load_file": told, "headrace.load": told}
    said = "are there; the" if in_memory else "are there, cold; the"
    assert found.err.count(said) == 4


def test_what_was_not_cold_is_said() -> None:
    assert cache_words([0.0, 0.005]) == ", cold"
    assert cache_words([0.0, 0.4, None]) == ", 40% cached"
    assert cache_words([0.0, None]) == ""


USAGE = {
    "an unknown benchmark": ["checkpoint", "nothing"],
    "no benchmark": ["checkpoint"],
    "another command": ["nothing"],
    "no folder": ["checkpoint", "tensor", "--mb_size", "1"],
    "two folders": ["checkpoint", "tensor", ".", "--folder", "."],
    "a folder as the benchmark": ["checkpoint", "."],
    "the folder first": ["checkpoint", "--folder", ".", "tensor"],
    "a folder that is not there": ["checkpoint", "tensor", "--mb_size", "1", "--folder", "/no/such/folder"],
    "a size of 0": ["checkpoint", "tensor", "--folder", ".", "--mb_size", "0"],
    "no model": ["checkpoint", "model", "--folder", "."],
    "an option of another benchmark": ["checkpoint", "tensor", "--folder", ".", "--mb_size", "1", "--half"],
    "an unknown row": ["checkpoint", "tensor", "--folder", ".", "--mb_size", "1", "--rows", "nothing"],
    "half without gpu": ["checkpoint", "model", "--folder", ".", "--model", TINY, "--optimizer", "--half"],
    "engine, half without gpu": ["checkpoint", "engine", "--folder", ".", "--model", TINY, "--half"],
    "two ways to save": [
        "checkpoint", "load", "--folder", ".", "--model", TINY, "--safetensors", "--regular_torch_save",
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", list(USAGE))
def test_usage_errors_exit_with_2(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(USAGE[what])
    assert exit_code.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("headrace: ")
    assert "\nSee: headrace bench" in err


def test_a_function_of_the_current_folder_makes_the_model(tmp_path: Path) -> None:
    """Which the program keeps Python from importing from, otherwise."""
    (tmp_path / "mine.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(4, 4)\n")
    done = subprocess.run(
        [*COMMAND, "model", ".", "--model", "mine:make", "--rows", "headrace_save", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "model", ["no-such-tag", "/no/such/folder", "no_such_module:f", f"{__name__}:nothing", "os:getcwd"]
)
def test_an_unknown_model_is_a_usage_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("model", tmp_path, "--model", model) == 2
    assert model in capsys.readouterr().err


def broken() -> None:
    raise ZeroDivisionError("boom")


class Deaf(torch.nn.Module):  # type: ignore[misc]
    """A model that takes no token ids."""

    def forward(self, pixels: Any) -> Any:
        return pixels


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (f"{__name__}:broken", f"--model {__name__}:broken: it raised ZeroDivisionError: boom"),
        (f"{__name__}:Deaf", "load needs a model that maps input_ids to logits: TypeError: "),
    ],
)
def test_a_model_that_raises_is_told_in_one_line(
    model: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for as_json in ([], ["--json"]):
        assert bench("load", tmp_path, "--model", model, *as_json) == 1
        found = capsys.readouterr()
        assert found.err.splitlines()[-1].startswith(f"headrace: bench checkpoint: {said}")
        assert "Traceback" not in found.err
        if as_json:
            assert checked(json.loads(found.out))["error"]["code"] == "unavailable"
    assert os.listdir(tmp_path) == []


def test_any_other_exception_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.bench.saves._tensor", lambda _: {}["no"])
    assert bench("tensor", tmp_path, "--mb-size", "1") == 1
    assert capsys.readouterr().err == "headrace: bench checkpoint: KeyError: 'no'\n"


def test_a_torch_that_cannot_be_imported_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so: no such file')\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [*COMMAND, "tensor", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    said = "torch cannot be imported: ImportError: libtorch.so: no such file"
    assert (done.returncode, done.stderr) == (1, f"headrace: bench checkpoint: {said}\n")


def test_without_a_gpu_one_sentence_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for benchmark, what in (("tensor", ["--mb_size", "1"]), ("model", ["--model", TINY])):
        assert bench(benchmark, tmp_path, *what, "--gpu") == 1
        found = capsys.readouterr()
        assert found.out == ""
        assert "no GPU here" in found.err.splitlines()[-1]
        assert found.err.count("GPU") == found.err.splitlines()[-1].count("GPU")


def test_options_without_effect_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parse(["checkpoint", "load", "--folder", str(tmp_path), "--model", TINY, "--zero_stage", "1", "--fused"])
    assert capsys.readouterr().err.splitlines() == [
        "headrace: bench checkpoint: --fused changes nothing in load",
        "headrace: bench checkpoint: --zero_stage changes nothing in load",
    ]


@pytest.mark.usefixtures("no_deepspeed")
def test_the_engine_benchmark_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("engine", tmp_path, "--model", TINY) == 1
    assert "pip install deepspeed==" in capsys.readouterr().err


# ---- the folder, signals, and what the program's other commands do ----

COMMAND = [sys.executable, "-m", "headrace", "bench", "checkpoint"]


@pytest.mark.usefixtures("no_deepspeed")
def test_files_that_were_there_before_are_not_touched(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    precious = target / "precious"
    precious.write_text("precious")
    folder = tmp_path / "data"
    folder.mkdir()
    for tag in TAGS["tensor"]:
        for name in (f"{tag}_warm_up", f"{tag}_2MB.pt"):
            if tag == "test_save":
                (folder / name).symlink_to(precious)
            elif tag == "headrace_py_save":
                os.mkfifo(folder / name)
            else:
                (folder / name).write_text("mine")
    before = {path: path.lstat() for path in folder.iterdir()}
    assert bench("tensor", folder, "--mb_size", "2") == 0
    after = {path: path.lstat() for path in folder.iterdir()}
    assert after.keys() == before.keys()
    for path, status in before.items():
        assert (after[path].st_ino, after[path].st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert precious.read_text() == "precious"


def test_the_folder_is_private_and_goes_when_the_benchmark_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def fail(*_: Any, **__: Any) -> None:
        modes.append(kept_in(tmp_path).stat().st_mode & 0o777)
        raise OSError("no")

    monkeypatch.setattr(headrace, "save", fail)
    assert bench("tensor", tmp_path, "--mb-size", "1", "--rows", "headrace_save", "--keep") == 1
    assert modes[-1] == 0o700
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", ["importing torch", "warming up", "saving"])
def test_a_signal_ends_it_soon_by_the_signal_and_leaves_nothing(
    number: signal.Signals, phase: str, tmp_path: Path
) -> None:
    arguments = ["tensor", str(tmp_path), "--mb-size", "200", "--rounds", "1000", "--rows", "test_save"]
    with Terminal(command=[*COMMAND, *arguments], stdout=subprocess.DEVNULL) as terminal:
        terminal.read_until(phase)
        start = time.monotonic()
        terminal.process.send_signal(number)
        assert terminal.finish() == -number
        assert time.monotonic() - start < 3
        seen = terminal.seen
    said = f"interrupted by {number.name}; nothing is left behind"
    assert seen.endswith(f"\r\033[Kheadrace: bench checkpoint: {said}\r\n")
    assert "Traceback" not in seen
    assert os.listdir(tmp_path) == []


def test_a_signal_that_was_ignored_stays_so(tmp_path: Path) -> None:
    arguments = ["tensor", str(tmp_path), "--mb-size", "1", "--rows", "test_save"]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        ["nohup", *COMMAND, *arguments], stdin=nothing, stdout=nothing, stderr=nothing
    ) as run:
        while not os.listdir(tmp_path):
            assert run.poll() is None
            time.sleep(0.001)
        run.send_signal(signal.SIGHUP)
        assert run.wait() == 0


def test_a_name_is_shown_safely_whatever_it_holds(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/a\xff\x1b[31m\xc3\xa4"
    os.mkdir(folder)
    shown = f"{tmp_path}/a\\xff\\x1b[31mä"
    in_json = f"{tmp_path}/a\ufffd\x1b[31mä"
    options = ["tensor", folder, "--mb-size", "1", "--rows", "test_save", "headrace_save", "--keep"]

    def ran(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *arguments]
        utf8 = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
        return subprocess.run(command, env=utf8, capture_output=True, encoding="utf-8", check=False)

    done = ran(*options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"checkpoint file = {shown}/headrace-bench-") == 2
    assert f"\nkept: {shown}/headrace-bench-" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert json.loads(ran(*options, "--json").stdout)["kept"].startswith(f"{in_json}/headrace-bench-")
    done = ran("tensor", folder + b"/none", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith(f"headrace: the folder {shown}/none is not there")
    assert f"the folder {in_json}/none is not there" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("stderr", ["2>&-", "2</dev/null", "2>/dev/full"])
def test_it_works_where_standard_error_takes_nothing(stderr: str, tmp_path: Path) -> None:
    arguments = ["tensor", str(tmp_path), "--mb-size", "1", "--rows", "test_save"]
    command = ["sh", "-c", f'exec "$@" {stderr}', "sh", *COMMAND, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=50, check=True)
    assert "medians of 1" in done.stdout
    command[-len(arguments) :] = ["tensor", str(tmp_path / "none"), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert checked(json.loads(done.stdout))["error"]["code"] == "usage"


def test_the_folder_may_stand_before_and_behind_options_and_names_have_both_forms(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for words in (
        [folder, "--io-buffer-mb", "1", "--no_statistics", "--single-io-buffer"],
        ["--io_buffer_mb", "1", "--no-statistics", "--single_io_buffer", folder],
        ["--io-buffer-mb", "1", "--folder", folder, "--no-statistics", "--single-io-buffer"],
    ):
        options = parse(["checkpoint", "tensor", *words])
        assert (options.folder, options.mb_size, options.io_buffer_mb) == (tmp_path, 1024, 1)
        assert options.no_statistics
        assert options.single_io_buffer


def test_a_folder_in_place_of_the_name_is_told_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["checkpoint", "."])
    err = capsys.readouterr().err
    assert "there are tensor, model, engine and load" in err
    assert "headrace bench checkpoint tensor ." in err


def test_help_looks_like_that_of_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["tensor"], ["model"], ["engine"], ["load"]):
        with pytest.raises(SystemExit) as ended:
            parse(["checkpoint", *words, "--help"])
        assert ended.value.code == 0
        out = capsys.readouterr().out
        name = words[0] if words else "BENCHMARK"
        assert f"\nUsage: headrace bench checkpoint {name} [OPTION]..." in out
        assert "\nExamples:\n  headrace bench checkpoint " in out
        if words:
            assert "  -h, --help\n        Print this help and exit." in out


def test_every_phase_is_told_on_stderr_but_a_line_in_ten_seconds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--mb_size", "1", "--rounds", "2", "--rows", "test_save", "headrace_save"]
    assert bench("tensor", tmp_path, *options) == 0
    assert len(capsys.readouterr().err.splitlines()) <= 1
    monkeypatch.setattr("headrace.bench.command.LINE_EVERY_S", 0)
    assert bench("tensor", tmp_path, *options) == 0
    err = capsys.readouterr().err
    places = [
        err.index(f"headrace: bench checkpoint: {what}\n")
        for what in (
            "importing torch",
            "warming up test_save (1 of 2)",
            "warming up headrace_save (2 of 2)",
            "test_save, 1 of 2: saving",
            "headrace_save, 2 of 2: saving",
        )
    ]
    assert places == sorted(places)


def test_on_a_terminal_the_phase_is_one_line_that_goes(tmp_path: Path) -> None:
    arguments = ["tensor", str(tmp_path), "--mb-size", "1", "--rows", "test_save"]
    with Terminal(command=[*COMMAND, *arguments], stdout=subprocess.DEVNULL, columns=60) as terminal:
        assert terminal.finish() == 0
        seen = terminal.seen
    assert "\r\033[Kheadrace: bench checkpoint: warming up test_save (1 of 1)\r\033[K" in seen
    assert "\n" not in seen
    assert seen.endswith("\r\033[K")
    assert all(len(line) < 60 for line in seen.split("\r\033[K"))


def test_a_terminal_that_cannot_take_a_line_back_gets_none(tmp_path: Path) -> None:
    arguments = ["tensor", str(tmp_path), "--mb-size", "1", "--rows", "test_save"]
    for name in ("dumb", ""):
        command = [*COMMAND, *arguments]
        with Terminal(command=command, stdout=subprocess.DEVNULL, TERM=name) as terminal:
            assert terminal.finish() == 0
            assert "\033" not in terminal.seen


def test_errors_are_json_too(tmp_path: Path) -> None:
    for arguments, code in (
        (["tensor", "--json"], 2),
        (["model", str(tmp_path), "--model", "no-such-tag", "--json"], 2),
        (["model", str(tmp_path), "--model", "os:getcwd", "--json"], 2),
        (["tensor", "/proc", "--mb-size", "1", "--json"], 1),
    ):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == code
        assert checked(json.loads(done.stdout))["schema"] == "headrace.error"


def test_the_schema_knows_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = validator("bench-checkpoint")
    for arguments in (["tensor", "--mb_size", "1", "--keep"], ["load", "--model", TINY]):
        assert bench(arguments[0], tmp_path, *arguments[1:], "--json") == 0
        result = checked(json.loads(capsys.readouterr().out))
        for key in result:
            assert not rules.is_valid({name: value for name, value in result.items() if name != key}), key
        assert not rules.is_valid(result | {"another": 1})
        assert not rules.is_valid(result | {"rows": [result["rows"][0] | {"another": 1}]})
        assert result["kept"] is None or Path(result["kept"]) == kept_in(tmp_path)


def test_what_sits_in_the_page_cache_is_counted_and_not_brought_in(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(support.random_bytes(8 << 20))
    if support.file_system_of(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("tmpfs has no cache beside the file itself")
    assert cached_share(path) == 1
    support.evict(path)
    for _ in range(3):
        assert cached_share(path) == 0
    path.write_bytes(b"")
    assert cached_share(path) == 0


def test_prime_takes_any_size() -> None:
    for size_bytes in (0, 1, 100 << 20):
        prime(size_bytes)


# ---- with transformers ----


def test_without_transformers_a_tag_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert bench("model", tmp_path, "--model", "phi3") == 1
    assert "pip install transformers" in capsys.readouterr().err


MODELS = """
import sys
import torch, transformers
from headrace.bench import main, models
for tag, published in models.TAGS.items():
    with torch.device("meta"):
        module = models._random(getattr(transformers, published.config)(**published.values))
    print(tag, sum(parameter.numel() for parameter in module.parameters()))
folder = sys.argv[1]
config = transformers.GPT2Config(vocab_size=99, n_positions=32, n_embd=16, n_layer=2, n_head=2)
transformers.GPT2LMHeadModel(config).save_pretrained(folder + "/own")
options = ["--folder", folder, "--io_buffer_mb", "1", "--no-statistics", "--rows", "headrace_save"]
for model in ("tiny-t5", folder + "/own"):
    for benchmark in ("model", "load --safetensors", "load --regular_torch_save --half"):
        code = main(["checkpoint", *benchmark.split(), "--model", model, *options])
        if code:
            sys.exit(code)
"""


@pytest.mark.watchdog(180)
def test_models_of_transformers_have_their_shapes_and_come_back(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    done = support.run_script(MODELS, str(tmp_path), timeout=170)
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines()[: len(models.TAGS)])
    assert found.pop("tiny-t5")
    assert found == {  # as published
        "gpt2-large": "774030080",
        "phi3": "3821079552",
        "phi3-v": "3821079552",
        "llama3-1B": "1235814400",
    }
    assert done.stdout.count("the logits agree") == 8
    assert done.stderr.count("random weights in the shape of hf-internal-testing/tiny-random-t5") == 3
    assert done.stderr.count(f"model: {tmp_path}/own\n") == 3


# ---- with DeepSpeed ----

ENGINE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from headrace.bench import main
for stage in "0123":
    options = ["--zero_stage", stage, "--no-statistics", "--rows", "test_save", "headrace_save"]
    if stage == "1":
        options.append("--zipfile")
    code = main(["checkpoint", "engine", "--folder", sys.argv[1], "--model", {TINY!r}, *options])
    if code:
        sys.exit(code)
"""


@pytest.mark.watchdog(300)
def test_deepspeeds_engine_saves_and_loads_with_ours_at_every_zero_stage(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    done = support.run_script(ENGINE, str(tmp_path), timeout=280)
    assert done.returncode == 0, done.stderr
    assert [tag for tag, *_ in GUIDE_LINE.findall(done.stdout)] == ["test_save", "headrace_save"] * 4
    after = re.findall(
        r"^    durable, atomic\n    load_checkpoint gives the same values$", done.stdout, re.MULTILINE
    )
    assert len(after) == 4
    assert os.listdir(tmp_path) == []
