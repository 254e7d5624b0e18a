"""What each sequence begins with, and what is put into it when a message is over.

Owns the mixture of kinds and the drawing of openings and snippets: a pure function of a seed and the number of a
sequence. Knows nothing of models.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from models.distill.conversation_frame import ConversationFrame
from models.distill.openings import CHAT_OPENINGS, CODE_OPENINGS, CODE_REQUESTS, COPY_REQUESTS, PASSAGE_OPENINGS
from models.distill.snippets import Snippets
from models.distill.text_kind import TextKind
from models.tokenizer import Tokenizer

_UNPROMPTED_SHARE = 0.4
"""Of chat sequences: the target writes the question from its first word."""
_OWN_PASSAGE_SHARE = 0.6
"""Of requests about a passage: the target writes the passage too, as no snippet is like the one before."""
_SNIPPET_WORDS = (40, 110)
_CONTEXT_WORDS = (4, 40)


@dataclass(frozen=True, kw_only=True)
class SequenceSeed:
    """The first tokens of one sequence."""

    kind: TextKind
    forced_ids: tuple[int, ...]
    """Not written by the target."""
    writes_question: bool
    """Whether the target goes on inside a user's message, which it then ends by itself."""
    temperature: float
    """Of answers; questions are always drawn at 1, or they would all be the same few."""


class SeedSource:
    """Draws the seeds of sequences for one target."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        kinds: Sequence[TextKind],
        snippets: Snippets,
        temperatures: Sequence[float],
        seed: int,
    ) -> None:
        """Take the target's tokenizer apart where conversations are wanted.

        Raises:
            ValueError: if there is no usable chat template although a kind wants one.
        """
        self._tokenizer = tokenizer
        self._kinds = tuple(kinds)
        self._snippets = snippets
        self._temperatures = tuple(temperatures)
        self._seed = seed
        talks = any(kind is not TextKind.TEXT for kind in self._kinds)
        self.frame = ConversationFrame.of(tokenizer) if talks else None

    def seed(self, number: int) -> SequenceSeed:
        """Of the sequence with that number; kinds and temperatures take turns."""
        rng = random.Random(f"{self._seed}/{number}")
        kind = self._kinds[number % len(self._kinds)]
        temperature = self._temperatures[number // len(self._kinds) % len(self._temperatures)]
        if self.frame is None or kind is TextKind.TEXT:
            return SequenceSeed(
                kind=kind, forced_ids=self._beginning(rng), writes_question=False, temperature=temperature
            )
        return self._conversation(kind, temperature, rng)

    def follow_up(self, first: SequenceSeed, number: int, num_written: int, end_id: int) -> SequenceSeed:
        """What comes behind an answer, from the id that ended it on: a further question, or a new conversation.

        A small target that is left to itself for many turns at temperature 1 drifts away from anything that a person
        would ask for, so every other time it starts afresh; the kind stays.

        Args:
            first: the sequence's own seed.
            number: of the sequence.
            num_written: tokens so far.
            end_id: with which the answer ended.

        Raises:
            ValueError: if the seeds are not of conversations.
        """
        if self.frame is None:
            raise ValueError("only conversations have follow-ups")
        rng = random.Random(f"{self._seed}/{number}/{num_written}")
        if rng.random() < 0.5:
            openings = CODE_OPENINGS if first.kind is TextKind.CODE else CHAT_OPENINGS
            question = self._tokenizer.encode_rendered(rng.choice(openings))
            return dataclasses.replace(first, forced_ids=(*self.frame.to_user, *question), writes_question=True)
        anew = self._conversation(first.kind, first.temperature, rng)
        return dataclasses.replace(anew, forced_ids=(end_id, *anew.forced_ids))

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a text."""
        return self._tokenizer.eos_token_ids

    def beginning_of_text(self) -> tuple[int, ...]:
        """What a new text of a base model starts with: its beginning-of-text id, or its end-of-text id."""
        bos_id = self._tokenizer.bos_token_id
        if bos_id is not None:
            return (bos_id,)
        return tuple(sorted(self._tokenizer.eos_token_ids))[:1]

    def _conversation(self, kind: TextKind, temperature: float, rng: random.Random) -> SequenceSeed:
        if self.frame is None:
            raise ValueError("there is no chat template to open a conversation with")
        text, complete = _request(kind, rng, self._snippets)
        ids = [*self.frame.opening, *self._tokenizer.encode_rendered(text)]
        if complete:
            ids += self.frame.to_assistant
        return SequenceSeed(kind=kind, forced_ids=tuple(ids), writes_question=not complete, temperature=temperature)

    def _beginning(self, rng: random.Random) -> tuple[int, ...]:
        beginning = self.beginning_of_text()
        if self._snippets.prose and (not beginning or rng.random() < 0.5):
            context = _first_words(rng.choice(self._snippets.prose), rng.randint(*_CONTEXT_WORDS))
            return (*beginning, *self._tokenizer.encode_rendered(context))
        return beginning or (0,)


def _request(kind: TextKind, rng: random.Random, snippets: Snippets) -> tuple[str, bool]:
    """Text of a user's message, and whether it is complete."""
    if kind is TextKind.COPY and (not snippets.prose or rng.random() < _OWN_PASSAGE_SHARE):
        request = rng.choice([request for request in COPY_REQUESTS if request.endswith("{}")])
        return request.format(rng.choice(PASSAGE_OPENINGS)), False
    if kind is TextKind.COPY:
        return rng.choice(COPY_REQUESTS).format(_first_words(rng.choice(snippets.prose), _SNIPPET_WORDS[1])), True
    if kind is TextKind.CODE and snippets.functions and rng.random() < 0.5:
        return rng.choice(CODE_REQUESTS).format(rng.choice(snippets.functions)), True
    if kind is TextKind.CODE:
        return rng.choice(CODE_OPENINGS), False
    return ("" if rng.random() < _UNPROMPTED_SHARE else rng.choice(CHAT_OPENINGS)), False


def _first_words(text: str, num_words: int) -> str:
    """The first words with the spaces and line ends between them."""
    seen = 0
    for index, character in enumerate(text):
        if character.isspace() and index and not text[index - 1].isspace():
            seen += 1
            if seen == num_words:
                return text[:index]
    return text
