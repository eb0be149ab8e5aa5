"""A CA of a test's own, and what it vouches for; made by `openssl`."""
import os
import subprocess
import tempfile


class Authority:
    """Files in a folder: `ca`, `cert` and `key` of a server at 127.0.0.1."""

    def __init__(self):
        self._dir = tempfile.TemporaryDirectory(prefix="homing-ca-")
        self.ca, self.cert, self.key = (os.path.join(self._dir.name, name) for name in ("ca.pem", "s.pem", "s.key"))
        ca_key, request, names = (os.path.join(self._dir.name, name) for name in ("ca.key", "s.csr", "names"))
        with open(names, "w", encoding="utf-8") as file:
            file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._openssl(*new, "-x509", "-days", "2", "-subj", "/CN=homing test CA", "-keyout", ca_key, "-out", self.ca)
        self._openssl(*new, "-subj", "/CN=127.0.0.1", "-keyout", self.key, "-out", request)
        self._openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
                      "-extfile", names, "-out", self.cert)

    @staticmethod
    def _openssl(*args):
        done = subprocess.run(["openssl", *args], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (args, done.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._dir.cleanup()
