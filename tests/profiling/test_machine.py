"""Where reports go."""

from __future__ import annotations

import datetime
from pathlib import Path

from profiling.machine import dated_name


def test_no_report_of_the_same_day_is_written_over(tmp_path: Path) -> None:
    today = datetime.date.today().isoformat()
    names = []
    for ending in ("json", "png", "json"):
        names.append(dated_name(tmp_path, "drafts"))
        (tmp_path / f"{names[-1]}.{ending}").touch()
    assert names == [f"{today}-drafts", f"{today}-drafts-2", f"{today}-drafts-3"]
    assert dated_name(tmp_path, "bench") == f"{today}-bench"
