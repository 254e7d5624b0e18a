"""Conversations to prompt text, through the Jinja template that a chat model carries.

Owns the checks on messages and the sandboxed rendering. Knows nothing of token ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def render_chat_template(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    template_tokens: Mapping[str, str],
) -> str:
    """The text of a conversation.

    The template runs in transformers' Jinja sandbox and reaches nothing but the messages and
    the names of the special tokens.

    Args:
        template: Jinja source.
        messages: each with a `role` and a `content`, both strings; other keys are the template's business.
        add_generation_prompt: end with the opening of the assistant's answer.
        template_tokens: what the template may name besides the messages, such as `bos_token`.

    Raises:
        TypeError: if a message is no mapping, or a role or content no string.
        ValueError: if there is no message, a key is missing, or the template refuses the messages or is broken.
    """
    conversation = _checked_messages(messages)
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            [conversation],
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **template_tokens,
        )
    except Exception as error:  # a template is a program of the checkpoint's author and may fail in any way
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    return str(rendered[0])


def _checked_messages(messages: object) -> list[dict[str, object]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"messages is {type(messages).__name__}, not a list of mappings with 'role' and 'content'")
    if not messages:
        raise ValueError("messages is empty; give at least one mapping with 'role' and 'content'")
    checked = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{index}] is {type(message).__name__}, not a mapping with 'role' and 'content'")
        for key in ("role", "content"):
            if key not in message:
                raise ValueError(f"messages[{index}] has no {key!r}; it has {sorted(map(str, message))}")
            if not isinstance(message[key], str):
                raise TypeError(f"messages[{index}][{key!r}] is {type(message[key]).__name__}, not str")
        checked.append(dict(message))
    return checked
