"""Models on this machine: found, fetched whole or not at all, listed. Imports no torch."""

from flowforge.engine.model_store.resolution import (
    DEFAULT_MODEL,
    Route,
    find_here,
    list_models,
    path,
    pull,
    resolve_model,
    silent,
)
from flowforge.engine.model_store.store import (
    ModelLocation,
    ModelSource,
    ModelStore,
    Progress,
    store_root,
)

__all__ = [
    "DEFAULT_MODEL",
    "ModelLocation",
    "ModelSource",
    "ModelStore",
    "Progress",
    "Route",
    "find_here",
    "list_models",
    "path",
    "pull",
    "resolve_model",
    "silent",
    "store_root",
]
