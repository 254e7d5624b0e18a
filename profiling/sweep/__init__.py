"""The gamma sweep: which gamma is the fastest for one pair, on one machine, by kind of prompt and mode.

    python -m profiling.sweep

`settings` is what was asked for, `run` what is measured, `turns` the order of it and `answering` how, `journal` keeps
it through an interruption, `rows` and `acceptance` make figures of it, `recommendation` chooses, and `report`, `page`
and `plots` show it. `__main__` is the program.
"""

from __future__ import annotations

__all__: list[str] = []
