import socket
from collections import Counter

import pytest

from app.http.listener.sockets import BALANCES, CannotListenError, HttpSockets, listen, listen_for_workers, reserve_port

HOST = "127.0.0.1"
WORKERS = 3


def accept_all(sockets: HttpSockets) -> Counter[int]:
    """Accept the connections that wait; return how many of them each socket had."""
    found: Counter[int] = Counter()
    for number, each in enumerate(sockets.sockets):
        each.setblocking(False)
        while True:
            try:
                each.accept()[0].close()
            except BlockingIOError:
                break
            found[number] += 1
    return found


def test_sockets_share_one_free_port() -> None:
    sockets = listen_for_workers(HOST, 0, WORKERS)
    clients = [socket.create_connection(sockets.address) for _ in range(100)]
    found = accept_all(sockets)
    assert found.total() == 100
    assert len(found) == (WORKERS if BALANCES else 1)
    for each in clients:
        each.close()
    sockets.close()


@pytest.mark.skipif(not BALANCES, reason="all workers have the same socket")
def test_connections_wait_for_the_next_worker() -> None:
    sockets = listen_for_workers(HOST, 0, 2)
    inherited = sockets.sockets[0].dup()
    clients = [socket.create_connection(sockets.address) for _ in range(50)]
    inherited.close()  # as at the end of a worker
    assert accept_all(sockets).total() == 50
    for each in clients:
        each.close()
    sockets.close()


@pytest.mark.skipif(not BALANCES, reason="all workers have the same socket")
def test_keep_only_closes_other_sockets() -> None:
    sockets = listen_for_workers(HOST, 0, WORKERS)
    kept = sockets.keep_only(1)
    assert [each.fileno() >= 0 for each in sockets.sockets] == [False, True, False]
    assert kept.getsockname() == sockets.sockets[1].getsockname()
    kept.close()


def test_taken_port_is_refused() -> None:
    with listen(HOST, 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(CannotListenError, match=f"cannot listen on {HOST}:{port}"):
            listen_for_workers(HOST, port, WORKERS)
        with pytest.raises(OSError, match="in use"):
            reserve_port(HOST, port)


def test_port_of_another_group_is_refused() -> None:
    sockets = listen_for_workers(HOST, 0, WORKERS)
    with pytest.raises(CannotListenError):
        listen_for_workers(*sockets.address, WORKERS)
    sockets.close()


def test_unknown_host_is_refused() -> None:
    with pytest.raises(CannotListenError, match="address of this machine"):
        listen_for_workers("256.256.256.256", 0, WORKERS)


def test_reserved_port_takes_no_connections() -> None:
    with reserve_port(HOST, 0) as reserved:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(reserved.getsockname())
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(reserved.getsockname())
            server.listen()
            socket.create_connection(reserved.getsockname()).close()


@pytest.mark.skipif(not BALANCES, reason="all workers have the same socket")
def test_paused_socket_gets_no_connections() -> None:
    sockets = listen_for_workers(HOST, 0, 2)
    inherited = sockets.sockets[0].dup()
    sockets.pause(0)
    sockets.pause(0)
    clients = [socket.create_connection(sockets.address) for _ in range(30)]
    sockets.sockets[1].setblocking(False)
    for _ in range(30):
        sockets.sockets[1].accept()[0].close()
    sockets.resume(0)
    clients += [socket.create_connection(sockets.address) for _ in range(60)]
    # Also by the descriptor of a process that was forked before.
    inherited.setblocking(False)
    inherited.accept()[0].close()
    found = accept_all(sockets)
    assert found.total() == 59
    assert len(found) == 2
    for each in clients:
        each.close()
    inherited.close()
    sockets.close()
