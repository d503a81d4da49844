# SPDX-License-Identifier: Apache-2.0
"""headrace.integrations.deepspeed, on a small package with DeepSpeed's names, and on DeepSpeed if installed.

The stand-in has what the integration touches, as it is in DeepSpeed 0.19.8: an accelerator's builders,
an op that derives from another's builder, a table filled at the first look, one filled at installation.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
import headrace.integrations.deepspeed as integration  # noqa: E402
import support  # noqa: E402
from headrace import deepnvme  # noqa: E402

FILES = {
    "__init__.py": """
        __version__ = "{version}"
        from . import git_version_info
        from .runtime import engine
        """,
    "runtime/__init__.py": "",
    "runtime/engine.py": """
        from .checkpoint_engine import create_checkpoint_engine

        def make_engine(config):
            return create_checkpoint_engine(config_params=config, groups=None, zero_stage=0,
                                            has_moe_layers=False, optimize_dp_state=True)
        """,
    "runtime/checkpoint_engine/__init__.py": """
        from .utils import create_checkpoint_engine
        """,
    "runtime/checkpoint_engine/checkpoint_engine.py": """
        import os

        class CheckpointEngine:
            def __init__(self, config_params=None):
                self.name = None

            def makedirs(self, path, exist_ok=False):
                os.makedirs(path, exist_ok=exist_ok)
        """,
    "runtime/checkpoint_engine/utils.py": """
        def create_checkpoint_engine(config_params, groups, zero_stage, has_moe_layers, optimize_dp_state):
            return "its own engine"
        """,
    "git_version_info.py": """
        installed_ops = {{"async_io": False, "gds": False, "other": False}}
        """,
    "accelerator.py": """
        import importlib

        class Accelerator:
            def get_op_builder(self, name):
                return getattr(importlib.import_module("deepspeed.ops.op_builder.cpu"), name, None)

        def get_accelerator():
            return Accelerator()
        """,
    "ops/__init__.py": """
        def __getattr__(name):
            if name != "__compatible_ops__":
                raise AttributeError(name)
            from .op_builder import ALL
            globals()[name] = {{builder.NAME: builder().is_compatible() for builder in ALL}}
            return globals()[name]
        """,
    "ops/op_builder/__init__.py": """
        from .cpu import AsyncIOBuilder, GDSBuilder, OtherBuilder, PinMemoryBuilder
        ALL = [AsyncIOBuilder, GDSBuilder, OtherBuilder, PinMemoryBuilder]
        """,
    "ops/op_builder/builder.py": """
        loaded = []

        class OpBuilder:
            NAME = None

            def load(self, verbose=False):
                loaded.append(self.NAME)
                return "module of " + self.NAME

            def is_compatible(self, verbose=False):
                return False
        """,
    "ops/op_builder/cpu.py": """
        from .builder import OpBuilder

        class PinMemoryBuilder(OpBuilder):
            NAME = "pin_memory"

            def load(self, verbose=False):
                return super().load(verbose)

        class AsyncIOBuilder(OpBuilder):
            NAME = "async_io"

            def load(self, verbose=False):
                PinMemoryBuilder().load(verbose=verbose)
                return super().load(verbose=verbose)

        class GDSBuilder(AsyncIOBuilder):
            NAME = "gds"

        class OtherBuilder(OpBuilder):
            NAME = "other"
        """,
}


def is_deepspeed(name: str) -> bool:
    return name == "deepspeed" or name.startswith("deepspeed.")


def write_stand_in(folder: Path, version: str = "0.19.8") -> None:
    for name, text in FILES.items():
        file = folder / "deepspeed" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).format(version=version))


@pytest.fixture
def no_deepspeed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of DeepSpeed is imported at the start, and at the end what was before."""
    before = {name: module for name, module in sys.modules.items() if is_deepspeed(name)}
    for name in before:
        del sys.modules[name]
    yield
    integration.disable()
    for name in [name for name in sys.modules if is_deepspeed(name)]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def stand_in(no_deepspeed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_stand_in(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def builders() -> ModuleType:
    return importlib.import_module("deepspeed.ops.op_builder")


def state_of(module: ModuleType) -> list[dict[str, Any]]:
    kinds = [module.AsyncIOBuilder, module.PinMemoryBuilder, module.GDSBuilder, module.OtherBuilder]
    return [dict(vars(kind)) for kind in kinds]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("imported_before", [True, False])
def test_both_builders_load_headrace_until_disable(imported_before: bool) -> None:
    if imported_before:
        builders()
    integration.enable()
    assert integration.enabled()
    module = builders()
    assert module.AsyncIOBuilder().load() is deepnvme
    assert module.AsyncIOBuilder().load(verbose=True) is deepnvme
    assert module.PinMemoryBuilder().load() is deepnvme
    assert module.AsyncIOBuilder().is_compatible() is True
    assert module.PinMemoryBuilder().is_compatible(verbose=True) is True
    integration.disable()
    assert not integration.enabled()
    assert module.AsyncIOBuilder().load() == "module of async_io"
    assert module.PinMemoryBuilder().load() == "module of pin_memory"
    assert module.AsyncIOBuilder().is_compatible() is False


@pytest.mark.usefixtures("stand_in")
def test_names_taken_before_enable_follow_it() -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    integration.enable()
    assert AsyncIOBuilder().load().aio_handle is deepnvme.aio_handle


@pytest.mark.usefixtures("stand_in")
def test_disable_leaves_no_trace() -> None:
    module = builders()
    before = state_of(module)
    for _ in range(3):
        integration.enable()
        integration.enable()  # twice is once
        assert state_of(module) != before
        integration.disable()
        integration.disable()
        assert state_of(module) == before


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("looked_before", [True, False])
def test_the_tables_of_ops_say_so_and_are_put_back(looked_before: bool) -> None:
    ops = importlib.import_module("deepspeed.ops")
    version_info = importlib.import_module("deepspeed.git_version_info")
    own = {"async_io": False, "gds": False, "other": False, "pin_memory": False}
    if looked_before:
        assert ops.__compatible_ops__ == own
    integration.enable()
    assert ops.__compatible_ops__ == {**own, "async_io": True, "pin_memory": True}
    assert version_info.installed_ops == {"async_io": True, "gds": False, "other": False, "pin_memory": True}
    integration.disable()
    assert ("__compatible_ops__" in vars(ops)) == looked_before
    assert ops.__compatible_ops__ == own
    assert version_info.installed_ops == {"async_io": False, "gds": False, "other": False}


@pytest.mark.usefixtures("stand_in")
def test_ops_that_derive_from_these_stay_what_they_are() -> None:
    integration.enable()
    module = builders()
    loaded = importlib.import_module("deepspeed.ops.op_builder.builder").loaded
    assert module.GDSBuilder().load() == "module of gds"
    assert loaded == ["pin_memory", "gds"]  # gds looks for the compiled pin_memory in the process
    assert module.GDSBuilder().is_compatible() is False
    assert module.OtherBuilder().load() == "module of other"


class Config:
    """What DeepSpeed hands to the factory of checkpoint engines, as far as that reads it."""

    class datastates_config:  # noqa: N801  DeepSpeed's name
        enabled = False

    def __init__(self, **settings: Any) -> None:
        self.checkpoint_config = {"checkpoint_serialization": True, "writer": None, **settings}


@pytest.mark.usefixtures("stand_in")
def test_engines_made_while_enabled_save_by_headrace(tmp_path: Path) -> None:
    integration.enable()
    module = importlib.import_module("deepspeed.runtime.engine")
    state = {"module": {"w": torch.arange(5.0)}, "step": 3}
    for serialization, kind in ((True, "torch"), (False, "torch-legacy")):
        for writer in (None, {"type": "FAST", "decoupled": False}):
            engine = module.make_engine(Config(checkpoint_serialization=serialization, writer=writer))
            path = str(tmp_path / "state.pt")
            engine.create(None)
            engine.save(state, path)
            assert engine.commit(None) is True
            with headrace.open(path) as file:
                assert file.format == kind
            for loaded in (engine.load(path, map_location="cpu"), torch.load(path)):
                assert torch.equal(loaded["module"]["w"], state["module"]["w"])
                assert loaded["step"] == 3
    assert sorted(os.listdir(tmp_path)) == ["deepspeed", "state.pt"]
    integration.disable()
    assert module.make_engine(Config()) == "its own engine"


@pytest.mark.usefixtures("stand_in")
def test_configs_for_other_engines_keep_them() -> None:
    integration.enable()
    module = importlib.import_module("deepspeed.runtime.engine")
    for writer in ({"type": "FAST", "decoupled": True}, {"type": "MOCK"}, {"type": "PYTHON"}):
        assert module.make_engine(Config(writer=writer)) == "its own engine"
    config = Config()
    config.datastates_config = type("enabled", (), {"enabled": True})  # type: ignore[misc, assignment]
    assert module.make_engine(config) == "its own engine"


@pytest.mark.usefixtures("stand_in")
def test_the_factory_is_found_and_put_back_in_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.import_module("deepspeed.runtime.checkpoint_engine")
    own = package.create_checkpoint_engine
    monkeypatch.setitem(sys.modules, "deepspeed.blocked", None)  # type: ignore[arg-type]
    integration.enable()
    late = ModuleType("deepspeed.late")
    exec("from deepspeed.runtime.checkpoint_engine import create_checkpoint_engine", late.__dict__)
    monkeypatch.setitem(sys.modules, "deepspeed.late", late)
    assert late.__dict__["create_checkpoint_engine"] is not own
    integration.disable()
    assert package.create_checkpoint_engine is own
    assert late.__dict__["create_checkpoint_engine"] is own


@pytest.mark.usefixtures("stand_in")
def test_an_engine_without_a_config_writes_deepspeeds_container(tmp_path: Path) -> None:
    integration.enable()
    module = importlib.import_module("deepspeed.runtime.engine")
    module.make_engine(None).save({"w": torch.ones(3)}, str(tmp_path / "a.pt"))
    with headrace.open(tmp_path / "a.pt") as file:
        assert file.format == "torch-legacy"


def test_a_program_finds_the_modules_beside_it(stand_in: Path) -> None:
    folder = stand_in / "somewhere"
    folder.mkdir()
    (folder / "program.py").write_text("import sibling; print(sibling.x)")
    (folder / "sibling.py").write_text("x = 1")
    paths = os.pathsep.join([str(stand_in), *[path for path in sys.path if path]])
    done = subprocess.run(
        [sys.executable, "-m", "headrace.integrations.deepspeed", str(folder / "program.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        cwd="/",
        timeout=60,
        check=False,
    )
    assert done.stdout == "1\n", done.stderr[-300:]


def test_a_deepspeed_without_the_factory_keeps_its_checkpoints(stand_in: Path) -> None:
    (stand_in / "deepspeed/runtime/checkpoint_engine/__init__.py").write_text("")
    (stand_in / "deepspeed/runtime/engine.py").write_text("")
    with pytest.warns(RuntimeWarning, match="checkpoints stay its own"):
        integration.enable()
    assert builders().AsyncIOBuilder().load() is deepnvme


def test_another_version_is_warned_of_and_used(
    no_deepspeed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stand_in(tmp_path, version="0.31.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"0\.19\.8, not with 0\.31\.0"):
        integration.enable()
    assert builders().AsyncIOBuilder().load() is deepnvme


def test_a_version_without_these_builders_is_refused_and_left_alone(stand_in: Path) -> None:
    file = stand_in / "deepspeed/ops/op_builder/cpu.py"
    file.write_text(file.read_text().replace('NAME = "pin_memory"', 'NAME = "memory"'))
    module = builders()
    before = state_of(module)
    with pytest.raises(RuntimeError, match="no PinMemoryBuilder"):
        integration.enable()
    assert not integration.enabled()
    assert state_of(module) == before


def test_without_deepspeed_the_error_says_what_to_install(
    no_deepspeed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError, match=r"pip install deepspeed==0\.19\.8"):
        integration.enable()
    assert not integration.enabled()
    integration.disable()


def test_a_deepspeed_that_cannot_be_imported_shows_its_own_error(stand_in: Path) -> None:
    (stand_in / "deepspeed/__init__.py").write_text("import a_module_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        integration.enable()


def test_a_program_runs_with_headrace_underneath_and_unchanged(stand_in: Path) -> None:
    program = stand_in / "program.py"
    program.write_text(
        textwrap.dedent("""
        import sys
        from deepspeed.ops.op_builder import AsyncIOBuilder
        print(AsyncIOBuilder().load().__name__, __name__, sys.argv[1:])
        """)
    )
    code = f"""
    import runpy, sys
    sys.path.insert(0, {str(stand_in)!r})
    sys.argv = ["integration", {str(program)!r}, "--option", "1"]
    runpy.run_module("headrace.integrations.deepspeed", run_name="__main__")
    """
    done = support.run_script(code)
    assert done.stdout == "headrace.deepnvme __main__ ['--option', '1']\n", done.stderr


# ---- DeepSpeed itself ----

REAL = """
import os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import torch
import headrace.integrations.deepspeed as integration
from headrace import deepnvme
from deepspeed.ops.op_builder import AsyncIOBuilder, PinMemoryBuilder
before = [dict(vars(kind)) for kind in (AsyncIOBuilder, PinMemoryBuilder)]
integration.enable()
import deepspeed
assert AsyncIOBuilder().load() is deepnvme and PinMemoryBuilder().load() is deepnvme
assert deepspeed.ops.__compatible_ops__["async_io"] and deepspeed.ops.__compatible_ops__["pin_memory"]
os.environ["DS_PIN_MEMORY_BACKEND"] = "native"
from deepspeed.utils.pin_memory import get_active_native_pinned_memory
pins = get_active_native_pinned_memory()
pinned = pins.pin(torch.arange(6.0).reshape(2, 3))
handle = AsyncIOBuilder().load().aio_handle(block_size=4096, queue_depth=4, intra_op_parallelism=2)
assert handle.is_pinned(pinned)
assert handle.sync_pwrite(pinned, sys.argv[1]) == 1
assert pins.unpin(pinned)
view = pins.pin(torch.ones(1000))[3:]
assert handle.is_pinned(view)  # the memory is watched through its last view
del view
from deepspeed.env_report import op_report
op_report()
integration.disable()
assert before == [dict(vars(kind)) for kind in (AsyncIOBuilder, PinMemoryBuilder)]
assert "__compatible_ops__" not in vars(deepspeed.ops)
"""


@pytest.mark.watchdog(300)
def test_deepspeed_itself_uses_headrace(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    done = support.run_script(REAL, str(tmp_path / "file"), timeout=280)
    assert done.returncode == 0, done.stderr
    report = [line.split() for line in done.stdout.splitlines()]
    for op in ("async_io", "pin_memory"):
        line = next(words for words in report if words and words[0] == op)
        assert "YES" in line[2]
        assert "OKAY" in line[4]
    assert (tmp_path / "file").read_bytes() == torch.arange(6.0).numpy().tobytes()


ENGINE = """
import os, sys
os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="localhost", MASTER_PORT=sys.argv[3], RANK="0",
                  WORLD_SIZE="1", LOCAL_RANK="0", CROSS_SIZE="1", CROSS_RANK="0", LOCAL_SIZE="1")
import torch
import headrace
import headrace.integrations.deepspeed as integration
integration.enable()
import deepspeed
folder, stage = sys.argv[1], int(sys.argv[2])

def make(writer):
    torch.manual_seed(42)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Linear(50, 7))
    config = {"train_batch_size": 1, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
              "checkpoint": {"checkpoint_serialization": writer != "legacy",
                             **({"writer": {"type": "fast", "data_parallel": "socket"}} if writer else {})}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine

deepspeed.init_distributed(dist_backend="gloo")
for writer in (None, "zip", "legacy"):
    engine = make(writer)
    assert engine.checkpoint_engine.name == "HeadraceCheckpointEngine", engine.checkpoint_engine.name
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 30)).sum())
        engine.step()
    expected = engine(torch.ones(1, 30)).detach().clone()
    tag = f"tag-{writer}"
    assert engine.save_checkpoint(folder, tag=tag)
    files = sorted(os.listdir(os.path.join(folder, tag)))
    assert files and all(name.endswith(".pt") for name in files), files
    for name in files:
        with headrace.open(os.path.join(folder, tag, name)) as file:
            assert file.format == ("torch-legacy" if writer == "legacy" else "torch")
    again = make(writer)
    with torch.no_grad():
        if stage < 3:
            for parameter in again.module.parameters():
                parameter.zero_()
    path, _ = again.load_checkpoint(folder, tag=tag)
    assert path and again.global_steps == 2
    assert torch.equal(again(torch.ones(1, 30)).detach(), expected)
    again.backward(again(torch.ones(1, 30)).sum())
    again.step()
integration.disable()
print("DONE")
"""


@pytest.mark.watchdog(300)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_itself_saves_and_loads_its_checkpoints(tmp_path: Path, stage: int) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    with socket.socket() as one:  # a port that is free now
        one.bind(("localhost", 0))
        port = str(one.getsockname()[1])
    done = support.run_script(ENGINE, str(tmp_path), str(stage), port, timeout=280)
    assert done.stdout.splitlines()[-1:] == ["DONE"], done.stderr
