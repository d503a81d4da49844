# SPDX-License-Identifier: Apache-2.0
"""headrace.deepnvme has DeepSpeed's names: by facts written out here, and by an installed DeepSpeed."""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import support  # noqa: E402
from headrace import deepnvme  # noqa: E402

REQUIRED = object()

# Of DeepSpeed 0.19.8: parameters after self, in order, with their defaults.
CONSTRUCTOR = {
    "block_size": 1048576,
    "queue_depth": 128,
    "single_submit": False,
    "overlap_events": False,
    "intra_op_parallelism": 1,
}
AIO_METHODS: dict[str, dict[str, Any]] = {
    "get_block_size": {},
    "get_queue_depth": {},
    "get_single_submit": {},
    "get_overlap_events": {},
    "get_intra_op_parallelism": {},
    "get_alignment": {},
    "read": {"buffer": REQUIRED, "filename": REQUIRED, "validate": REQUIRED, "file_offset": 0},
    "write": {"buffer": REQUIRED, "filename": REQUIRED, "validate": REQUIRED, "file_offset": 0},
    "pread": {
        "buffer": REQUIRED,
        "filename": REQUIRED,
        "validate": REQUIRED,
        "async": REQUIRED,
        "file_offset": 0,
    },
    "pwrite": {
        "buffer": REQUIRED,
        "filename": REQUIRED,
        "validate": REQUIRED,
        "async": REQUIRED,
        "file_offset": 0,
    },
    "sync_pread": {"buffer": REQUIRED, "filename": REQUIRED, "file_offset": 0},
    "sync_pwrite": {"buffer": REQUIRED, "filename": REQUIRED, "file_offset": 0},
    "async_pread": {"buffer": REQUIRED, "filename": REQUIRED, "file_offset": 0},
    "async_pwrite": {"buffer": REQUIRED, "filename": REQUIRED, "file_offset": 0},
    "new_cpu_locked_tensor": {"num_elem": REQUIRED, "example_tenosr": REQUIRED},
    "free_cpu_locked_tensor": {"tensor": REQUIRED},
    "is_pinned": {"buffer": REQUIRED},
    "wait": {},
}
PIN_METHODS: dict[str, dict[str, Any]] = {
    "new_cpu_locked_tensor": {"num_elem": REQUIRED, "example_tensor": REQUIRED},
    "free_cpu_locked_tensor": {"locked_tensor": REQUIRED},
    "free_cpu_locked_tensor_by_ptr": {"address": REQUIRED},
    "is_pinned": {"buffer": REQUIRED},
}
FUNCTIONS = {
    "aio_read": 7,
    "aio_write": 7,
    "deepspeed_memcpy": 2,
}
# Python has no parameter named async, and one function stands for both forms of async_pwrite.
NOT_IN_PYTHON_SIGNATURES = {"pread", "pwrite", "async_pwrite"}


def parameters(function: Any) -> dict[str, Any]:
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return {
        name: REQUIRED if parameter.default is parameter.empty else parameter.default
        for name, parameter in found.items()
    }


def public_methods(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_constructor_has_the_names_order_and_defaults_of_deepspeed() -> None:
    assert list(parameters(deepnvme.aio_handle).items()) == list(CONSTRUCTOR.items())


def test_handles_have_the_methods_of_deepspeed_and_no_others() -> None:
    assert public_methods(deepnvme.aio_handle) == set(AIO_METHODS)
    assert public_methods(deepnvme.pin_handle) == set(PIN_METHODS)


@pytest.mark.parametrize("name", sorted(set(AIO_METHODS) - NOT_IN_PYTHON_SIGNATURES))
def test_an_aio_method_has_the_parameters_of_deepspeed(name: str) -> None:
    assert list(parameters(getattr(deepnvme.aio_handle, name)).items()) == list(AIO_METHODS[name].items())


@pytest.mark.parametrize("name", sorted(PIN_METHODS))
def test_a_pin_method_has_the_parameters_of_deepspeed(name: str) -> None:
    assert list(parameters(getattr(deepnvme.pin_handle, name)).items()) == list(PIN_METHODS[name].items())


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_takes_positions_only_and_has_no_defaults(name: str) -> None:
    found = inspect.signature(getattr(deepnvme, name)).parameters.values()
    assert len(found) == FUNCTIONS[name]
    assert all(parameter.kind is parameter.POSITIONAL_ONLY for parameter in found)
    assert all(parameter.default is parameter.empty for parameter in found)


def test_the_getters_repeat_the_constructor_even_beyond_the_limits_of_headrace() -> None:
    handle = deepnvme.aio_handle(1000, 1 << 20, True, True, 100)
    assert handle.get_block_size() == 1000
    assert handle.get_queue_depth() == 1 << 20
    assert handle.get_single_submit() is True
    assert handle.get_overlap_events() is True
    assert handle.get_intra_op_parallelism() == 100
    assert handle.get_alignment() == 512 * 100
    default = deepnvme.aio_handle()
    assert default.get_single_submit() is False
    assert default.get_overlap_events() is False
    assert default.get_alignment() == 512


def test_importing_the_module_imports_neither_torch_nor_deepspeed() -> None:
    code = """
    import sys, headrace.deepnvme, headrace.integrations
    print(sorted({"torch", "deepspeed"} & set(sys.modules)))
    """
    assert support.run_script(code).stdout.strip() == "[]"


# ---- the same facts, read in a DeepSpeed that is installed ----

ARGUMENT = re.compile(r'"(\w+)"_a(?:\s*=\s*([^,)]+))?')
VALUES = {"false": False, "true": True}


def value_of(default: str) -> Any:
    return VALUES[default] if default in VALUES else math.prod(int(factor) for factor in default.split("*"))


def bound_names(source: str) -> list[tuple[str, dict[str, Any]]]:
    """Each name that the source of a pybind11 module binds, with the argument names it gives."""
    found = []
    for part in re.split(r"\bdef\(\s*", source)[1:]:
        name = re.match(r'"(\w+)"', part)
        arguments = {
            argument: value_of(default.strip()) if default else REQUIRED
            for argument, default in ARGUMENT.findall(part)
        }
        found.append((name[1] if name else "__init__", arguments))
    return found


@pytest.fixture(scope="module")
def sources() -> Path:
    spec = importlib.util.find_spec("deepspeed")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("deepspeed is not installed")
    return Path(spec.submodule_search_locations[0]) / "ops" / "csrc"


def test_the_facts_are_those_in_the_source_of_the_installed_deepspeed(sources: Path) -> None:
    bound = bound_names((sources / "aio/py_lib/py_ds_aio.cpp").read_text())
    assert ("__init__", CONSTRUCTOR) in bound
    for item in AIO_METHODS.items():
        assert item in bound
    assert ("async_pwrite", {"buffer": REQUIRED, "fd": REQUIRED, "file_offset": 0}) in bound
    assert {name for name, _ in bound} == {"__init__", *AIO_METHODS, *FUNCTIONS}
    bound = bound_names((sources / "pin_memory/py_ds_pin_memory.cpp").read_text())
    assert dict(bound) == {"__init__": {}, **PIN_METHODS}


PARAMETER = re.compile(r"(\w+): [^=,]+?(?: = ([^,]+))?(?:, |$)")


def compiled_signatures(function: Any) -> list[dict[str, Any]]:
    """The overloads of a compiled function, as its docstring tells them."""
    found = []
    for line in function.__doc__.splitlines():
        match = re.match(r"(?:\d+\. )?\w+\((.*)\) -> ", line)
        if match is not None:
            arguments = PARAMETER.findall(match[1])
            found.append(
                {name: value_of(default.lower()) if default else REQUIRED for name, default in arguments}
            )
            found[-1].pop("self", None)
    return found


@pytest.mark.slow
@pytest.mark.watchdog(1800)
@pytest.mark.filterwarnings("default")
def test_the_facts_are_those_of_the_compiled_ops_of_the_installed_deepspeed(sources: Path) -> None:
    builders = pytest.importorskip("deepspeed.ops.op_builder")
    try:
        aio, pin = builders.AsyncIOBuilder().load(), builders.PinMemoryBuilder().load()
    except Exception as error:
        pytest.skip(f"the ops of the installed deepspeed cannot be built here: {error}")
    assert CONSTRUCTOR in compiled_signatures(aio.aio_handle.__init__)
    for name, expected in AIO_METHODS.items():
        assert expected in compiled_signatures(getattr(aio.aio_handle, name)), name
    for name, expected in PIN_METHODS.items():
        assert expected in compiled_signatures(getattr(pin.pin_handle, name)), name
    for name, count in FUNCTIONS.items():
        assert [len(signature) for signature in compiled_signatures(getattr(aio, name))] == [count]
    assert public_methods(aio.aio_handle) == set(AIO_METHODS)
    assert public_methods(pin.pin_handle) == set(PIN_METHODS)
