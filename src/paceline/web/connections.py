"""Connections to the web application: who asks for nothing, or never takes the answer, does not keep others out.

Every account of the machine can connect to the port. A connection costs the server a descriptor and, while an answer
is not taken, the memory of it; so a connection has a time in which to ask, and only so many may wait.
"""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.h11_impl import H11Protocol

# A request is a few kilobytes, and a browser sends it at once.
REQUEST_SECONDS = 20.0
# A browser keeps six connections to a server; programs may have a thousand files open.
MOST_WAITING = 200


class Connection(H11Protocol):
    """A connection that is cut if no whole request comes in time, or nothing of an answer is taken for as long."""

    _timer: TimerHandle | None = None
    _waits_since = 0.0
    _untaken_bytes = 0

    @property
    def answers(self) -> bool:
        """Whether there is a request that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits(self) -> bool:
        """Whether it is open for a request that has not come."""
        return not self.answers and not self.transport.is_closing()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Starts the time of the first request; of too many that wait, the one goes that waited longest."""
        super().connection_made(transport)
        self._expect_request()
        waiting = [other for other in self.connections if isinstance(other, Connection) and other.waits]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=lambda other: other._waits_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the time."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Starts the time of the next request."""
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        self._waits_since = self.loop.time()
        self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._untaken_bytes = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._goes_on():
            self._start_timer()
        else:
            self.transport.abort()

    def _goes_on(self) -> bool:
        if untaken_bytes := self.transport.get_write_buffer_size():
            return untaken_bytes != self._untaken_bytes
        # What is being answered may take as long as it likes; half a request may not.
        return self.answers and not self.cycle.more_body
