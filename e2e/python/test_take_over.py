"""A router takes the place of another of the same user while clients ask and ask: nobody is refused, reset, or left alone."""
import json
import os
import socket
import tempfile
import threading

from harness import MODEL, PATIENCE, Mock, Server, call, eventually

BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()


class Router(Server):
    """`homing serve`, whose gateway may not be there yet."""

    def __init__(self, folder, listen, mock, *flags):
        path = os.path.join(folder, "homing.toml")
        with open(path, "w") as config:
            config.write(f"""
[gateway]
listen = "{listen}"
shutdown_delay = "500ms"
[admin]
listen = "127.0.0.1:0"
[affinity]
snapshot = "{folder}/sessions"
[[workers]]
id = "w"
url = "{mock.url}"
""")
        super().__init__("serve", "--config", path, *flags)

    def serves(self):
        """Waits until it takes requests."""
        eventually(lambda: any(line.startswith("gateway on") for line in self.lines) or self.proc.poll() is not None,
                   "it serves")
        assert self.proc.poll() is None, self.log()
        self.admin = self.address("admin on")
        return self


class Clients:
    """Threads that ask without a pause, each time over a connection of its own, or over one as long as it lasts."""

    def __init__(self, connect):
        self.connect, self.over, self.failed, self.served = connect, threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.ask_on, args=(i % 2 == 0,), daemon=True) for i in range(4)]
        for thread in self.threads:
            thread.start()

    def ask_on(self, keeps):
        conn = None
        n = 0
        while not self.over.is_set():
            n += 1
            try:
                conn = conn or self.connect()
                conn.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
                             b"x-homing-session-id: s%d\r\ncontent-length: %d\r\n\r\n" % (n % 7, len(BODY)) + BODY)
                status, closes = self.answer(conn)
                assert status == 200, status
                self.served += 1
            except Exception as e:  # told at the end
                self.failed.append(repr(e))
                closes = True
            if closes or not keeps:
                conn = conn and conn.close()

    def answer(self, conn):
        """Reads one answer -> (status, whether the connection ends with it)."""
        got = b""
        while b"\r\n\r\n" not in got:
            more = conn.recv(65536)
            assert more, f"closed after {got!r}"
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        while len(body) < length:
            more = conn.recv(65536)
            assert more, "closed in the middle of a body"
            body += more
        return int(head.split(b" ")[1]), b"connection: close" in lines

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        assert not self.failed, (len(self.failed), self.served, self.failed[:5])
        return self.served


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def take_over(folder, listen, connect):
    with Mock("--speedup", "100") as mock, Router(folder, listen, mock) as old:
        old.serves()
        eventually(lambda: call(old.admin, "GET", "/ready")[0] == 200, "the worker is ready")
        clients = Clients(connect)
        try:
            eventually(lambda: clients.served > 100, "clients are served")
            for _ in range(2):
                new = Router(folder, listen, mock, "--take-over")
                try:
                    new.serves()
                    assert call(new.admin, "GET", "/ready")[0] == 200
                    old.terminate()
                    assert old.wait() == 0, old.log()
                    served = clients.served
                    eventually(lambda: clients.served > served + 100, "clients are served by the new one")
                    sessions = json.loads(call(new.admin, "GET", "/admin/sessions")[2])
                    assert sessions["count"] == 7, sessions
                finally:
                    old.close()
                    old = new
        finally:
            try:
                clients.end()
            finally:
                old.close()


def test_a_port_is_taken_over():
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="homing-e2e-") as folder:
        take_over(folder, f"127.0.0.1:{port}",
                  lambda: socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))


def test_a_socket_is_taken_over():
    with tempfile.TemporaryDirectory(prefix="homing-e2e-") as folder:
        path = os.path.join(folder, "s")

        def connect():
            conn = socket.socket(socket.AF_UNIX)
            conn.settimeout(PATIENCE)
            conn.connect(path)
            return conn

        take_over(folder, f"unix:{path}", connect)
        assert not os.path.exists(path), "the last one takes its socket along"


def test_without_being_told_to_nobody_takes_a_place():
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="homing-e2e-") as folder, Mock() as mock:
        with Router(folder, f"127.0.0.1:{port}", mock) as old:
            old.serves()
            with tempfile.TemporaryDirectory(prefix="homing-e2e-") as other, \
                    Router(other, f"127.0.0.1:{port}", mock) as new:
                assert new.wait() == 1, new.log()
                assert "gateway.listen" in new.log()
