# SPDX-License-Identifier: Apache-2.0
"""bench checkpoint load: a model's state_dict saved, loaded cold by torch or safetensors and by headrace, and
the logits compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import headrace

from .._measure import IN_MEMORY
from . import models, setting
from .command import DataError
from .memory import drop_cache, prime
from .report import Report, cache_words
from .saves import save_all, timed

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .command import Progress
    from .options import Options
    from .writers import Way

TOLERANCE = 1e-3  # absolute and relative, the guide's
Load = Callable[["Path"], dict[str, "torch.Tensor"]]


def run(options: Options, progress: Progress) -> Report:
    from . import BenchError

    report = Report(options.benchmark, setting.facts(options), progress)
    model = models.build(options, progress)
    report.facts["model"] = model.source
    expected = models.logits(model.module, options)
    if not expected.isfinite().all():
        raise BenchError(f"the logits of {model.source} are not finite, so nothing can be compared with them")
    state = _distinct(model.module) if options.safetensors else dict(model.module.state_dict())
    size_bytes = models.bytes_of(model.module)
    loaders = _loaders(options)
    in_memory = report.facts["file system"] in IN_MEMORY

    def check(way: Way, path: Path) -> None:
        row = report.row(way.tag, way.durability)
        for name, load in loaders.items():
            progress.step(f"{way.tag}: loading by {name}")
            cached = None if in_memory else drop_cache(path)
            prime(2 * size_bytes)
            seconds, loaded = timed(lambda load=load: load(path), options)  # type: ignore[misc]
            touching, _ = timed(lambda loaded=loaded: _touch(loaded), options)  # type: ignore[misc]
            row.loads.setdefault(name, []).append(seconds + touching)
            row.cached_shares.setdefault(name, []).append(cached)
            progress.clear()
            print(f"Loaded in {seconds:.2f} seconds.")
            difference = _difference(model.module, loaded, expected, options)
            del loaded  # what is mapped stays in the cache
            if difference:
                raise DataError(f"{way.tag}, loaded by {name}: {difference}")
            whole = f"{seconds + touching:.2f} seconds until all bytes are there{cache_words([cached])}"
            print(f"    {name}: {whole}; the logits agree within {TOLERANCE}", flush=True)

    save_all(
        options,
        report,
        state,
        size_bytes,
        f"{model.name}.{'safetensors' if options.safetensors else 'pt'}",
        tags=_tags(options),
        check=check,
    )
    return report


def _tags(options: Options) -> tuple[str, ...]:
    if options.safetensors:
        return ("test_safetensors_save", "headrace_save")
    if options.regular_torch_save:
        return ("test_save", "headrace_save")
    return ("test_ds_aio_fast_save", "headrace_fast_save", "headrace_save")


def _loaders(options: Options) -> dict[str, Load]:
    import torch

    device = options.device
    found: dict[str, Load] = {}
    if options.safetensors:
        from safetensors.torch import load_file

        found["safetensors load_file"] = lambda path: load_file(path, device=device)
    else:
        found["torch.load"] = lambda path: torch.load(path, weights_only=True, map_location=device)
    found["headrace.load"] = lambda path: headrace.load(path, map_location=device)
    return found


def _touch(loaded: dict[str, torch.Tensor]) -> None:
    """Reads a byte of every page: load_file maps the file, and the device is asked when somebody looks."""
    import torch

    for tensor in loaded.values():
        if tensor.device.type == "cpu" and tensor.numel():
            tensor.contiguous().reshape(-1).view(torch.uint8)[::4096].sum()


def _distinct(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Without the second name of tied weights, which safetensors files do not hold."""
    seen: set[tuple[Any, ...]] = set()
    found = {}
    for name, tensor in module.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
            found[name] = tensor.contiguous()
    return found


def _difference(
    module: torch.nn.Module, loaded: dict[str, torch.Tensor], expected: torch.Tensor, options: Options
) -> str:
    """Empty if the module, forgotten and loaded again, gives the same logits."""
    import torch

    own = module.state_dict()
    if not set(loaded) <= set(own):
        return f"names that the model does not have: {sorted(set(loaded) - set(own))[:3]}"
    with torch.no_grad():
        for tensor in own.values():
            tensor.zero_()
        module.load_state_dict(loaded, strict=False)
        found = models.logits(module, options)
    if torch.allclose(found, expected, atol=TOLERANCE, rtol=TOLERANCE):
        return ""
    return f"the logits differ by up to {(found - expected).abs().max().item():.3g}"
