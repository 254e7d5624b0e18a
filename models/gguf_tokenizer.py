"""Tokenizers from the metadata of a GGUF file (`tokenizer.ggml.*`).

Owns the reading of that metadata and the building of a `tokenizers` object from it: byte-level
BPE (`gpt2`) and SentencePiece BPE with byte fallback (`llama`). Knows nothing of how the file is read,
and nothing of where the built tokenizer is kept.

Metadata keys and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from models.errors import CheckpointError, UnsupportedModelError
from models.pre_tokenizer import pre_tokenizer_named

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

SPACE_MARK = "\u2581"
"""What SentencePiece writes for a space."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_NEVER_MERGED = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE})


class GgufTokenizerMetadata:
    """Typed access to the `tokenizer.*` entries of one file; every complaint names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def string(self, key: str) -> str | None:
        """The string under `tokenizer.<key>`, or None where there is none."""
        value = self._metadata.get(f"tokenizer.{key}")
        if value is not None and not isinstance(value, str):
            raise CheckpointError(f"GGUF metadata tokenizer.{key} is {type(value).__name__}, not a string")
        return value

    def flag(self, key: str) -> bool | None:
        """The boolean under `tokenizer.ggml.<key>`, or None where there is none."""
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if type(value).__name__ not in {"bool", "bool_"}:
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.{key} is {value!r}, not a boolean")
        return bool(value)

    def token_id(self, key: str) -> int | None:
        """The token id under `tokenizer.ggml.<key>`, or None where there is none."""
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        return _integer(value, f"tokenizer.ggml.{key}")

    def strings(self, key: str) -> list[str] | None:
        """The array of strings under `tokenizer.ggml.<key>`."""
        values = self._array(key)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.{key} holds something other than strings")
        return values  # type: ignore[return-value]  # every item was just checked

    def numbers(self, key: str, length: int) -> list[float] | None:
        """The array of numbers under `tokenizer.ggml.<key>`, one for each of `length` tokens."""
        values = self._array(key)
        if values is None:
            return None
        if len(values) != length:
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.{key} has {len(values)} items for {length} tokens")
        try:
            numbers = [float(value) for value in values]  # type: ignore[arg-type]  # what is no number raises below
        except (TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.{key} holds something other than numbers") from error
        if not all(map(math.isfinite, numbers)):
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.{key} holds a number that is not finite")
        return numbers

    def _array(self, key: str) -> list[object] | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.{key} is {type(value).__name__}, not an array")
        return list(value)


def _integer(value: object, key: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise CheckpointError(f"GGUF metadata {key} is {value!r}, not an integer")
    return int(value.__index__())


def build_gguf_backend(metadata: GgufTokenizerMetadata) -> tokenizers.Tokenizer:
    """The `tokenizers` object that a GGUF file describes.

    A beginning-of-sequence token is added to encoded text where the file (or, where it is silent,
    its kind of vocabulary) says so. An end-of-sequence token never is: a prompt is there to be continued.

    Raises:
        CheckpointError: if an entry is missing or malformed.
        UnsupportedModelError: if the vocabulary is of another kind or its pre-tokenizer is not known.
    """
    model = metadata.string("ggml.model")
    tokens = metadata.strings("tokens")
    if model is None or not tokens:
        raise CheckpointError(
            f"GGUF metadata has no tokenizer.ggml.{'model' if model is None else 'tokens'}; "
            "the file was written without its tokenizer"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(index for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise CheckpointError(
            f"GGUF metadata tokenizer.ggml.tokens holds {tokens[twice]!r} twice, "
            f"as ids {twice} and {vocabulary[tokens[twice]]}"
        )
    token_types = [
        int(kind) for kind in metadata.numbers("token_type", len(tokens)) or [TokenType.NORMAL] * len(tokens)
    ]
    try:
        if model == "gpt2":
            backend, adds_bos = _byte_level(metadata, vocabulary)
        elif model == "llama":
            backend, adds_bos = _sentencepiece(metadata, vocabulary, token_types)
        else:
            raise UnsupportedModelError(
                f"the GGUF file's vocabulary is of kind {model!r} (tokenizer.ggml.model); only 'gpt2' (byte-level BPE) "
                "and 'llama' (SentencePiece BPE) can be read; load the model from its Hugging Face folder instead"
            )
        _add_special_tokens(backend, tokens, token_types)
    except (CheckpointError, UnsupportedModelError):
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for merges that name no token
        raise CheckpointError(f"the GGUF file's tokenizer cannot be built: {error}") from error
    told_to_add = metadata.flag("add_bos_token")
    if adds_bos if told_to_add is None else told_to_add:
        _add_bos(backend, metadata, tokens)
    return backend


def _byte_level(metadata: GgufTokenizerMetadata, vocabulary: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    name = metadata.string("ggml.pre")
    if name is None:
        logger.warning("the GGUF file names no pre-tokenizer (tokenizer.ggml.pre); using 'default', ids may be off")
        name = "default"
    treatment = pre_tokenizer_named(name)
    backend = Tokenizer(
        BPE(vocab=vocabulary, merges=_merges(metadata), fuse_unk=False, ignore_merges=treatment.whole_words_first)
    )
    normalizer = treatment.build_normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = treatment.build()
    backend.decoder = decoders.ByteLevel()
    return backend, treatment.adds_bos


def _merges(metadata: GgufTokenizerMetadata) -> list[tuple[str, str]]:
    lines = metadata.strings("merges")
    if lines is None:
        raise CheckpointError("GGUF metadata has no tokenizer.ggml.merges, which a byte-level vocabulary needs")
    merges = []
    for line in lines:
        left, separator, right = line.partition(" ")
        if not (left and separator and right):
            raise CheckpointError(f"GGUF metadata tokenizer.ggml.merges holds {line!r}, which is no pair")
        merges.append((left, right))
    return merges


def _sentencepiece(
    metadata: GgufTokenizerMetadata, vocabulary: dict[str, int], token_types: list[int]
) -> tuple[tokenizers.Tokenizer, bool]:
    """SentencePiece BPE: always the adjacent pair whose joined piece scores highest, bytes for what is left over."""
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    scores = metadata.numbers("scores", len(vocabulary))
    if scores is None:
        raise CheckpointError("GGUF metadata has no tokenizer.ggml.scores, which a SentencePiece vocabulary needs")
    unknown = next((token for token, index in vocabulary.items() if token_types[index] == TokenType.UNKNOWN), None)
    backend = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges_from_scores(vocabulary, token_types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    says_prefix = metadata.flag("add_space_prefix")
    adds_prefix = True if says_prefix is None else says_prefix
    marks = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), marks]) if adds_prefix else marks
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend, True


def _merges_from_scores(
    vocabulary: dict[str, int], token_types: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the joined piece first."""
    mergeable = {token: index for token, index in vocabulary.items() if token_types[index] not in _NEVER_MERGED}
    ranked = sorted(mergeable, key=lambda token: (-scores[mergeable[token]], mergeable[token]))
    merges = []
    for piece in ranked:
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(left, right) for left, right in splits if left in mergeable and right in mergeable]
        merges += sorted(known, key=lambda split: (mergeable[split[0]], mergeable[split[1]]))
    return merges


def _add_special_tokens(backend: tokenizers.Tokenizer, tokens: list[str], token_types: list[int]) -> None:
    """Control tokens are special (dropped when text is read back), user-defined ones are taken whole but are text."""
    from tokenizers import AddedToken

    special = {TokenType.CONTROL, TokenType.UNKNOWN}
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, token_types, strict=True)
            if kind in special
        ]
    )
    backend.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(tokens, token_types, strict=True)
            if kind == TokenType.USER_DEFINED
        ]
    )


def _add_bos(backend: tokenizers.Tokenizer, metadata: GgufTokenizerMetadata, tokens: list[str]) -> None:
    from tokenizers.processors import TemplateProcessing

    bos_token_id = metadata.token_id("bos_token_id")
    if bos_token_id is None or not 0 <= bos_token_id < len(tokens):
        raise CheckpointError(
            f"GGUF metadata asks for a beginning-of-sequence token, but tokenizer.ggml.bos_token_id is {bos_token_id} "
            f"and there are {len(tokens)} tokens"
        )
    backend.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", bos_token_id)]
    )
