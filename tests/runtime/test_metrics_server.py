"""`/metrics` over HTTP: the server by itself, and with the command line."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime import MetricsServer, MissingDependencyError, Runtime
from runtime.cli import main
from tests.support.command_line import start_command
from tests.support.table_runtime import build_rig
from tests.support.tiny_checkpoint import write_tiny_gguf


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def scrape(url: str) -> dict[str, float]:
    """What a server shows of a single runtime, without labels."""
    # What Prometheus sends; it prefers a format in which the client would rename what has a colon.
    accepted = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accepted}), timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_a_server_answers_until_it_is_closed() -> None:
    rig = build_rig()
    async with rig.runtime as runtime:
        with MetricsServer(0) as server:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", server.url)
            assert scrape(server.url) == {}, "before a runtime is loaded there is nothing to tell"
            server.collector.add(runtime)
            await runtime.generate([5, 17, 40], max_tokens=7, ignore_eos=True)
            assert scrape(server.url)["slipstream:generation_tokens_total"] == 7
        server.close()
        with pytest.raises(OSError):
            scrape(server.url)
        port = int(server.url.split(":")[2].partition("/")[0])
        with MetricsServer(port, prefix="vllm:") as again:
            assert again.url == server.url
            again.collector.add(runtime)
            assert scrape(again.url)["vllm:generation_tokens_total"] == 7


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_can_be_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"port must be between 0 and 65535, got {port}; 0 takes a free one"):
        MetricsServer(port)


def test_a_taken_port_is_named(taken_port: int) -> None:
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{taken_port}: .+; choose another port, or 0 for a free one"):
        MetricsServer(taken_port)


def test_a_port_is_never_shared() -> None:
    with MetricsServer(0) as server:
        port = int(server.url.split(":")[2].partition("/")[0])
        with pytest.raises(OSError, match="choose another port"):
            MetricsServer(port)


def refuse_to_load(**options: object) -> NoReturn:
    pytest.fail("a model was loaded first")


@pytest.mark.parametrize("port", ["-1", "65536", "http", "", "９４００"])
def test_a_wrong_port_is_wrong_usage(
    port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "load", refuse_to_load)
    assert main([f"--metrics-port={port}", "hello"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--metrics-port: must be a port between 0 and 65535, got {port!r}; 0 takes a free one" in line


def test_what_cannot_be_served_is_told_before_anything_is_loaded(
    taken_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "load", refuse_to_load)
    assert main(["--metrics-port", str(taken_port), "hello"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: metrics cannot be served on 127.0.0.1:{taken_port}: ")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingDependencyError):
        MetricsServer(0)
    assert main(["--metrics-port", "0", "hello"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("pip install 'slipstream[serve]'")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes work otherwise on Windows")
def test_a_conversation_can_be_watched(tmp_path: Path) -> None:
    checkpoint = write_tiny_gguf(tmp_path / "tiny.gguf")
    options = ("--chat", "--metrics-port", "0", "--max-tokens", "6", "--ignore-eos", "--threads", "1")
    with start_command("--target", checkpoint, *options) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            first = process.stderr.readline().decode()
            assert first.startswith("metrics: http://127.0.0.1:")
            url = first.split()[1]
            for num_answers in (1, 2):
                process.stdin.write(b"hello\n")
                process.stdin.flush()
                # The summary comes when the answer is complete.
                while "reused from the cache" not in process.stderr.readline().decode():
                    pass
                found = scrape(url)
                assert found["slipstream:generation_tokens_total"] == 6 * num_answers
                assert found["slipstream:request_queue_time_seconds_count"] == num_answers
            process.stdin.close()
            assert process.wait(60) == 0
            assert not [line for line in process.stderr.read().decode().splitlines() if "127.0.0.1" in line]
            with pytest.raises(OSError):
                scrape(url)
        except subprocess.TimeoutExpired:
            pytest.fail("the command did not end")
        finally:
            process.kill()
