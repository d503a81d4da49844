# SPDX-License-Identifier: Apache-2.0
"""The program `headrace` as such: exit codes, what it says of a wrong command line, where its output goes."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_support import (
    Terminal,
    done,
    names,
    on_terminal,
    program,
    refusal,
    run,
    run_json,
    safetensors_file,
    strace,
    validator,
)

COMMANDS = ["inspect", "verify", "convert", "completion"]
FILE_COMMANDS = ["inspect", "verify", "convert"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return safetensors_file(tmp_path / "small.safetensors", {"w": ("U8", [4], b"abcd")})


def many(path: Path) -> Path:
    """Its table is longer than a pipe holds."""
    return safetensors_file(path, {f"block.{i:05}.weight": ("U8", [1], b"x") for i in range(4000)})


def test_exit_codes_are_0_done_1_failed_2_usage_3_corrupt(small: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(small.read_bytes()[:-1])
    assert run("verify", small).returncode == 0
    assert run("verify", tmp_path / "nowhere").returncode == 1
    assert run("verify").returncode == 2
    assert run("verify", torn).returncode == 3


def test_without_arguments_it_shows_its_help_on_standard_error() -> None:
    told = run()
    assert (told.returncode, told.stdout) == (2, "")
    assert all(command in told.stderr for command in COMMANDS)


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", done("--version"))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["inspct", "x"], "inspect"),
        (["vreify", "x"], "verify"),
        (["covnert", "x", "y"], "convert"),
        (["--verison"], "--version"),
        (["inspect", "x", "--josn"], "--json"),
        (["inspect", "x", "--summery"], "--summary"),
        (["inspect", "--sort=nmae", "x"], "name"),
        (["verify", "x", "--agianst", "y"], "--against"),
        (["verify", "x", "--stat"], "--stats"),
        (["convert", "x", "y", "--tensors_only"], "--tensors-only"),
        (["convert", "x", "y", "--shard_size=5G"], "--shard-size"),
        (["convert", "x", "y", "--format", "safetensor"], "safetensors"),
        (["convert", "x", "y", "--format", "torch-legasy"], "torch-legacy"),
        (["convert", "x", "y", "--dtype", "bfloat"], "bfloat16"),
        (["completion", "bsh"], "bash"),
        (["inspect", "--summery"], "--summary"),
        (["convert", "--detype", "float16"], "--dtype"),
        (["help"], "--help"),
        (["version"], "--version"),
    ],
)
def test_a_slip_of_the_finger_is_refused_with_what_was_meant(words: list[str], meant: str) -> None:
    told = refusal(*words, code=2)
    assert f"did you mean '{meant}'?" in told
    assert "--help" in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["inspect"], "PATH"),
        (["convert", "x"], "OUT"),
        (["inspect", "x", "y"], "'y'"),
        (["convert", "x", "y", "z"], "'z'"),
        (["verify", "x", "--against"], "--against"),
        (["verify", "x", "--against", "y", "--stats"], "--stats and --against"),
        (["inspect", "x", "--qqqqqqqq"], "'--qqqqqqqq'"),
        (["inspect", "x", "-z"], "'-z'"),
        (["convert", "x", "y"], "--format"),
        (["convert", "x", "y.pt", "--rename", "a"], "REGEX=REPLACEMENT"),
        (["convert", "x", "y.pt", "--rename", "=a"], "REGEX=REPLACEMENT"),
        (["convert", "x", "y.pt", "--rename", "(=a"], "regular expression"),
        (["convert", "x", "y.pt", "--rename", "*{=a"], "regular expression"),
        (["completion"], "SHELL"),
    ],
)
def test_a_command_line_that_makes_no_sense_says_where(words: list[str], told: str) -> None:
    assert told in refusal(*words, code=2)


@pytest.mark.parametrize(
    "size", ["", "5X", "-1", "1e9", "0x10", "K", "1 KBB", "1.2.3", ".", "99999999T", "5 5", "0"]
)
def test_a_size_that_is_none_is_refused_in_its_own_words(size: str) -> None:
    told = refusal("convert", "x", "y", "--shard-size", size, code=2)
    assert "--shard-size" in told
    assert f"'{size}'" in told


@pytest.mark.parametrize(
    ("size", "shards"),
    [("12", 2), ("24", 1), ("23", 2), ("0.012KB", 2), ("12b", 2), ("1K", 1), ("1 MiB", 1), ("8", 4)],
)
def test_sizes_are_numbers_with_units(tmp_path: Path, size: str, shards: int) -> None:
    source = safetensors_file(tmp_path / "x.safetensors", {c: ("U8", [6], b"abcdef") for c in "pqrs"})
    assert len(run_json("convert", source, tmp_path / "out", "--shard-size", size)["files"]) == shards


def test_json_before_the_command_says_where_it_belongs() -> None:
    told = run_json_error("--json", "inspect", "x", code=2)
    assert told == "headrace has no option '--json'; write it behind the command: headrace inspect --json"


def run_json_error(*words: str | Path, code: int) -> str:
    ended = run(*words)
    assert ended.returncode == code
    result = json.loads(ended.stdout)
    assert result["schema"] == "headrace.error"
    rules = validator("error")
    if rules is not None:
        rules.validate(result)
    message = str(result["error"]["message"])
    assert message in ended.stderr
    return message


def test_with_json_errors_of_every_kind_are_objects_too(small: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pt"
    empty.touch()
    assert "ENOENT" in run_json_error("inspect", tmp_path / "nowhere", "--json", code=1)
    assert "empty" in run_json_error("convert", empty, tmp_path / "x.pt", "--json", code=3)
    assert "EEXIST" in run_json_error("convert", small, small, "--json", code=1)
    assert "PATH" in run_json_error("verify", "--json", code=2)
    assert "did you mean" in run_json_error("verify", small, "--json", "--statz", code=2)
    assert "exclude" in run_json_error("verify", small, "--json", "--stats", "--against", small, code=2)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)])
def test_help_fits_the_terminal_and_ends_with_examples(command: list[str], columns: int) -> None:
    code, text = on_terminal(*command, "--help", columns=columns)
    assert code == 0
    assert "Usage: headrace" in text
    assert "Examples:" in text or not command
    lines = [
        line for line in text.splitlines() if not line.startswith("  headrace ")
    ]  # one cannot break a command
    widest = max(lines, key=len)
    # Names of options are not broken; nothing is laid out for less than 40 columns.
    assert len(widest) <= max(columns, 40) or widest.startswith("  --"), widest
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_same_without_a_terminal_and_fits_80_columns(command: str) -> None:
    text = done(command, "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert on_terminal(command, "--help", columns=80, TERM="dumb")[1] == text
    assert done(command, "-h") == text


def examples() -> list[str]:
    return [
        line.strip()
        for command in FILE_COMMANDS
        for line in done(command, "--help").partition("Examples:")[2].partition("\n\n")[0].splitlines()
        if line.startswith("  headrace ")
    ]


def test_every_example_of_the_help_runs(tmp_path: Path) -> None:
    tensors = {name: ("F32", [1], b"\0\0\0\0") for name in ("model.a.weight", "model.a.bias")}
    for name in ("model.safetensors", "small.safetensors"):
        safetensors_file(tmp_path / name, tensors)
    run_json("convert", tmp_path / "model.safetensors", tmp_path / "checkpoint", "--shard-size", "4")
    for name in ("model.pt", "run.pt", "pytorch_model.bin"):
        run_json("convert", tmp_path / "model.safetensors", tmp_path / name)
    assert len(examples()) >= 10
    for line in examples():
        command, _, _ = line.partition(" |")
        words = command.replace("headrace", f"'{program()}'", 1)
        inside = tmp_path / "inside"
        shutil.rmtree(inside, ignore_errors=True)
        shutil.copytree(tmp_path, inside, ignore=shutil.ignore_patterns("inside"))
        for target in re.findall(r"^headrace convert \S+ (\S+)", command):
            (inside / target).unlink(missing_ok=True)
        shell = subprocess.run(["bash", "-c", words], cwd=inside, capture_output=True, text=True, check=False)
        assert shell.returncode == 0, (command, shell.stderr)


def test_a_reader_that_stops_ends_it_by_sigpipe_without_a_word(tmp_path: Path) -> None:
    source = many(tmp_path / "many.safetensors")
    command = f"'{program()}' inspect '{source}' | head -n 1; echo ${{PIPESTATUS[0]}}"
    shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    first, status = shell.stdout.splitlines()
    assert first.startswith(str(source))
    assert (status, shell.stderr) == ("141", "")


@pytest.mark.parametrize(
    "words", [["inspect", "{}"], ["inspect", "{}", "--json"], ["verify", "{}"], ["--help"]]
)
def test_a_full_device_as_standard_output_is_told(words: list[str], small: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = run(*(w.format(small) for w in words), stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert "ENOSPC" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_never_become_files_of_its_own(tmp_path: Path, redirection: str) -> None:
    source = many(tmp_path / "many.safetensors")
    trace = strace("-e", "trace=openat,eventfd2,io_uring_setup,dup", "-o", str(tmp_path / "calls"))
    words = " ".join(f"'{word}'" for word in [*trace, program(), "convert", source, tmp_path / "out.pt"])
    subprocess.run(["bash", "-c", f"{words} {redirection}"], capture_output=True, check=False)
    opened = [
        int(call.rpartition("= ")[2].split()[0])
        for call in (tmp_path / "calls").read_text().splitlines()
        if "= " in call and not re.search(r'"/(etc|lib|usr|dev/null|proc)\b', call)
    ]
    assert len(opened) > 3
    # A message for people must never land in a checkpoint.
    assert min(n for n in opened if n >= 0) > 2
    assert run("verify", tmp_path / "out.pt").returncode == 0


def test_closed_standard_output_is_told_and_fails(small: Path) -> None:
    shell = subprocess.run(
        ["bash", "-c", f"'{program()}' verify '{small}' >&-"], capture_output=True, text=True, check=False
    )
    assert shell.returncode == 1
    assert "cannot write to standard output: EBADF" in shell.stderr


def test_a_file_that_is_called_like_a_command_or_an_option_can_be_named(tmp_path: Path, small: Path) -> None:
    for name in ("inspect", "--json", "verify", "-x"):
        shutil.copy(small, tmp_path / name)
    for words in (
        ["inspect", "verify"],
        ["verify", "inspect"],
        ["verify", "--", "--json"],
        ["inspect", "--", "-x"],
    ):
        assert run(*words, cwd=tmp_path).returncode == 0, words


def test_a_small_address_space_is_told_not_died_of(small: Path, tmp_path: Path) -> None:
    source = many(tmp_path / "many.safetensors")
    seen = set()
    for megabytes in (10, 14, 20, 30, 50, 80, 120, 200):
        limit = megabytes << 20
        ended = run(
            "convert", source, tmp_path / "out.pt", "--overwrite",
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )  # fmt: skip
        seen.add(ended.returncode)
        assert ended.returncode in (0, 1, 127), (
            megabytes,
            ended.returncode,
            ended.stderr,
        )  # 127: of the loader
        assert [n for n in names(tmp_path) if n.startswith(".headrace")] == []
    assert 1 in seen


# Completion.


def complete(*words: str, folder: Path) -> list[str]:
    """What bash offers for the last of these words."""
    script = f"""
        source <('{program()}' completion bash) || exit 9
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(stale)
        _headrace headrace "${{!#}}" ""
        (( ${{#COMPREPLY[@]}} == 0 )) || printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    shell = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True, cwd=folder, check=False
    )
    assert (shell.returncode, shell.stderr) == (0, "")
    return shell.stdout.split()


def test_bash_completes_commands_options_and_leaves_files_to_the_shell(tmp_path: Path) -> None:
    assert set(complete("headrace", "", folder=tmp_path)) >= set(COMMANDS)
    assert complete("headrace", "insp", folder=tmp_path) == ["inspect"]
    assert complete("headrace", "inspect", "--su", folder=tmp_path) == ["--summary"]
    assert set(complete("headrace", "convert", "--", folder=tmp_path)) >= {
        "--dtype",
        "--overwrite",
        "--json",
        "--help",
    }
    assert complete("headrace", "verify", "model", folder=tmp_path) == []
    assert complete("headrace", "inspect", "inspect", "--su", folder=tmp_path) == ["--summary"]
    assert complete("headrace", "completion", "", folder=tmp_path)[:2] == ["bash", "zsh"]
    assert complete("headrace", "convert", "a", "--dtype", "b", folder=tmp_path) == ["bfloat16"]
    assert complete("headrace", "convert", "--format", "", folder=tmp_path) == [
        "torch",
        "torch-legacy",
        "safetensors",
    ]


def test_every_option_of_the_help_is_completed(tmp_path: Path) -> None:
    for command in COMMANDS:
        offered = complete("headrace", command, "--", folder=tmp_path)
        assert sorted(offered) == sorted(
            set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", done(command, "--help"), re.M))
        )


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_is_one_for_that_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(done("completion", shell))
    checked = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_zsh_finds_the_script_in_its_path_of_functions_and_completes(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "_headrace").write_text(done("completion", "zsh"))
    (tmp_path / ".zshrc").write_text(
        f"PS1='> '; fpath=('{tmp_path}' $fpath); path=('{Path(program()).parent}' $path)\n"
        f"autoload -U compinit; compinit -u -d '{tmp_path}/dump'\n"
    )
    # Two presses of the tabulator, in a shell of its own.
    with Terminal(command=["zsh", "-d", "-i"], ZDOTDIR=str(tmp_path), columns=200) as shell:
        shell.read_until("> ")
        shell.type("headrace insp\t")
        shell.read_until("inspect")
        shell.type("--summ\t")
        shell.read_until("--summary")


def test_messages_hold_no_control_character(tmp_path: Path) -> None:
    nasty = tmp_path / "a\x1b[31m\nb\r\x07\x9bc"
    told = refusal("inspect", nasty)
    assert "\\x1b[31m\\x0ab\\x0d\\x07" in told
    assert not CONTROL.search(told)
    assert not CONTROL.search(refusal("inspect", "x", "--\x1b[2J", code=2))
    assert not CONTROL.search(refusal("\x1b[2J", code=2))
