# SPDX-License-Identifier: Apache-2.0
"""An installed DeepSpeed on headrace: its async_io and pin_memory ops become headrace.deepnvme, and its
checkpoints are saved by headrace.save.

    import headrace.integrations.deepspeed
    headrace.integrations.deepspeed.enable()     # before or after `import deepspeed`

or, for a program that is not to be changed,

    python -m headrace.integrations.deepspeed PROGRAM [ARGUMENTS...]

No file of DeepSpeed is changed and nothing is compiled: methods of its builder classes, and the function
that makes its checkpoint engines, are replaced in this process, and disable() puts them back. Processes that
are spawned, not forked, need their own call. Handles and engines that exist already stay what they are, after
both calls. One thread at a time.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping
    from types import ModuleType

__all__ = ["enable", "disable", "enabled"]

TESTED_VERSIONS = ("0.19.8",)

_BUILDERS = {"AsyncIOBuilder": "async_io", "PinMemoryBuilder": "pin_memory"}
# The same builders are importable under two names when DeepSpeed runs from a checkout.
_BUILDER_MODULES = re.compile(r"(deepspeed\.ops\.)?op_builder(\..+)?")
_ENGINE_FACTORY = "create_checkpoint_engine"
_ABSENT: Any = object()

# What disable() calls, last first. None while disabled.
_undo: list[Callable[[], object]] | None = None


def enable() -> None:
    """Makes DeepSpeed use headrace for I/O, locked CPU memory and checkpoints. Safe to call twice.

    Imports deepspeed.

    From now on AsyncIOBuilder().load() and PinMemoryBuilder().load() return headrace.deepnvme, both builders
    say that they are compatible, and so do deepspeed.ops.__compatible_ops__ and ds_report. GDSBuilder stays
    DeepSpeed's own.

    Engines made from now on by deepspeed.initialize save and load their checkpoints by headrace, whole or
    not at all, whether the config asks for FastPersist's writer (type "fast") or for none. Configs with a
    decoupled writer, the types "mock" and "python", or DataStates keep DeepSpeed's engines.

    Raises ImportError without DeepSpeed, RuntimeError if it has no such builders (older than 0.19.5, or an
    accelerator without them); then nothing was changed. Warns (RuntimeWarning) if its version is not one that
    was tried, and goes on.
    """
    global _undo
    if _undo is not None:
        return
    deepspeed = _import_deepspeed()
    builders = list(_find_builders())
    missing = [name for name, op in _BUILDERS.items() if not any(found == op for _, found in builders)]
    if missing:
        raise RuntimeError(
            f"this DeepSpeed ({_version(deepspeed)}) has no {' and no '.join(missing)} for its accelerator: "
            f"headrace knows the builders of DeepSpeed {', '.join(TESTED_VERSIONS)}"
        )
    if _version(deepspeed) not in TESTED_VERSIONS:
        warnings.warn(
            f"headrace was tried with DeepSpeed {', '.join(TESTED_VERSIONS)}, not with {_version(deepspeed)}",
            RuntimeWarning,
            stacklevel=2,
        )
    _undo = []
    try:
        load_pin_memory = _load_pin_memory(builders)
        for builder, op in builders:
            _replace_methods(builder, op, load_pin_memory)
        _replace_reports(deepspeed)
        _replace_checkpoint_engine(deepspeed)
    except BaseException:
        disable()
        raise


def disable() -> None:
    """Puts back what enable() found. Does nothing if it was not called."""
    global _undo
    steps, _undo = _undo or [], None
    for step in reversed(steps):
        step()


def enabled() -> bool:
    """True between enable() and disable()."""
    return _undo is not None


def _import_deepspeed() -> ModuleType:
    try:
        import deepspeed
        import deepspeed.ops.op_builder  # DeepSpeed finds its accelerator and makes its builders here
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "deepspeed":
            raise
        raise ImportError(
            f"headrace.integrations.deepspeed needs DeepSpeed: pip install deepspeed=={TESTED_VERSIONS[-1]}",
            name="deepspeed",
        ) from error
    module: ModuleType = deepspeed
    return module


def _version(deepspeed: ModuleType) -> str:
    # A build from source says 0.19.8+hash.
    return str(getattr(deepspeed, "__version__", "unknown")).partition("+")[0]


def _find_builders() -> Iterator[tuple[type, str]]:
    """The builder classes of the two ops, each once, with the op's name."""
    from deepspeed.accelerator import get_accelerator

    candidates = [get_accelerator().get_op_builder(name) for name in _BUILDERS]
    for name, module in list(sys.modules.items()):
        if module is not None and _BUILDER_MODULES.fullmatch(name):
            candidates += [vars(module).get(builder) for builder in _BUILDERS]
    for candidate in dict.fromkeys(candidates):
        op = str(getattr(candidate, "NAME", None))
        if isinstance(candidate, type) and op in _BUILDERS.values():
            yield candidate, op


def _load_pin_memory(builders: list[tuple[type, str]]) -> Callable[[], object]:
    """Loads DeepSpeed's own pin_memory op, which its gds op finds in the process."""
    builder: Any = next(builder for builder, op in builders if op == "pin_memory")
    load = builder.load
    return lambda: load(builder())


def _replace_methods(builder: Any, op: str, load_pin_memory: Callable[[], object]) -> None:
    own_load, own_is_compatible = builder.load, builder.is_compatible

    # Builders of other ops are derived from these: what they are is in their NAME.
    def load(self: Any, verbose: bool = False) -> object:
        name = self.NAME
        if name == op:
            from headrace import deepnvme

            return deepnvme
        load_pin_memory()
        return own_load(self, verbose=verbose)

    def is_compatible(self: Any, verbose: bool = False) -> object:
        name = self.NAME
        return True if name == op else own_is_compatible(self, verbose)

    _set(builder, "load", load)
    _set(builder, "is_compatible", is_compatible)


def _replace_checkpoint_engine(deepspeed: ModuleType) -> None:
    """The function that makes checkpoint engines, wherever DeepSpeed's modules have it by name."""
    package = f"{deepspeed.__name__}.runtime.checkpoint_engine"
    own = getattr(sys.modules.get(package), _ENGINE_FACTORY, None)
    if own is None:
        warnings.warn(
            f"this DeepSpeed has no {package}.{_ENGINE_FACTORY}: its checkpoints stay its own",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    from ._deepspeed_checkpoint import factory

    ours = factory(own)
    # In modules that are imported meanwhile, too.
    _on_disable(partial(_rename, f"{deepspeed.__name__}.", ours, own))
    _rename(f"{deepspeed.__name__}.", own, ours)


def _rename(prefix: str, before: object, after: object) -> None:
    """Gives the modules that have one function as the factory of engines another one."""
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {}) if name.startswith(prefix) else {}
        if names.get(_ENGINE_FACTORY) is before:
            setattr(module, _ENGINE_FACTORY, after)


def _replace_reports(deepspeed: ModuleType) -> None:
    """The tables that were filled before, or are when somebody asks."""
    for module_name, attribute in (("ops", "__compatible_ops__"), ("git_version_info", "compatible_ops")):
        module = sys.modules.get(f"{deepspeed.__name__}.{module_name}")
        if module is None:
            continue
        table = vars(module).get(attribute)
        if table is not None:
            _set_items(table)
        elif module_name == "ops":
            # Filled on the first look: what is filled from now on must not outlive disable().
            _on_disable(partial(module.__dict__.pop, attribute, None))
    version_info = sys.modules.get(f"{deepspeed.__name__}.git_version_info")
    installed = getattr(version_info, "installed_ops", None)
    if installed is not None:
        _set_items(installed)


def _set_items(table: MutableMapping[str, Any]) -> None:
    for op in _BUILDERS.values():
        before = table.get(op, _ABSENT)
        table[op] = True
        if before is _ABSENT:
            _on_disable(partial(table.pop, op, None))
        else:
            _on_disable(partial(table.__setitem__, op, before))


def _set(builder: type, name: str, value: object) -> None:
    before = vars(builder).get(name, _ABSENT)
    setattr(builder, name, value)
    if before is _ABSENT:
        _on_disable(partial(delattr, builder, name))
    else:
        _on_disable(partial(setattr, builder, name, before))


def _on_disable(step: Callable[[], object]) -> None:
    assert _undo is not None
    _undo.append(step)


def _main() -> None:
    import runpy

    if len(sys.argv) < 2:
        sys.exit("usage: python -m headrace.integrations.deepspeed PROGRAM [ARGUMENTS...]")
    # This file runs as __main__; the program is to find the same state under the module's own name.
    import headrace.integrations.deepspeed as integration  # noqa: PLW0406

    integration.enable()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # as Python itself does for a program
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
