"""Limits on the number and idle time of connections, so that idle ones never block a browser's request."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Maximum number of open connections; above it, uvicorn answers 503.
MOST_CONNECTIONS = 32
#: How long a connection may be open without a complete request.
_IDLE_SECONDS = 10.0


class BoundedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP protocol that closes a connection if it sends no request in time, or if a newer one exceeds the limit."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, and close the oldest idle ones above the limit."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._timer = self.loop.call_later(_IDLE_SECONDS, self._close_if_idle)
        idle = sorted((one for one in self.connections if one.is_idle and one is not self), key=lambda one: one._since)
        for one in idle[: max(len(self.connections) - MOST_CONNECTIONS + 1, 0)]:
            # Discarded now, because the event loop reports the close only later.
            self.connections.discard(one)
            one.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the idle timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Restart the idle time."""
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _close_if_idle(self) -> None:
        left = self._since + _IDLE_SECONDS - self.loop.time()
        if self.is_idle and left <= 0:
            self.transport.close()
            return
        self._timer = self.loop.call_later(left if left > 0 else _IDLE_SECONDS, self._close_if_idle)
