"""The cache folder's place on each platform, and the atomic write."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from models.user_cache import user_cache_folder, write_atomically


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "/home/rider/.cache/slipstream"),
        ("linux", {"XDG_CACHE_HOME": "/var/xdg"}, "/var/xdg/slipstream"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/rider/.cache/slipstream"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/rider/.cache/slipstream"),
        ("linux", {"XDG_CACHE_HOME": "/var/xdg", "SLIPSTREAM_CACHE": "/data/cache"}, "/data/cache"),
        ("linux", {"SLIPSTREAM_CACHE": "~/cache"}, "/home/rider/cache"),
        ("darwin", {}, "/home/rider/Library/Caches/slipstream"),
        ("darwin", {"XDG_CACHE_HOME": "/var/xdg"}, "/var/xdg/slipstream"),
        ("win32", {"LOCALAPPDATA": "/home/rider/AppData/Local"}, "/home/rider/AppData/Local/slipstream"),
        ("win32", {}, "/home/rider/.cache/slipstream"),
    ],
)
def test_the_folder(monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str) -> None:
    for name in ("SLIPSTREAM_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/rider")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert user_cache_folder() == Path(expected)


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "entry"
    write_atomically(path, b"first, and longer")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert [child.name for child in path.parent.iterdir()] == ["entry"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "entry"
    write_atomically(path, b"first")

    def refuse(source: object, target: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert [child.name for child in tmp_path.iterdir()] == ["entry"]


@pytest.mark.skipif(os.name != "posix", reason="a umask is POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_others_may_read_a_file_as_far_as_the_umask_lets_them(umask: int, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "entry"
    before = os.umask(umask)
    try:
        write_atomically(path, b"first")
        write_atomically(path, b"second")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
