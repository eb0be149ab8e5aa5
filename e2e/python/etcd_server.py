"""A real etcd for a test: Debian's `etcd-server` on free ports, with a folder of its own, ended by its pid."""
import os
import socket
import subprocess
import tempfile

from harness import _die_with_parent, eventually


def free_port():
    """A port on which nobody listens now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Etcd:
    """It can be stopped and started again at the same place, with what it knows. With an `Authority` it speaks TLS."""

    def __init__(self, tls=None):
        self._dir = tempfile.TemporaryDirectory(prefix="homing-etcd-")
        self.port, self._peers = free_port(), free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.proc, self._tls = None, tls
        self.user = None
        self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        peers = f"http://127.0.0.1:{self._peers}"
        with open(os.path.join(self._dir.name, "log"), "ab") as log:
            self.proc = subprocess.Popen(
                ["etcd", "--data-dir", os.path.join(self._dir.name, "data"), "--logger", "zap",
                 "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                 "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                 "--initial-cluster", f"default={peers}",
                 *(["--cert-file", self._tls.cert, "--key-file", self._tls.key] if self._tls else [])],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, preexec_fn=_die_with_parent)
        eventually(lambda: self._ctl("get", "nothing").returncode == 0, "etcd answers")

    def stop(self):
        """kill -9."""
        self.proc.kill()
        self.proc.wait()

    def _ctl(self, *args):
        user = ["--user", self.user] if self.user else []
        ca = ["--cacert", self._tls.ca] if self._tls else []
        return subprocess.run(["etcdctl", "--endpoints", self.url, *ca, *user, *args], capture_output=True, text=True,
                              env=os.environ | {"ETCDCTL_API": "3"}, timeout=30)

    def ctl(self, *args):
        """What an operator would do by hand -> its words."""
        done = self._ctl(*args)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout

    def guard(self):
        """From now on it wants a user's password: `homing` has `right`, and may write where Homing does."""
        for args in (("user", "add", "root:root"), ("user", "grant-role", "root", "root"),
                     ("user", "add", "homing:right"), ("role", "add", "router"),
                     ("role", "grant-permission", "router", "--prefix=true", "readwrite", "/homing/"),
                     ("user", "grant-role", "homing", "router"), ("auth", "enable")):
            self.ctl(*args)
        self.user = "root:root"

    def workers(self, group="default"):
        """The ids that are registered."""
        prefix = f"/homing/{group}/workers/"
        lines = self.ctl("get", "--prefix", "--keys-only", prefix).split()
        return {line.removeprefix(prefix) for line in lines}

    def close(self):
        self.stop()
        self._dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
