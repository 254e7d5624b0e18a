"""`/metrics` over HTTP, for a program that serves nothing else.

Owns the socket and the thread that answers on it. Knows nothing of what is answered. A web application shows
`prometheus_text` under an address of its own instead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from runtime.prometheus import DEFAULT_PREFIX, MetricsCollector
from scheduler import check_integer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOCALHOST = "127.0.0.1"
MAX_PORT = 65535
_POLL_INTERVAL_S = 0.1
"""How soon a server notices that it is to end."""


class MetricsServer:
    """Answers Prometheus from its construction until `close`; `collector` is what it answers with, at first nothing.

    with MetricsServer(9400) as server:
        server.collector.add(runtime)
    """

    def __init__(self, port: int, *, address: str = LOCALHOST, prefix: str = DEFAULT_PREFIX) -> None:
        """Take the port and begin to answer, on a thread of its own.

        Args:
            port: 0 for a free one.
            address: of the interface; by default only this machine can ask.
            prefix: of every name.

        Raises:
            TypeError, ValueError: for a port or prefix that can be none.
            MissingDependencyError: if prometheus_client is not installed.
            OSError: if the port cannot be had.
        """
        check_integer("port", port, low=0, high=MAX_PORT, advice="0 takes a free one")
        self.collector = MetricsCollector(prefix=prefix)
        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry()
        registry.register(self.collector)
        try:
            self._server = make_server(address, port, _in_plain_text(make_wsgi_app(registry)), _Server, _QuietHandler)
        except OSError as error:
            raise OSError(
                f"metrics cannot be served on {address}:{port}: {error.strerror or error}; "
                "choose another port, or 0 for a free one"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the metrics are."""
        address, port = self._server.server_address[:2]
        return f"http://{address!s}:{port}/metrics"

    def close(self) -> None:
        """Answer no more and free the port; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _in_plain_text(application: WSGIApplication) -> WSGIApplication:
    """The same answers in Prometheus' own text format, whatever is asked for.

    Into the OpenMetrics format, which Prometheus prefers, the client writes `vllm_` where a name begins with `vllm:`.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return application({**environ, "HTTP_ACCEPT": "text/plain"}, start_response)

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    """A slow client holds up no other, nor the end of the program."""

    daemon_threads = True
    allow_reuse_port = False
    """Else some versions of Python let two programs share a port, and each scrape reaches either of them."""


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: standard error is for those who read the answers."""
