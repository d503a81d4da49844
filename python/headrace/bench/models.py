# SPDX-License-Identifier: Apache-2.0
"""The models: the guide's tags, a folder of transformers, or a function that makes one.

Nothing is downloaded. A tag is taken from the local cache of transformers; if it is not there, the model is
made with random weights in the shape that its publisher gives in its config.json.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .command import first_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from .command import Progress
    from .options import Options

TOKENS_MAX = 16  # of the prompt


class Published(NamedTuple):
    """A tag: its name at the hub, the class of its config, and what in it decides the shapes."""

    name: str
    config: str
    values: dict[str, Any]
    remark: str = ""


_PHI3 = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
TAGS = {
    "tiny-t5": Published(
        "hf-internal-testing/tiny-random-t5",
        "T5Config",
        {"vocab_size": 1103, "d_model": 32, "d_ff": 37, "d_kv": 8, "num_layers": 5, "num_heads": 4},
    ),
    "gpt2-large": Published(
        "gpt2-large",
        "GPT2Config",
        {"vocab_size": 50257, "n_positions": 1024, "n_embd": 1280, "n_layer": 36, "n_head": 20},
    ),
    "phi3": Published("microsoft/Phi-3.5-mini-instruct", "Phi3Config", _PHI3),
    "phi3-v": Published(
        "microsoft/Phi-3.5-vision-instruct",
        "Phi3Config",
        _PHI3,
        "its language part; the vision part is left out",
    ),
    "llama3-1B": Published(
        "meta-llama/Llama-3.2-1B",
        "LlamaConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    ),
}


class Model(NamedTuple):
    """``source`` says where the weights come from, and is printed."""

    name: str
    module: torch.nn.Module
    source: str


def build(options: Options, progress: Progress) -> Model:
    """The model of --model, on the device, in float32 or with --half in float16.

    Raises ModelError for one that is not there, BenchError without transformers.
    """
    import torch

    progress.step(f"making the model {options.model}")
    model = _find(options.model)
    progress.clear()
    print(f"model: {printable(model.source)}", file=sys.stderr, flush=True)
    dtype = torch.float16 if options.half else torch.float32
    return model._replace(module=model.module.to(device=options.device, dtype=dtype).eval())


def bytes_of(module: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _find(wanted: str) -> Model:
    from . import ModelError

    if wanted in TAGS:
        return _published(wanted, TAGS[wanted])
    folder = Path(wanted)
    if folder.is_dir():
        return _folder(folder)
    module_name, colon, function = wanted.partition(":")
    if colon:
        return _made(module_name, function)
    raise ModelError(f"--model {wanted}: neither a tag ({', '.join(TAGS)}) nor a folder, nor MODULE:FUNCTION")


def _published(tag: str, published: Published) -> Model:
    transformers = _transformers()
    remark = f" ({published.remark})" if published.remark else ""
    try:
        with _offline():
            config = transformers.AutoConfig.from_pretrained(published.name, local_files_only=True)
            module = _class_for(config).from_pretrained(published.name, local_files_only=True)
        return Model(tag, module, f"{published.name} from the local cache")
    except (OSError, ValueError):  # not in the cache, or in a shape that this transformers does not know
        config = getattr(transformers, published.config)(**published.values)
        module = _random(config)
        return Model(
            tag, module, f"random weights in the shape of {published.name}{remark}; it is not cached here"
        )


def _folder(folder: Path) -> Model:
    from . import ModelError

    transformers = _transformers()
    name = folder.resolve().name
    try:
        with _offline():
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            if not [file for kind in ("safetensors", "bin") for file in folder.glob(f"*.{kind}")]:
                return Model(name, _random(config), f"random weights in the shape of {folder}/config.json")
            module = _class_for(config).from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(f"--model {folder}: transformers cannot load it: {first}") from None
    return Model(name, module, str(folder))


def _made(module_name: str, function: str) -> Model:
    import torch

    from . import BenchError, ModelError

    # The program keeps what lies in the current folder from being imported; this was asked for.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"--model {module_name}:{function}: {error}") from None
    try:
        module = make()
    except Exception as error:
        raise BenchError(f"--model {module_name}:{function}: it raised {first_line(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"--model {module_name}:{function}: returned no torch.nn.Module")
    return Model(function, module, f"{module_name}:{function}")


def _transformers() -> Any:
    from . import BenchError

    if importlib.util.find_spec("transformers") is None:
        raise BenchError(
            "--model with a tag or a folder needs transformers: pip install transformers; "
            "a model of yours works without: --model MODULE:FUNCTION"
        )
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def _offline() -> Iterator[None]:
    """Keeps the hub's client from asking at all: without a network it would wait for its time-outs."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _class_for(config: Any) -> Any:
    import transformers

    return (
        transformers.T5ForConditionalGeneration
        if config.model_type == "t5"
        else transformers.AutoModelForCausalLM
    )


def _random(config: Any) -> Any:
    kind = _class_for(config)
    return kind(config) if config.model_type == "t5" else kind.from_config(config)


def logits(module: Any, options: Options) -> torch.Tensor:
    """What the model makes of a fixed prompt, float32 on the CPU."""
    import torch

    from . import BenchError

    config = getattr(module, "config", None)
    vocabulary = int(getattr(config, "vocab_size", TOKENS_MAX))
    ids = [(7 * place + 3) % vocabulary for place in range(TOKENS_MAX)]
    prompt = {"input_ids": torch.tensor([ids], device=options.device)}
    if getattr(config, "is_encoder_decoder", False):
        prompt["decoder_input_ids"] = prompt["input_ids"]
    try:
        with torch.no_grad():
            output = module(**prompt)
        found: torch.Tensor = getattr(output, "logits", output)
        return found.float().cpu()
    except (TypeError, AttributeError) as error:
        raise BenchError(f"load needs a model that maps input_ids to logits: {first_line(error)}") from error
