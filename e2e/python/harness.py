"""Starts the binary's two servers, `homing mock` and `homing serve`, and talks to them.

HOMING_BIN names the binary. Every server listens on a free port of 127.0.0.1 and says on its standard
output which one it got; a test reads that, so no port is ever guessed. A server dies with the test
process, however that ends.
"""
import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
TESTDATA = os.path.join(ROOT, "testdata")
TOKENIZER = os.path.join(ROOT, "assets", "tokenizer")
BIN = os.path.abspath(os.environ.get("HOMING_BIN", os.path.join(ROOT, "target/release/homing")))
MODEL = "test-model"

# How long a server may take for something that is no matter of time in itself. Generous, because the
# machine may be busy; nothing here measures speed.
PATIENCE = 30

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


def _die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def environment(**more):
    """The environment of every server: ours without settings of Homing's own, and with `more`."""
    return {k: v for k, v in os.environ.items() if not k.startswith("HOMING_")} | more


def run(*args, timeout=PATIENCE, **env):
    """Runs the binary to its end, with these environment variables -> (exit code, stdout, stderr)."""
    done = subprocess.run([BIN, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, env=environment(**env), preexec_fn=_die_with_parent)
    return done.returncode, done.stdout, done.stderr


def eventually(check, what, seconds=PATIENCE):
    """Waits until check() gives something true, and gives that."""
    deadline = time.monotonic() + seconds
    while True:
        got = check()
        if got:
            return got
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Server:
    """A running command of the binary. What it prints is kept: `lines` of stdout, `log()` of both."""

    def __init__(self, *args):
        self.args = args
        self.lines = []
        self._dir = tempfile.TemporaryDirectory(prefix="homing-e2e-")
        self._stderr = open(os.path.join(self._dir.name, "stderr"), "w+b")
        self.proc = subprocess.Popen([BIN, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=self._stderr, env=environment(), text=True,
                                     preexec_fn=_die_with_parent)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.proc.stdout:
            self.lines.append(line.rstrip("\n"))

    def stderr(self):
        """What it has written to stderr so far."""
        with open(self._stderr.name, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def logged(self, text):
        """Waits until the log has it -> how often. Lines are written a moment after what they tell of."""
        return eventually(lambda: self.stderr().count(text), f"`{text}` in the log")

    def log(self):
        """The end of all that it has printed, for a failure's message."""
        return ("\n".join(self.lines) + "\n" + self.stderr())[-4000:]

    def address(self, said):
        """The port in the line of stdout that begins with `said`, once that line is there."""
        pattern = re.compile(re.escape(said) + r" http://127\.0\.0\.1:(\d+)/?$")

        def look():
            for line in list(self.lines):
                found = pattern.match(line)
                if found:
                    return int(found.group(1))
            if self.proc.poll() is not None:
                raise AssertionError(f"homing {self.args} ended with {self.proc.returncode}:\n{self.log()}")
            return None

        try:
            return eventually(look, f"a line '{said} http://127.0.0.1:PORT'")
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log()}") from None

    def terminate(self):
        """Asks it to stop; doesn't wait."""
        self.proc.send_signal(signal.SIGTERM)

    def wait(self, timeout=PATIENCE):
        """Waits for its end -> exit code."""
        try:
            return self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"homing {self.args[0]} did not end within {timeout} s:\n{self.log()}") from None

    def close(self):
        """Stops it: SIGTERM, and SIGKILL where that is not enough."""
        if self.proc.poll() is None:
            self.terminate()
            try:
                self.proc.wait(10)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self._reader.join(5)
        self.proc.stdout.close()
        self._stderr.close()
        self._dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Mock(Server):
    """`homing mock`: one simulated engine that serves MODEL."""

    def __init__(self, *flags):
        super().__init__("mock", "--listen", "127.0.0.1:0", "--model", MODEL, *flags)
        try:
            self.port = self.address("listening on")
            self.url = f"http://127.0.0.1:{self.port}"
            eventually(lambda: answers(self.port, "/health"), "the mock's /health")
        except BaseException:
            self.close()
            raise

    def get(self, path):
        """A GET that must succeed -> the decoded JSON."""
        status, _, body = call(self.port, "GET", path)
        assert status == 200, (path, status, body[:300])
        return json.loads(body)


class Serve(Server):
    """`homing serve` over workers (things with a `url`), by a configuration file.

    `extra` goes into the file as it is; `gateway` into its [gateway] table. With `ready` it waits until
    each worker is ready.
    """

    def __init__(self, workers, extra="", gateway="", ready=True):
        self._config = tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="homing-e2e-")
        self._config.write(configuration(workers, extra, gateway))
        self._config.flush()
        super().__init__("serve", "--config", self._config.name)
        self._began(len(workers), ready)

    def _began(self, workers, ready):
        try:
            self.port = self.address("gateway on")
            self.admin = self.address("admin on")
            self.url = f"http://127.0.0.1:{self.port}"
            if ready:
                self.wait_ready(workers)
        except BaseException:
            self.close()
            raise

    def wait_ready(self, workers):
        """Waits for /ready and for that many workers in state `ready`. One that is failing is tried: without a request it
        stays so."""
        def ready():
            if self.proc.poll() is not None:
                raise AssertionError(f"the router ended with {self.proc.returncode}:\n{self.log()}")
            for worker in self.workers():
                if worker["state"] in ("failing", "stalled"):
                    call(self.port, "POST", "/v1/chat/completions", {
                        "model": worker["models"][0], "messages": [{"role": "user", "content": "well?"}]},
                        {"x-homing-worker": worker["id"]})
            return (answers(self.admin, "/ready")
                    and sum(w["state"] == "ready" for w in self.workers()) == workers)
        try:
            eventually(ready, f"{workers} workers ready")
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log()}") from None

    def workers(self):
        """What /admin/workers says."""
        return self.admin_json("/admin/workers")

    def admin_json(self, path):
        """A GET of the admin API that must succeed -> the decoded JSON."""
        status, _, body = call(self.admin, "GET", path)
        assert status == 200, (path, status, body[:300])
        return json.loads(body)

    def metric(self, name, **labels):
        """The sum of a metric over its label sets that have these labels; 0 where there is none."""
        return metric(call(self.admin, "GET", "/metrics")[2].decode(), name, **labels)

    def post(self, path, body, headers=None):
        """A POST to the gateway of JSON (or of bytes as they are)."""
        return call(self.port, "POST", path, body, headers)

    def close(self):
        super().close()
        if hasattr(self, "_config"):
            self._config.close()


class ServeFlags(Serve):
    """`homing serve` by flags alone."""

    def __init__(self, workers, *flags, ready=True):
        named = [word for w in workers for word in ("--worker", w.url)]
        Server.__init__(self, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *named, *flags)
        self._began(len(workers), ready)


def configuration(workers, extra="", gateway=""):
    """A configuration file for free ports; a worker's `settings` are more lines of its own table."""
    text = ('[gateway]\nlisten = "127.0.0.1:0"\nshutdown_delay = "0s"\n' + gateway
            + '\n[admin]\nlisten = "127.0.0.1:0"\n' + extra + "\n")
    for i, worker in enumerate(workers):
        text += f'[[workers]]\nid = "w{i}"\nurl = "{worker.url}"\n{getattr(worker, "settings", "")}\n'
    return text


def tokenized():
    """The setting that lets the router turn MODEL's prompts into blocks."""
    return f'[[models]]\nname = "{MODEL}"\ntokenizer = "{TOKENIZER}"\n'


def call(port, method, path, body=None, headers=None, timeout=PATIENCE):
    """One request -> (status, headers with lower-case names, body bytes)."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    sent = dict(headers or {})
    if data is not None:
        sent.setdefault("content-type", "application/json")
    try:
        conn.request(method, path, data, sent)
        res = conn.getresponse()
        return res.status, {k.lower(): v for k, v in res.getheaders()}, res.read()
    finally:
        conn.close()


def answers(port, path):
    """True if a GET gives 200; a refused or broken connection is a no."""
    try:
        return call(port, "GET", path, timeout=5)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def metric(text, name, **labels):
    """The sum of a metric in a Prometheus text over its label sets that have these labels."""
    total = 0.0
    for line in text.splitlines():
        found = re.match(r"([\w:]+)(\{.*\})?\s+(\S+)", line)
        if found and found.group(1) == name:
            has = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found.group(2) or ""))
            if all(has.get(k) == v for k, v in labels.items()):
                total += float(found.group(3))
    return total


def events(body):
    """The JSON of each `data:` line of a whole SSE body; checks that it ends with [DONE]."""
    data = [line[5:].strip() for line in body.decode().splitlines() if line.startswith("data:")]
    assert data and data[-1] == "[DONE]", data[-3:]
    return [json.loads(d) for d in data[:-1]]


def check_error(status, body, want_status, code):
    """The body is an error in OpenAI's shape, with this status and code."""
    assert status == want_status, (status, body[:500])
    error = json.loads(body)["error"]
    assert {"message", "type", "code", "param"} <= set(error), error
    assert isinstance(error["message"], str) and error["message"], error
    assert isinstance(error["type"], str) and error["type"], error
    assert error["code"] == code, error
