"""A real NATS for a test: Debian's `nats-server` on a free port, with JetStream in a folder of its own, ended by its pid;
and a proxy in front of anything that speaks TCP, which can be cut."""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading

from harness import _die_with_parent, answers, call, eventually


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
        self._data = os.path.join(self._dir.name, "data")
        self.url = f"{'tls' if '--tls' in flags else 'nats'}://127.0.0.1:{self.port}"
        self.start()

    def start(self, jetstream=True):
        """Starts it, and waits until it answers."""
        store = ["-js", "-sd", self._data] if jetstream else []
        with open(os.path.join(self._dir.name, "log"), "ab") as log:
            self.proc = subprocess.Popen(
                ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), "-m", str(self._monitor),
                 *store, *self._flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, preexec_fn=_die_with_parent)
        eventually(lambda: answers(self._monitor, "/healthz"), "nats-server answers")

    def stop(self):
        """kill -9."""
        self.proc.kill()
        self.proc.wait()

    def pause(self):
        """It is there, and answers nothing."""
        self.proc.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.proc.send_signal(signal.SIGCONT)

    def kept(self):
        """How many values JetStream keeps."""
        return json.loads(call(self._monitor, "GET", "/jsz")[2])["messages"]

    def wipe(self):
        """What JetStream keeps is gone; while it is stopped."""
        shutil.rmtree(self._data)

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
