"""A router over scripted workers, and turns of sessions through it: what the tests of the affinity contract
have in common."""
import http.client
import json
import threading
from urllib.parse import quote

from harness import MODEL, PATIENCE, Serve, call, eventually
from scripted_worker import Hold, ScriptedWorker

CHAT = "/v1/chat/completions"


class Turn:
    """A whole answer, and what its headers say of the session."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def worker(self):
        return self.headers.get("x-homing-worker")

    @property
    def rank(self):
        return self.headers.get("x-homing-dp-rank")

    @property
    def word(self):
        return self.headers.get("x-homing-affinity")

    @property
    def code(self):
        """Of an error; `None` where it is none of ours."""
        try:
            return json.loads(self.body)["error"].get("code")
        except (ValueError, KeyError, AttributeError):
            return None

    def __repr__(self):
        return f"{self.status} {self.word} at {self.worker}/{self.rank}: {self.body[:200]!r}"


def chat_body(text="Hi", stream=False, **more):
    return {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": text}], **more}


class Stream:
    """A streamed answer whose head has come: the lease of its session lives until the end is read."""

    def __init__(self, port, headers):
        self._conn = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._conn.request("POST", CHAT, json.dumps(chat_body(stream=True)),
                           {"content-type": "application/json", **headers})
        self._res = self._conn.getresponse()
        self.turn = Turn(self._res.status, {k.lower(): v for k, v in self._res.getheaders()}, b"")

    def rest(self):
        """Reads it to its end -> the bytes."""
        body = self._res.read()
        self._conn.close()
        return body

    def leave(self):
        """As a client that goes away."""
        self._res.close()
        self._conn.close()


class Fleet:
    """`count` workers w0, w1, .. (or the given ones, which it ends too) behind a router. The policy is one that moves each turn, so that only
    the session can keep it at home. `settings` are lines of each worker's own table, `affinity` of
    [affinity], `extra` whole tables."""

    def __init__(self, count=3, affinity="", extra="", gateway="", settings="", policy="round_robin",
                 workers=None):
        self.workers = workers or [ScriptedWorker(settings) for _ in range(count)]
        for i, worker in enumerate(self.workers):
            worker.name = f"w{i}"
        text = f'[routing]\npolicy = "{policy}"\n[index]\nsource = "off"\n[affinity]\n{affinity}\n{extra}\n'
        self._ended = False
        self._serve = {"extra": text, "gateway": gateway}
        try:
            self.router = Serve(self.workers, **self._serve)
        except BaseException:
            self._stop_workers()
            raise

    def end(self, kill=False):
        """Ends the router, politely or by `kill -9`."""
        if kill:
            self.router.proc.kill()
            self.router.wait()
        else:
            self.router.terminate()
            assert self.router.wait() == 0, self.router.log()
        self.router.close()
        self._ended = True

    def begin(self, workers=None, ready=True):
        """Starts it anew, over the same workers or only these."""
        self.router = Serve(workers or self.workers, ready=ready, **self._serve)
        self._ended = False

    def _stop_workers(self):
        for worker in self.workers:
            worker.stop()

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        try:
            if failure is None and not self._ended:
                assert self.router.proc.poll() is None, f"the router ended by itself:\n{self.router.log()}"
        finally:
            self.router.close()
            self._stop_workers()

    def turn(self, session=None, headers=None, **body):
        """One chat of a session."""
        sent = dict(headers or {})
        if session is not None:
            sent["x-homing-session-id"] = session
        return Turn(*self.router.post(CHAT, chat_body(**body), sent))

    def ok(self, *args, **kw):
        """One that must succeed."""
        turn = self.turn(*args, **kw)
        assert turn.status == 200, turn
        return turn

    def home(self, session, **kw):
        """Binds a new session, or serves a bound one -> its worker."""
        return self.worker(self.ok(session, **kw).worker)

    def worker(self, name):
        return next(w for w in self.workers if w.name == name)

    def others(self, worker):
        return [w for w in self.workers if w is not worker]

    def stream(self, session, headers=None):
        """Begins a stream of a session."""
        stream = Stream(self.router.port, {"x-homing-session-id": session, **(headers or {})})
        assert stream.turn.status == 200, stream.turn
        return stream

    def hold(self, worker, session=None):
        """Makes a worker busy with an explicit stream -> (its gate, the stream)."""
        hold = Hold(begun=True)
        worker.will(hold)
        headers = {"x-homing-worker": worker.name, "x-homing-affinity": "off" if session is None else "hard"}
        stream = self.stream(session or "busy", headers)
        assert stream.turn.worker == worker.name, stream.turn
        return hold, stream

    def seen(self):
        """Requests that have reached any worker."""
        return sum(len(w.seen) for w in self.workers)

    def session(self, session, **which):
        """What the admin API says of one; `None` where it is unbound."""
        query = "&".join(f"{k}={v}" for k, v in which.items())
        path = f"/admin/sessions/{quote(session, safe='')}?{query}"
        status, _, body = call(self.router.admin, "GET", path)
        assert status in (200, 404), (status, body)
        return json.loads(body) if status == 200 else None

    def sessions(self):
        return self.router.admin_json("/admin/sessions?limit=1000")

    def state(self, worker):
        """A worker as the router sees it."""
        return next(w for w in self.router.workers() if w["id"] == worker.name)

    def admin(self, method, path, body=None):
        """A call of the admin API -> (status, body bytes)."""
        status, _, data = call(self.router.admin, method, path, body)
        return status, data

    def preview(self, headers, body=None):
        status, data = self.admin("POST", "/admin/preview", {
            "endpoint": CHAT, "headers": headers, "body": body or chat_body()})
        assert status == 200, (status, data)
        return json.loads(data)

    def quiet(self):
        """Waits until nothing is left of any request."""
        eventually(lambda: self.sessions()["leases"] == 0, "no lease is left")
        eventually(lambda: all(w["active_requests"] == 0 for w in self.router.workers()), "no booking is left")
        assert self.router.metric("homing_queue_depth") == 0


class Background(threading.Thread):
    """Runs something beside the test; `result()` waits for it, and raises what it raised."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self._work, self._result, self._error = work, None, None
        self.start()

    def run(self):
        try:
            self._result = self._work()
        except Exception as e:  # handed over below
            self._error = e

    def result(self):
        self.join(PATIENCE)
        assert not self.is_alive(), "it doesn't end"
        if self._error:
            raise self._error
        return self._result


def check_refused(turn, status, code, word="rejected"):
    """Refused by the router, with the session's outcome in the header."""
    assert (turn.status, turn.code, turn.word) == (status, code, word), turn
    if status in (429, 503):
        assert 1 <= int(turn.headers["retry-after"]) <= 60, turn.headers
        assert int(turn.headers["retry-after-ms"]) >= 1, turn.headers
    if status == 400:
        assert turn.headers["x-should-retry"] == "false", turn.headers
