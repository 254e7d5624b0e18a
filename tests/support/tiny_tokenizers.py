"""Small vocabularies of both kinds, as GGUF metadata."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.pre_tokenizers import ByteLevel

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTROL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>")
SPACE = "\u2581"


def byte_level_metadata(
    merges: Sequence[str] = ("h e", "l l", "he ll", "hell o", "Ġ t", "Ġt he"), *, pre: str = "gpt-2"
) -> dict[str, object]:
    """Three control tokens, all 256 bytes, and what the merges make; 0 ends a text."""
    bytes_and_merges = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*CONTROL_TOKENS, *bytes_and_merges],
        "tokenizer.ggml.token_type": [3] * len(CONTROL_TOKENS) + [1] * len(bytes_and_merges),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def sentencepiece_metadata(
    pieces: Sequence[str] = (f"{SPACE}the", f"{SPACE}t", "he", "lo", "hello", "hel", "ab", "aba", f"{SPACE}{SPACE}"),
) -> dict[str, object]:
    """Unknown, begin and end of sequence (0, 1, 2), all 256 byte tokens, `pieces` from best score to worst, letters."""
    letters = [letter for letter in (SPACE, *"abehlot") if letter not in pieces]
    ordered = [*pieces, *letters]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *ordered],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(ordered),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(ordered))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
