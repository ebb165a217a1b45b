"""The bound of connections over several processes, each with views of its own of the same memory."""

from app.http.listener.clocks import ConnectionBounds, Connections
from frameworks.scheduling.shared_limits import SharedLimits


def views(max_connections: int, most_here: int | None = None) -> list[Connections]:
    """Return the connections of each of two processes, and of their supervisor."""
    shared, connections = SharedLimits(2, []), []
    for process in range(3):
        shared.use(process)
        bounds = ConnectionBounds(max_connections=max_connections)
        connections.append(Connections(bounds, row=shared.server(), most_here=most_here))
    return connections


def test_connections_of_all_processes_count() -> None:
    first, second, supervisor = views(3)
    assert [first.accept(), second.accept(), first.accept(), second.accept()] == [True, True, True, False]
    assert (first.open, second.open, supervisor.open) == (4, 4, 4), "a refused connection counts until it is closed"
    second.forget()
    first.forget()
    assert second.accept()
    for connections in (first, second, second):
        connections.forget()
    assert supervisor.open == 0


def test_process_accepts_no_more_than_its_own() -> None:
    first, second, _ = views(10, most_here=1)
    assert [first.accept(), first.accept(), second.accept()] == [True, False, True]


def test_most_is_that_of_all_processes() -> None:
    assert {each.most for each in views(10, most_here=4)} == {8}
    assert {each.most for each in views(10, most_here=10)} == {10}
    assert Connections(ConnectionBounds(max_connections=10), most_here=4).most == 4
