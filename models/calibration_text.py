"""What a model reads while its activations are measured: a little English, a little chat, a little code.

Owns the texts alone. Knows nothing of models. Few, because only the largest magnitude of each feature is asked for; of
several kinds, because features that are quiet in one kind are loud in another.
"""

from __future__ import annotations

PROSE = """\
The ferry left at a quarter past six, while the harbour lamps were still lit, and by the time the sun had cleared \
the hills on the eastern shore most of the passengers were asleep on their luggage. Anna stayed at the rail. She had \
crossed this water forty times in 1987 alone, when her father ran the weather station at the far end of the island, \
and she knew that the wind would turn before noon. "Three degrees colder out there than the forecast says," the mate \
told her; she nodded, because it always was.

Bread needs four things: flour, water, salt and time. The first three can be weighed. A dough of 500 g of flour, 350 g \
of water and 10 g of salt will rise in about five hours at 21 °C with a spoonful of starter, and in about fourteen in \
a cold larder. What happens meanwhile is chemistry: enzymes cut starch into sugars, yeast turns the sugars into gas, \
and the gas is held by a net of protein that formed when the flour was first wetted.

Under the revised agreement, the tenant shall give notice in writing no later than ninety (90) days before the end of \
the term; failing such notice, the lease renews for one further year on the same conditions, except that the rent may \
be raised by at most 2.5 per cent. Disputes are heard by the district court (see § 14, paragraph 3).

Photosynthesis is the process by which plants, algae and some bacteria turn light into chemical energy. It was studied \
by Jan Ingenhousz in the eighteenth century, who showed that only the green parts of a plant give off oxygen, and only \
in the light. Table 2 lists the yields: wheat 3.1 t/ha, maize 5.9 t/ha, rice 4.7 t/ha.
"""

QUESTION = "I have two days in Lisbon in November and I don't like crowds. What should I see? Also, will I need a coat?"

ANSWER = """\
Two days is enough for a good first look! Here is a quiet plan:

1. **Day one.** Walk through Alfama early, before nine, then take the tram along the river to Belém. The tile museum \
is rarely full.
2. **Day two.** Spend the morning in the gardens of the Gulbenkian Foundation and the afternoon on the other bank; the \
boat costs less than 2 euros.

November is mild (11 to 18 °C) but often wet, so bring a light rain jacket rather than a heavy coat. Would you like \
me to suggest places to eat as well?"""

CODE = '''\
import csv
from collections import defaultdict
from pathlib import Path


class Ledger:
    """Sums the amounts of each account."""

    def __init__(self, path: Path, *, currency: str = "EUR") -> None:
        self.path = path
        self.currency = currency
        self._totals: dict[str, float] = defaultdict(float)

    def read(self) -> int:
        count = 0
        with self.path.open(newline="") as file:
            for row in csv.DictReader(file, delimiter=";"):
                if row["currency"] != self.currency or not row["amount"]:
                    continue  # another book keeps these
                self._totals[row["account"]] += float(row["amount"].replace(",", "."))
                count += 1
        return count

    def largest(self, n: int = 10) -> list[tuple[str, float]]:
        return sorted(self._totals.items(), key=lambda item: -item[1])[:n]


# SELECT account, SUM(amount) FROM entries WHERE currency = 'EUR' GROUP BY account ORDER BY 2 DESC LIMIT 10;
static inline uint32_t rotate_left(uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }
$ curl -s https://example.org/api/v2/items?page=3 | jq '.items[] | {id, name, "price": .price_cents / 100}'
{"id": 4711, "name": "kettle, steel", "price": 39.9, "tags": ["kitchen", "new"], "in_stock": true, "parent": null}
'''
