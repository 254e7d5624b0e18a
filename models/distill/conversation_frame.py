"""What a chat template puts around messages, as token ids, so that a target can write both sides of a conversation.

Owns the finding of these pieces in any template. Knows nothing of sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.tokenizer import Tokenizer

_FIRST_USER, _ASSISTANT, _SECOND_USER = "zqfirstuserqz", "zqassistantqz", "zqseconduserqz"


@dataclass(frozen=True, kw_only=True)
class ConversationFrame:
    """Token ids between messages."""

    opening: tuple[int, ...]
    """Up to the first word of the first user's message."""
    to_assistant: tuple[int, ...]
    """From the end of a user's message to the answer's first word."""
    to_user: tuple[int, ...]
    """From the end of an answer to the next user's message."""
    turn_ends: frozenset[int]
    """Ids with which a message is over."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ConversationFrame:
        """Render a made-up conversation and cut it at its messages.

        Raises:
            ValueError: if the tokenizer has no chat template, or one that changes or reorders messages.
        """
        if not tokenizer.has_chat_template:
            raise ValueError(
                "this target has no chat template, so it cannot write conversations; "
                "have it go on from text instead (--kinds text)"
            )
        text = tokenizer.render_chat(
            [
                {"role": "user", "content": _FIRST_USER},
                {"role": "assistant", "content": _ASSISTANT},
                {"role": "user", "content": _SECOND_USER},
            ]
        )
        places = [text.find(mark) for mark in (_FIRST_USER, _ASSISTANT, _SECOND_USER)]
        if -1 in places or places != sorted(places):
            raise ValueError(
                "this target's chat template changes or reorders messages, so that it cannot be taken apart; "
                "have the target go on from text instead (--kinds text)"
            )
        first, second, third = places
        to_assistant = tokenizer.encode_rendered(text[first + len(_FIRST_USER) : second])
        to_user = tokenizer.encode_rendered(text[second + len(_ASSISTANT) : third])
        ends = {ids[0] for ids in (to_assistant, to_user) if ids and ids[0] in tokenizer.special_ids}
        return cls(
            opening=tuple(tokenizer.encode_rendered(text[:first])),
            to_assistant=tuple(to_assistant),
            to_user=tuple(to_user),
            turn_ends=frozenset(ends | tokenizer.eos_token_ids),
        )
