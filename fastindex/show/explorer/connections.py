"""How many connections the server keeps open, and for how long: a browser waits behind none that asks for nothing."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Limit of open connections, above which uvicorn answers 503.
MOST_CONNECTIONS = 32
#: How long a connection may be open without a complete request.
_IDLE_SECONDS = 10.0


class BoundedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP on connections that are closed when they send no request in time, or a newer one needs their place."""

    def connection_made(self, transport: Any) -> None:
        """Take a connection, and close the oldest idle ones where there are too many."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._timer = self.loop.call_later(_IDLE_SECONDS, self._close_if_idle)
        idle = sorted((one for one in self.connections if one.is_idle and one is not self), key=lambda one: one._since)
        for one in idle[: max(len(self.connections) - MOST_CONNECTIONS + 1, 0)]:
            # Now: the event loop tells of the end only later.
            self.connections.discard(one)
            one.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for another request."""
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _close_if_idle(self) -> None:
        left = self._since + _IDLE_SECONDS - self.loop.time()
        if self.is_idle and left <= 0:
            self.transport.close()
            return
        self._timer = self.loop.call_later(left if left > 0 else _IDLE_SECONDS, self._close_if_idle)
