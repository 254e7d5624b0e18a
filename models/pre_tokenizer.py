"""How byte-level vocabularies cut text into words before merging, by the name that GGUF files carry.

Owns the table from `tokenizer.ggml.pre` to a `tokenizers` pre-tokenizer. Knows nothing of
vocabularies, files or models.

The cuts are llama.cpp's for the same names, so that a GGUF file gives the same ids here as there.
One deliberate difference: text for `qwen2` is brought to Unicode normal form C first, as the
tokenizer that Qwen publishes does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import normalizers, pre_tokenizers

# The patterns are data: a vocabulary is only right with exactly the cut it was trained with.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SINGLE_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_SYMBOLS_AND_SPACE}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """How one kind of byte-level vocabulary treats text before merging."""

    patterns: tuple[str, ...]
    """Each cuts what the one before left, into its matches and what lies between them."""
    normal_form_c: bool = False
    whole_words_first: bool = False
    """A word that is itself in the vocabulary is taken whole, whatever the merges say."""
    adds_bos: bool = False
    """What holds where the file does not say `add_bos_token`."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The same as a `tokenizers` object, ending in the byte-to-character map of GPT-2."""
        from tokenizers import Regex, pre_tokenizers

        cuts: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def build_normalizer(self) -> normalizers.Normalizer | None:
        """What is done to the text before it is cut; None leaves it alone."""
        from tokenizers import normalizers

        return normalizers.NFC() if self.normal_form_c else None


_PLAIN_GPT2 = PreTokenizer(patterns=(_GPT2,))
_GPT2_SINGLE_DIGITS = PreTokenizer(patterns=(_SINGLE_DIGIT, _GPT2))
_LLAMA3_WHOLE_WORDS = PreTokenizer(patterns=(_LLAMA3,), whole_words_first=True, adds_bos=True)
_QWEN2_NORMALISED = PreTokenizer(patterns=(_QWEN2,), normal_form_c=True)

_BY_NAME: dict[str, PreTokenizer] = {
    "default": PreTokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "mpt": _PLAIN_GPT2,
    "olmo": _PLAIN_GPT2,
    "smollm": _GPT2_SINGLE_DIGITS,
    "starcoder": _GPT2_SINGLE_DIGITS,
    "refact": _GPT2_SINGLE_DIGITS,
    "command-r": _GPT2_SINGLE_DIGITS,
    "codeshell": _GPT2_SINGLE_DIGITS,
    "llama-bpe": _LLAMA3_WHOLE_WORDS,
    "llama3": _LLAMA3_WHOLE_WORDS,
    "llama-v3": _LLAMA3_WHOLE_WORDS,
    "smaug-bpe": PreTokenizer(patterns=(_LLAMA3,)),
    "tekken": PreTokenizer(patterns=(_TEKKEN,), whole_words_first=True, adds_bos=True),
    "qwen2": _QWEN2_NORMALISED,
    "deepseek-r1-qwen": _QWEN2_NORMALISED,
    "stablelm2": PreTokenizer(patterns=(_QWEN2,)),
}


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """The treatment that goes with a `tokenizer.ggml.pre` value.

    Raises:
        UnsupportedModelError: if the name is not known here: a guess would give wrong ids without a sign of it.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"the GGUF file's pre-tokenizer is {name!r} (tokenizer.ggml.pre), which is not among "
            f"{', '.join(sorted(_BY_NAME))}; load the model from its Hugging Face folder instead"
        )
    return found
