"""Whether a draft can propose for a target: both must mean the same by a token id.

Owns the comparison of two tokenizers and of their models' logit widths. Knows nothing of how
proposals are made or judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import PairError
from models.tokenizer import Tokenizer

LARGEST_DRAFT_SHARE = 1 / 3
"""Above this share of the target's parameters a draft costs more time than its proposals save."""


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """What the decoding loop must know of a pair that fits together."""

    num_shared_ids: int
    """Ids 0 to this minus 1 mean the same to both models; the draft's logits from here on are to be masked."""
    draft_share: float | None
    """The draft's parameters divided by the target's; None if either is unknown."""
    warnings: tuple[str, ...]
    """Sentences for the user about what will work, but not well."""


def check_pair(
    target_tokenizer: Tokenizer,
    draft_tokenizer: Tokenizer,
    *,
    target_vocab_size: int,
    draft_vocab_size: int,
    target_num_parameters: int | None = None,
    draft_num_parameters: int | None = None,
) -> PairReport:
    """Hold the two tokenizers against each other.

    The draft may know further ids beyond all of the target's; they are masked like the padding of its logits.

    Args:
        target_tokenizer: reads the prompt and writes the text.
        draft_tokenizer: never used for text; only compared.
        target_vocab_size: width of the target's logit rows, padding included.
        draft_vocab_size: width of the draft's, likewise; either may be the wider.
        target_num_parameters: for the warning about a large draft.
        draft_num_parameters: likewise.

    Raises:
        PairError: if an id means another token, is special in one only, or ends a text in one only, or if the draft has
            no embedding for an id that the target can write; names the first such id.
    """
    num_target_ids = min(target_tokenizer.vocab_size, target_vocab_size)
    _check_same_tokens(target_tokenizer, draft_tokenizer, num_target_ids)
    _check_same_set("special", target_tokenizer, draft_tokenizer, num_target_ids)
    _check_same_set("end-of-sequence", target_tokenizer, draft_tokenizer, num_target_ids)
    if draft_vocab_size < num_target_ids:
        raise PairError(
            f"the draft's logits have {draft_vocab_size} columns, so it does not know id {draft_vocab_size} "
            f"({target_tokenizer.id_to_token(draft_vocab_size)!r}), which the target can write; "
            "choose a draft made for this tokenizer"
        )
    share = None
    warnings = []
    if target_num_parameters and draft_num_parameters:
        share = draft_num_parameters / target_num_parameters
        if share > LARGEST_DRAFT_SHARE:
            warnings.append(
                f"the draft has {share:.0%} of the target's parameters ({draft_num_parameters:,} of "
                f"{target_num_parameters:,}); above a third, drafting tends to cost more time than it saves"
            )
    return PairReport(num_shared_ids=num_target_ids, draft_share=share, warnings=tuple(warnings))


def _check_same_tokens(target: Tokenizer, draft: Tokenizer, num_ids: int) -> None:
    for token_id in range(num_ids):
        target_token, draft_token = target.id_to_token(token_id), draft.id_to_token(token_id)
        if target_token != draft_token:
            raise PairError(
                f"target and draft do not share a vocabulary: id {token_id} is {_shown(target_token)} in the target "
                f"and {_shown(draft_token)} in the draft; choose a draft with the target's own tokenizer"
            )


def _check_same_set(kind: str, target: Tokenizer, draft: Tokenizer, num_ids: int) -> None:
    ids = [
        {token_id for token_id in found if token_id < num_ids}
        for found in (
            (target.special_ids, draft.special_ids)
            if kind == "special"
            else (target.eos_token_ids, draft.eos_token_ids)
        )
    ]
    differing = sorted(ids[0] ^ ids[1])
    if differing:
        first = differing[0]
        owner = "target" if first in ids[0] else "draft"
        raise PairError(
            f"target and draft do not share their {kind} ids: {first} ({target.id_to_token(first)!r}) is one "
            f"in the {owner} only; choose a draft with the target's own tokenizer"
        )


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)
