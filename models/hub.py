"""Checkpoint folders from the Hugging Face hub.

Owns the choice of which files are fetched: configuration, tokenizer and safetensors, never pickles
or code. Knows nothing of what is in them; `huggingface_hub` keeps the cache.
"""

from __future__ import annotations

from pathlib import Path

from models.errors import CheckpointError, MissingDependencyError

WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_SUBFOLDERS = "*/*"


def fetch_snapshot(hub_id: str) -> Path:
    """The folder of a hub checkpoint in the local cache, fetched if need be.

    Without a network, or with `HF_HUB_OFFLINE=1`, what the cache has is used.

    Raises:
        CheckpointError: if the hub has no such checkpoint, access is denied, or it is neither
            reachable nor cached.
        MissingDependencyError: if huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    except ImportError as error:
        raise MissingDependencyError("pip install huggingface-hub") from error
    try:
        folder = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=list(WANTED_FILES), ignore_patterns=[_SUBFOLDERS]
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"access to {hub_id} on the hub has to be granted first; accept its terms there, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{hub_id} is neither a local path nor a model on the hub; check the name, or run `hf auth login` "
            "if it is private"
        ) from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"the hub could not deliver {hub_id}: {error}") from error
    except Exception as error:  # the library's network layers raise errors of several unrelated trees
        raise CheckpointError(
            f"{hub_id} is neither a local path nor in the hub's cache, and the hub cannot be reached; go online "
            f"(and unset HF_HUB_OFFLINE), or give a folder or a .gguf file: {error}"
        ) from error
    return Path(folder)
