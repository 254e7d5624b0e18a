"""Tokenizers built from GGUF metadata, kept on disk so that a model opens faster the next time.

Owns the cache entries. Knows nothing of how a tokenizer is built.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from models.gguf_tokenizer import GgufTokenizerMetadata, build_gguf_backend
from models.user_cache import user_cache_folder, write_atomically

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

CACHE_FORMAT = 1
"""Raised whenever the same metadata would build another tokenizer than before."""


def cached_gguf_backend(entries: GgufTokenizerMetadata, cache_key: str | None) -> tokenizers.Tokenizer:
    """The built tokenizer from the user's cache, or built and put there; a damaged entry is built again."""
    import tokenizers

    if cache_key is None:
        return build_gguf_backend(entries)
    identity = f"{CACHE_FORMAT}\0{tokenizers.__version__}\0{cache_key}"
    path = user_cache_folder() / "tokenizers" / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
        if digest.decode("ascii", "replace") == hashlib.sha256(content).hexdigest():
            return tokenizers.Tokenizer.from_str(content.decode())
        logger.warning("the cached tokenizer %s is damaged; building it again", path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("the tokenizer cache cannot be read (%s); building the tokenizer again", error)
    backend = build_gguf_backend(entries)
    content = backend.to_str().encode()
    try:
        write_atomically(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    except OSError as error:
        logger.warning("the tokenizer cannot be cached (%s); it will be built again next time", error)
    return backend
