"""Text to token ids and back, the same for every checkpoint format.

Owns `Tokenizer` and what it takes from a Hugging Face folder or a GGUF file. Knows nothing of
streaming, requests or models' weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from models.chat_template import render_chat_template
from models.errors import CheckpointError, UnsupportedModelError
from models.gguf_tokenizer import GgufTokenizerMetadata
from models.gguf_tokenizer_cache import cached_gguf_backend
from models.json_file import read_json_object

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """A vocabulary with its rules, end-of-sequence ids and chat template.

    Immutable, and safe to use from several threads at once.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        bos_token_id: int | None = None,
        chat_template: str | None = None,
        template_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a `tokenizers` object.

        Args:
            backend: owned by this object from now on; truncation and padding are turned off.
            eos_token_ids: ids that end a text.
            bos_token_id: the id that begins one, if there is such an id; `encode` adds it only if `backend` does.
            chat_template: Jinja source that renders messages to text.
            template_tokens: what the template may name besides the messages, such as `bos_token`.

        Raises:
            CheckpointError: if an end-of-sequence or beginning-of-sequence id is not in the vocabulary.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat_template = chat_template
        self._template_tokens = dict(template_tokens or {})
        self.eos_token_ids = frozenset(eos_token_ids)
        self.bos_token_id = bos_token_id
        for name, token_id in [("bos", bos_token_id), *(("eos", token_id) for token_id in self.eos_token_ids)]:
            if token_id is not None and _token(backend, token_id) is None:
                raise CheckpointError(
                    f"the {name} token id {token_id} is not in the tokenizer's vocabulary of {self.vocab_size} ids"
                )

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read the tokenizer of a Hugging Face folder with transformers; code shipped in it is never run.

        End-of-sequence ids are the tokenizer's own together with those of `generation_config.json`, or of
        `config.json` where the former names none.

        Raises:
            CheckpointError: if there is no tokenizer or its files are malformed.
            UnsupportedModelError: if it needs code from the folder or has no `tokenizers` form.
        """
        folder = Path(folder)
        settings = _read_settings(folder / "tokenizer_config.json")
        auto_map = settings.get("auto_map")
        if isinstance(auto_map, dict) and "AutoTokenizer" in auto_map:
            raise UnsupportedModelError(
                f"the tokenizer in {folder} is Python code shipped with the checkpoint (auto_map in "
                "tokenizer_config.json), which is never run; convert it to a tokenizer.json first"
            )
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
            raise CheckpointError(
                f"{folder} holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json); "
                "save one there with transformers' tokenizer.save_pretrained(folder)"
            )
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers and tokenizers raise nearly everything for malformed files
            raise CheckpointError(f"the tokenizer in {folder} cannot be read: {error}") from error
        backend = getattr(loaded, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(
                f"the tokenizer class {type(loaded).__name__} in {folder} has no form that the tokenizers library runs"
            )
        template = loaded.chat_template
        return cls(
            backend,
            eos_token_ids=_folder_eos_token_ids(folder, loaded.eos_token_id),
            bos_token_id=loaded.bos_token_id,
            chat_template=template.get("default") if isinstance(template, dict) else template,
            template_tokens={name: str(token) for name, token in loaded.special_tokens_map.items()},
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], *, cache_key: str | None = None) -> Tokenizer:
        """Build the tokenizer that a GGUF file's metadata describes.

        Args:
            metadata: every key and value of the file's header; arrays as sequences or NumPy arrays.
            cache_key: an identity of the metadata, other wherever the metadata is; the built tokenizer is kept
                under it in the user's cache folder. None builds anew.

        Raises:
            CheckpointError: if an entry is missing or malformed.
            UnsupportedModelError: if the vocabulary is of another kind or its pre-tokenizer is not known.
        """
        entries = GgufTokenizerMetadata(metadata)
        backend = cached_gguf_backend(entries, cache_key)
        named_ids = {name: entries.token_id(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
        named_ids |= {"unk": entries.token_id("unknown_token_id"), "pad": entries.token_id("padding_token_id")}
        template_tokens = {
            f"{name}_token": token
            for name in ("bos", "eos", "unk", "pad")
            if (token_id := named_ids[name]) is not None and (token := _token(backend, token_id)) is not None
        }
        return cls(
            backend,
            eos_token_ids=[token_id for name in ("eos", "eot", "eom") if (token_id := named_ids[name]) is not None],
            bos_token_id=named_ids["bos"],
            chat_template=entries.string("chat_template") or None,
            template_tokens=template_tokens,
        )

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id; a model's logit rows may be wider."""
        return max(self._vocabulary.values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which `decode` leaves out unless asked otherwise."""
        return frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )

    @cached_property
    def byte_fallback_ids(self) -> frozenset[int]:
        """Ids that stand for one byte of a character outside the vocabulary (`<0xE2>`).

        Empty for byte-level vocabularies. A run of them is a text only as a whole: one byte that fits nowhere turns
        every character of its run into U+FFFD.
        """
        decoder = self._backend.decoder
        if decoder is None or decoder.decode(["<0x41>"]) != "A":
            return frozenset()
        names = (f"<0x{byte:02X}>" for byte in range(256))
        return frozenset(token_id for name in names if (token_id := self._vocabulary.get(name)) is not None)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return self._chat_template is not None

    def vocabulary(self) -> dict[str, int]:
        """Every token with its id, added ones included; a copy."""
        return dict(self._vocabulary)

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None where no token has this id."""
        return _token(self._backend, token_id)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with a beginning-of-sequence id if the tokenizer itself adds one.

        Control tokens spelled out in the text (`<|im_end|>`) become their ids.

        Raises:
            TypeError: if `text` is no string.
            ValueError: if it holds a lone surrogate, which no encoding can carry.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}, not str")
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, as the chat template renders it.

        The template runs in transformers' Jinja sandbox and can reach nothing but the messages and
        the names of the special tokens.

        Args:
            messages: each with a `role` and a `content`, both strings; other keys are the template's business.
            add_generation_prompt: end with the opening of the assistant's answer.

        Raises:
            TypeError: if a message is no mapping, or a role or content no string.
            ValueError: if there is no template, no message, a key is missing, or the template refuses the messages.
        """
        return self.encode_rendered(self.render_chat(messages, add_generation_prompt=add_generation_prompt))

    def render_chat(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True) -> str:
        """The text that `encode_chat` encodes; same arguments and errors."""
        if self._chat_template is None:
            raise ValueError("this tokenizer has no chat template; pass the prompt as text or as token ids instead")
        return render_chat_template(
            self._chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            template_tokens=self._template_tokens,
        )

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of text that a chat template rendered, or a part of it: nothing is added in front.

        Raises:
            ValueError: if it holds a lone surrogate, which no encoding can carry.
        """
        return self._encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that form no character become U+FFFD, ids without a token give nothing."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    def _encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text holds a lone surrogate at character {error.start}; replace it first") from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids


def _token(backend: tokenizers.Tokenizer, token_id: int) -> str | None:
    """The token of an id, None also for ids that the library cannot even represent."""
    return backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None


def _read_settings(path: Path) -> dict[str, object]:
    """A JSON object, empty where there is no such file."""
    return read_json_object(path) if path.exists() else {}


def _folder_eos_token_ids(folder: Path, own_id: int | None) -> set[int]:
    found = set() if own_id is None else {own_id}
    for name in ("generation_config.json", "config.json"):
        declared = _read_settings(folder / name).get("eos_token_id")
        if declared is None:
            continue
        ids = declared if isinstance(declared, list) else [declared]
        if not all(type(token_id) is int for token_id in ids):
            raise CheckpointError(f"eos_token_id in {folder / name} is {declared!r}, not an id or a list of ids")
        return found | set(ids)
    return found
