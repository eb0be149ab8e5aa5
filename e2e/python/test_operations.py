"""What operators do: keys, limits, reloading, handing a socket over, traces; against the real binary."""
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import BIN, MODEL, Mock, Serve, call, environment, eventually

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def ask(port, headers=None, body=None):
    """A chat -> (status, headers, decoded body)."""
    return call(port, "POST", "/v1/chat/completions", body or CHAT, headers)


class File:
    """A file that goes with the test."""

    def __init__(self, text):
        self.file = tempfile.NamedTemporaryFile("w", prefix="homing-e2e-")
        self.write(text)

    def write(self, text):
        self.file.seek(0)
        self.file.truncate()
        self.file.write(text)
        self.file.flush()

    @property
    def name(self):
        return self.file.name


def test_keys_limits_and_a_reload_by_signal():
    keys = File("alice:key-of-alice\nbob:key-of-bob\n")
    with Mock() as mock, Serve([mock], extra="[limits]\nrequests_per_minute = 3\n",
                               gateway=f"api_keys_file = {json.dumps(keys.name)}") as router:
        assert ask(router.port)[0] == 401
        bearer = {"authorization": "Bearer key-of-alice"}
        for _ in range(3):
            assert ask(router.port, bearer)[0] == 200
        status, headers, _ = ask(router.port, bearer)
        assert status == 429 and int(headers["retry-after"]) >= 1, (status, dict(headers))
        assert ask(router.port, {"x-api-key": "key-of-bob"})[0] == 200, "another tenant's minute is its own"
        keys.write("bob:another-key-of-bob\n")
        router.proc.send_signal(signal.SIGHUP)
        eventually(lambda: ask(router.port, {"x-api-key": "another-key-of-bob"})[0] == 200, "the new key is known")
        assert ask(router.port, {"x-api-key": "key-of-bob"})[0] == 401
        log = router.stderr()
        assert "key-of" not in log, "a key in the log"
        assert "tenant=\"alice\"" in log or "tenant=alice" in log, log[-2000:]


def test_a_tenant_has_as_many_sessions_as_it_may_and_no_more():
    keys = File("alice:key-of-alice\nbob:key-of-bob\n")
    tenants = "[limits]\nmax_sessions = 1\n[[tenants]]\nname = 'bob'\nmax_sessions = 3\n"
    with Mock() as mock, Serve([mock], extra=tenants, gateway=f"api_keys_file = {json.dumps(keys.name)}") as router:
        def turn(who, session, **more):
            headers = {"x-api-key": f"key-of-{who}", "x-homing-session-id": session, **more}
            status, headers, body = ask(router.port, headers)
            assert status == 200, (status, body)
            return headers["x-homing-affinity"]

        full = lambda: router.metric("homing_affinity_full_table_fallbacks_total")
        assert [turn("alice", s) for s in ("a", "b", "a")] == ["new", "unbound_full", "hit"]
        assert [turn("bob", s) for s in ("a", "b", "c", "d")] == ["new", "new", "new", "unbound_full"]
        assert full() == 2
        # the end of a session makes room for another one of its tenant
        assert turn("alice", "a", **{"x-homing-session-final": "true"}) == "hit"
        assert [turn("alice", s) for s in ("b", "a")] == ["new", "unbound_full"]


def test_a_key_towards_a_worker_is_renewed_without_a_new_life_of_it():
    key = File("key-of-the-engine")
    extra = f"[upstream]\napi_key_file = {json.dumps(key.name)}\n[affinity]\non_down = 'reject'\n"
    with Mock("--api-key", "key-of-the-engine") as mock, Serve([mock], extra=extra) as router:
        turn = lambda: ask(router.port, {"x-homing-session-id": "s", "authorization": "Bearer of-a-client"})
        assert turn()[1]["x-homing-affinity"] == "new"
        life = router.workers()[0]["incarnation"]
        key.write("not a\nkey")
        eventually(lambda: "holds no key" in router.stderr(), "the bad file is named in the log")
        assert turn()[1]["x-homing-affinity"] == "hit", "what it said before stays"
        key.write("another-key")
        eventually(lambda: turn()[0] != 200, "the engine knows no such key")
        key.write("key-of-the-engine\n")
        eventually(lambda: turn()[0] == 200, "it does again")
        assert turn()[1]["x-homing-affinity"] == "hit"
        assert router.workers()[0]["incarnation"] == life
        log = router.stderr()
        assert log.count("holds no key") == 1 and "key-of-the-engine" not in log and "another-key" not in log, log


def test_a_bad_file_changes_nothing():
    with Mock() as mock, Serve([mock]) as router:
        with open(router._config.name, "a") as config:
            config.write("\n[affinity]\nttl = '77m'\n")
        status, _, body = call(router.admin, "POST", "/admin/reload")
        assert status == 409 and b"affinity.ttl" in body, (status, body)
        assert ask(router.port)[0] == 200


def test_a_worker_registers_and_is_gone_when_it_is_not_said_again():
    with Mock() as first, Mock() as second, Serve([first]) as router:
        body = {"id": "late", "url": second.url}
        status, _, said = call(router.admin, "POST", "/admin/workers?ttl=2s", body)
        assert status == 201, said
        eventually(lambda: any(w["id"] == "late" and w["state"] == "ready" for w in router.workers()), "it is ready")
        for _ in range(3):
            time.sleep(1)
            assert call(router.admin, "POST", "/admin/workers?ttl=2s", body)[0] == 200
        assert any(w["id"] == "late" for w in router.workers()), "it was said again"
        assert call(router.admin, "POST", "/admin/workers", body)[0] == 409
        assert call(router.admin, "POST", "/admin/workers", {"id": "x", "uri": "http://a:1"})[0] == 400
        eventually(lambda: not any(w["id"] == "late" for w in router.workers()), "it is gone")
        assert ask(router.port)[0] == 200


def test_a_socket_is_handed_over_and_nobody_is_refused_in_between():
    with Mock() as mock, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def start():
            # As systemd does: the socket is descriptor 3, and LISTEN_PID is the process's own.
            command = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "{BIN}" serve --worker {mock.url} --admin 127.0.0.1:0'
            keep = os.dup(listener.fileno())
            try:
                return subprocess.Popen(["sh", "-c", f"exec 3<&{keep}; {command}"], pass_fds=[keep], env={
                    **environment(), "HOMING_GATEWAY__SHUTDOWN_DELAY": "0s"}, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
            finally:
                os.close(keep)

        process = start()
        try:
            def served():
                try:
                    return ask(port)[0] == 200
                except OSError:
                    return False
            eventually(served, "it serves on the socket that it was handed")
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            conn.request("GET", "/health")
            process = start()
            assert conn.getresponse().status == 200, "it waited in the kernel's queue"
            conn.close()
        finally:
            process.kill()
            process.wait()


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is exported."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.server.spans.extend(scope["spans"])
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_spans_reach_a_collector_and_the_trace_goes_on_at_the_worker():
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    collector.spans = []
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_address[1]}"
    try:
        with Mock() as mock, Serve([mock]) as router:
            trace = "4bf92f3577b34da6a3ce929d0e0e4736"
            parent = "00f067aa0ba902b7"
            headers = {"traceparent": f"00-{trace}-{parent}-01", "x-homing-session-id": "s"}
            assert ask(router.port, headers)[0] == 200
            eventually(lambda: len(collector.spans) >= 3, "three spans have arrived")
            spans = {span["name"]: span for span in collector.spans}
            request = spans["homing.request"]
            assert all(span["traceId"] == trace for span in collector.spans)
            assert request["parentSpanId"] == parent and request["kind"] == 2
            for name in ("homing.select", "homing.worker"):
                assert spans[name]["parentSpanId"] == request["spanId"]
            facts = {a["key"]: next(iter(a["value"].values())) for a in request["attributes"]}
            assert facts["homing.affinity"] == "new" and facts["http.response.status_code"] == "200", facts
            assert int(request["endTimeUnixNano"]) >= int(request["startTimeUnixNano"])
            assert ask(router.port, {"traceparent": f"00-{trace}-{parent}-00"})[0] == 200
            assert ask(router.port)[0] == 200
        eventually(lambda: len(collector.spans) == 6, "the last ones are sent before the exit")
    finally:
        del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
        collector.shutdown()


def test_a_hung_and_a_failing_engine_are_left_alone():
    with Mock() as good, Mock("--hang") as hung, Mock("--fail", "1") as bad, \
            Serve([good, hung, bad], extra="[retry]\nattempts = 2\n") as router:
        states = lambda: {w["url"]: w["state"] for w in router.workers()}
        # A stream each until the hung one has some, and then silence.
        conns = []

        def stream():
            conn = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
            conn.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}),
                         {"content-type": "application/json"})
            conns.append(conn)
        for _ in range(9):
            stream()
        eventually(lambda: states()[hung.url] == "stalled", "no byte comes of it")
        name = next(w["id"] for w in router.workers() if w["url"] == bad.url)
        statuses = [ask(router.port, {"x-homing-worker": name})[0] for _ in range(6)]
        assert 500 in statuses and statuses[-1] == 503, "its own answers pass, until it is failing"
        assert states()[bad.url] == "failing", states()
        before = time.monotonic()
        answered = sum(ask(router.port)[0] == 200 for _ in range(20))
        assert answered >= 17, answered
        assert time.monotonic() - before < 60
        for conn in conns:
            conn.close()


def test_a_side_car_registers_an_engine_and_takes_it_back():
    with Mock() as first, Mock() as second, Serve([first]) as router:
        car = subprocess.Popen([BIN, "register", "--worker", second.url, "--router", f"http://127.0.0.1:{router.admin}",
                                "--id", "side", "--label", "zone=a", "--interval", "500ms"], env=environment(),
                               stderr=subprocess.DEVNULL)
        try:
            def ready():
                return [w for w in router.workers() if w["id"] == "side" and w["state"] == "ready"]
            eventually(ready, "it is registered")
            assert ready()[0]["labels"] == {"zone": "a"}
            time.sleep(4)
            assert ready(), "and stays so"
            car.terminate()
            assert car.wait(30) == 0
            eventually(lambda: not any(w["id"] == "side" for w in router.workers()), "it is taken back")
        finally:
            car.kill()
            car.wait()
