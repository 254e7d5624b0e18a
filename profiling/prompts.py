"""Prompts for measurements: three kinds of work, none of them used twice in a run.

Owns the texts. A kind stands for how much of the output is already in the input: little in chat, some in code,
most when a text is to be copied with small changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from models import Tokenizer

Message = Mapping[str, str]


class PromptKind(StrEnum):
    """What the model is asked to do."""

    CODE = "code"
    CHAT = "chat"
    COPY = "copy"


@dataclass(frozen=True, kw_only=True)
class BenchPrompt:
    """One conversation to be continued."""

    kind: PromptKind
    messages: tuple[Message, ...]


_CODE = (
    (
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
        "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n",
        "Rewrite this class so that it also has the methods peek, size and is_empty. Show the whole class.",
    ),
    (
        "def area(shape, width, height):\n    if shape == 'rectangle':\n        return width * height\n"
        "    if shape == 'triangle':\n        return width * height / 2\n    raise ValueError(shape)\n",
        "Add a branch for an ellipse and one for a square, and print the whole function again.",
    ),
    (
        "import csv\n\ndef read_rows(path):\n    with open(path, newline='') as file:\n"
        "        reader = csv.DictReader(file)\n        return [row for row in reader]\n",
        "Write a function write_rows in the same style, then show both functions.",
    ),
    (
        "SELECT customer.name, SUM(orders.total) AS spent\nFROM customer\n"
        "JOIN orders ON orders.customer_id = customer.id\nGROUP BY customer.name\nORDER BY spent DESC;\n",
        "Change the query so that only orders of the year 2024 count. Show the whole query.",
    ),
    (
        "function debounce(callback, delay) {\n  let timer;\n  return (...args) => {\n    clearTimeout(timer);\n"
        "    timer = setTimeout(() => callback(...args), delay);\n  };\n}\n",
        "Write throttle in the same style and show debounce and throttle together.",
    ),
    (
        "def mean(values):\n    return sum(values) / len(values)\n\ndef variance(values):\n    middle = mean(values)\n"
        "    return sum((value - middle) ** 2 for value in values) / len(values)\n",
        "Add a function for the standard deviation and one for the median to this module, and show all of it.",
    ),
)

_CHAT = (
    "Explain to a ten-year-old why the sky is blue and why sunsets are red.",
    "I have an interview tomorrow for a job as a librarian. How should I prepare for it tonight?",
    "What is the difference between weather and climate? Give an example of each.",
    "Tell me a short story about a lighthouse keeper who finds a message in a bottle.",
    "Which vegetables can I plant in early spring in a small garden, and how far apart?",
    "How do noise-cancelling headphones work, and why do they struggle with voices?",
)

_COPY = (
    "The harbour of Lindesund opens at six in the morning. Ships longer than forty metres must call the pilot "
    "station one hour before they arrive. The pilot boards two miles west of the lighthouse. Fishing boats "
    "may enter without a pilot, but they must keep to the northern channel. The harbour closes at ten in the "
    "evening, and ships that come later wait in the outer basin until morning.",
    "Marta Kowalczyk founded the bakery in 1987 with a loan from her uncle. In the first year she sold only "
    "rye bread and poppy seed rolls. By 1995 the bakery had eleven employees and a second shop near the "
    "railway station. Her daughter Anna took over in 2012 and added a small café. Today the bakery delivers "
    "bread to forty restaurants in the region.",
    "To reset the controller, hold the blue button for eight seconds until the light blinks twice. Release "
    "the button and wait for the light to turn green. If the light stays red, unplug the controller, wait one "
    "minute, and plug it in again. Then hold the blue button for eight seconds once more. If the light is "
    "still red, contact the service centre and give the serial number on the back.",
    "The river Ansel rises in the Grey Hills and flows for two hundred kilometres to the sea. In its upper "
    "course it is narrow and fast, with many rapids. Below the town of Merrow it becomes wide and slow, and "
    "barges can use it. The river floods every few years in spring, when the snow in the hills melts. After "
    "the flood of 1954 a dam was built above Merrow.",
    "Members may borrow up to six books for four weeks. A loan can be extended once, unless another member "
    "has asked for the book. Films and music may be borrowed for one week and cannot be extended. A member "
    "who returns a book late pays twenty cents for each day. Lost books must be replaced or paid for. "
    "Reference books may not leave the reading room.",
    "The committee met on the third of May in the town hall. All nine members were present. The chair "
    "reported that the new playground will open in July. The treasurer reported that the accounts are in "
    "order. The committee decided to repair the roof of the sports hall before winter and to ask three firms "
    "for offers. The next meeting will be held on the seventh of June.",
)

_COPY_REQUESTS = (
    "Copy the following text word for word, but begin with the line 'Notice to all':",
    "Correct the spelling mistakes in this text, if there are any, and repeat the whole text:",
    "Repeat this text exactly and add one sentence of your own at the end:",
)


def bench_prompts(kind: PromptKind) -> tuple[BenchPrompt, ...]:
    """All prompts of a kind; each is to be used for one timed run per system."""
    if kind is PromptKind.CODE:
        requests = [f"{request}\n\n```\n{code}```" for code, request in _CODE]
    elif kind is PromptKind.CHAT:
        requests = list(_CHAT)
    else:
        requests = [
            f"{_COPY_REQUESTS[index % len(_COPY_REQUESTS)]}\n\n{passage}" for index, passage in enumerate(_COPY)
        ]
    return tuple(BenchPrompt(kind=kind, messages=({"role": "user", "content": request},)) for request in requests)


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """A conversation as token ids; plain text where the model has no chat template."""
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat(messages)
    return tokenizer.encode("\n".join(message["content"] for message in messages))
