"""The relay forwards faithfully, and misbehaves exactly as asked."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.fakes.relay import Relay


@pytest.fixture
def echo() -> Iterator[str]:
    """Start a server that sends back all received bytes."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture
def relay(echo: str) -> Iterator[Relay]:
    with Relay(echo) as running:
        yield running


def connect(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), timeout=5)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


def assert_cut(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


def test_bytes_pass_both_ways_unchanged(relay: Relay) -> None:
    payload = bytes(range(256)) * 4000
    with connect(relay) as connection:
        threading.Thread(target=connection.sendall, args=(payload,)).start()
        assert receive(connection, len(payload)) == payload
    assert relay.passed == {"up": len(payload), "down": len(payload)}
    assert relay.connections == 1


def test_a_half_close_is_passed_on(relay: Relay) -> None:
    with connect(relay) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection, 100) == b"last words"


def test_a_cut_ends_every_connection_and_new_ones_work(relay: Relay) -> None:
    with connect(relay) as first, connect(relay) as second:
        for connection in (first, second):
            connection.sendall(b"x")
            assert receive(connection, 1) == b"x"
        relay.cut()
        assert_cut(first)
        assert_cut(second)
    with connect(relay) as third:
        third.sendall(b"y")
        assert receive(third, 1) == b"y"


def test_a_stall_holds_one_direction_until_it_is_healed(relay: Relay) -> None:
    with connect(relay) as connection:
        relay.stall("down")
        connection.sendall(b"held")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert relay.passed == {"up": 4, "down": 0}
        relay.heal()
        connection.settimeout(5)
        assert receive(connection, 4) == b"held"


def test_a_delay_makes_each_chunk_late(relay: Relay) -> None:
    relay.delay(0.1)
    with connect(relay) as connection:
        started = time.monotonic()
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        assert time.monotonic() - started >= 0.2  # once in each direction


def test_a_limit_makes_the_line_slow(relay: Relay) -> None:
    relay.limit(100_000)
    with connect(relay) as connection:
        started = time.monotonic()
        connection.sendall(b"x" * 30_000)
        assert len(receive(connection, 30_000)) == 30_000
        assert time.monotonic() - started >= 0.25


def test_a_cut_in_the_middle_lets_exactly_the_first_bytes_pass(relay: Relay) -> None:
    relay.cut_after(5, "down")
    with connect(relay) as connection:
        connection.sendall(b"0123456789")
        assert receive(connection, 5) == b"01234"
        assert_cut(connection)
    assert relay.passed["down"] == 5


def test_a_refusing_relay_resets_whoever_connects_until_it_is_healed(relay: Relay) -> None:
    relay.refuse()
    with connect(relay) as connection:
        assert_cut(connection)
    relay.heal()
    with connect(relay) as connection:
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"


def test_an_upstream_may_be_named_later(echo: str) -> None:
    with Relay() as relay:
        with connect(relay) as connection:
            assert_cut(connection)
        relay.forward_to(echo)
        with connect(relay) as connection:
            connection.sendall(b"x")
            assert receive(connection, 1) == b"x"


def test_an_upstream_that_is_not_there_looks_like_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Relay(f"127.0.0.1:{port}") as relay, connect(relay) as connection:
        assert_cut(connection)


def test_each_connection_ends_after_a_number_of_bytes_of_its_own_and_the_others_live(relay: Relay) -> None:
    with connect(relay) as before:
        before.sendall(b"x")
        assert receive(before, 1) == b"x"  # the connection was accepted
        relay.cut_each_after(iter([0, 3]), "down")
        for count in (0, 3):
            with connect(relay) as connection:
                connection.sendall(b"0123456789")
                assert receive(connection, 10) == b"0123456789"[:count]
                assert_cut(connection)
        with connect(relay) as after:
            for connection in (before, after):
                connection.sendall(b"all of it")
                assert receive(connection, 9) == b"all of it"


def test_bytes_of_a_connection_are_counted_from_its_first_in_all_chunks_together(relay: Relay) -> None:
    relay.cut_each_after(iter([5]), "down")
    with connect(relay) as connection:
        for part in (b"012", b"345"):
            connection.sendall(part)
            assert receive(connection, 3) == part[: 3 if part == b"012" else 2]
        assert_cut(connection)


def test_connections_live_for_as_long_as_they_are_let_and_until_it_is_healed(relay: Relay) -> None:
    relay.let_live(iter([0.0, 60.0]))
    with connect(relay) as short, connect(relay) as long:
        assert_cut(short)
        long.sendall(b"x")
        assert receive(long, 1) == b"x"
        relay.heal()
        long.sendall(b"y")
        assert receive(long, 1) == b"y"


def test_it_listens_where_it_is_told(echo: str) -> None:
    with Relay(echo, "127.0.0.2:0") as relay:
        assert relay.address == f"127.0.0.2:{relay.port}"
        with socket.create_connection(("127.0.0.2", relay.port), timeout=5) as connection:
            connection.sendall(b"x")
            assert receive(connection, 1) == b"x"
