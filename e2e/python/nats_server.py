"""A real NATS for a test: Debian's `nats-server` on a free port, with JetStream in a folder of its own, ended by its pid;
and a proxy in front of anything that speaks TCP, which can be cut."""
import os
import socket
import subprocess
import tempfile
import threading

from harness import _die_with_parent, answers, eventually


def free_port():
    """A port on which nobody listens now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Nats:
    """It can be killed and started again at the same place, with what JetStream keeps."""

    def __init__(self, *flags):
        self._dir = tempfile.TemporaryDirectory(prefix="homing-nats-")
        self.port, self._monitor, self._flags = free_port(), free_port(), flags
        self.url = f"{'tls' if '--tls' in flags else 'nats'}://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        with open(os.path.join(self._dir.name, "log"), "ab") as log:
            self.proc = subprocess.Popen(
                ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), "-m", str(self._monitor), "-js", "-sd",
                 os.path.join(self._dir.name, "data"), *self._flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, preexec_fn=_die_with_parent)
        eventually(lambda: answers(self._monitor, "/healthz"), "nats-server answers")

    def stop(self):
        """kill -9."""
        self.proc.kill()
        self.proc.wait()

    def close(self):
        self.stop()
        self._dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Cable:
    """A TCP proxy: while it is cut, connections through it break, and new ones end at once."""

    def __init__(self, port):
        self._to, self._open, self._lock, self.is_cut = port, set(), threading.Lock(), False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.is_cut:
                    raise OSError("cut")
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self._lock:
            self.is_cut = True
            for s in self._open:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._open.clear()

    def mend(self):
        self.is_cut = False

    def close(self):
        self._listener.close()
        self.cut()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
