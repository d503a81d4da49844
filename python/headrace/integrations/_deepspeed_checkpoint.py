# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for DeepSpeed, by headrace.save and headrace.load. Importing it imports deepspeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._torch_unpickle import MapLocation

__all__ = ["HeadraceCheckpointEngine", "factory"]


class HeadraceCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Saves each file atomically and durably, under the name that DeepSpeed gives it, in torch's zip
    container or, where the config says ``checkpoint_serialization: false``, in its legacy one; reads both.

    Data-parallel rank 0 writes what all ranks have, as with DeepSpeed's default engine.
    """

    def __init__(self, config_params: Any = None) -> None:
        super().__init__(config_params)
        self.name = "HeadraceCheckpointEngine"
        # Without a config it is the legacy container, as with DeepSpeed's default engine.
        zipped = config_params is not None and config_params.checkpoint_config["checkpoint_serialization"]
        self._format: Any = "torch" if zipped else "torch-legacy"

    def create(self, info: Any) -> None:
        """Does nothing: each file appears when it is whole."""

    def save(self, state_dict: Any, path: str) -> None:
        """Returns when the file is on the device. Raises as headrace.save does; an old file stays then."""
        headrace.save(state_dict, path, format=self._format)

    def load(self, path: str, map_location: MapLocation = None) -> Any:
        """The object that was saved, its classes too: only for files you trust, as in DeepSpeed."""
        return headrace.load(path, map_location=map_location, weights_only=False)

    def commit(self, info: Any) -> bool:  # noqa: ARG002  DeepSpeed's signature
        """True: what save() returned from is durable."""
        return True


def factory(own: Callable[..., Any]) -> Callable[..., Any]:
    """DeepSpeed's create_checkpoint_engine, with our engine in place of its torch and fast ones.

    What asks for another engine gets it from ``own``: decoupled writers, the writers ``mock`` and ``python``,
    DataStates.
    """

    def create_checkpoint_engine(config_params: Any, *arguments: Any, **named: Any) -> Any:
        if config_params is None:
            ours = True
        elif (writer := config_params.checkpoint_config["writer"]) is not None:
            ours = writer["type"] == "FAST" and not writer["decoupled"]
        else:
            ours = not config_params.datastates_config.enabled
        return HeadraceCheckpointEngine(config_params) if ours else own(config_params, *arguments, **named)

    return create_checkpoint_engine
