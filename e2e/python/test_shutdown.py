"""SIGTERM while an answer streams: what runs is finished, what comes new is refused, the exit is clean."""
import http.client
import json
import threading

from harness import MODEL, Mock, Serve, call, eventually
from recording_worker import STREAM_ANSWER, RecordingWorker


def open_stream(router):
    """A stream whose first event has arrived -> (connection, response, that event's bytes)."""
    conn = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    conn.request("POST", "/v1/chat/completions", json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}),
        {"content-type": "application/json", "x-homing-session-id": "s"})
    res = conn.getresponse()
    assert res.status == 200, res.status
    first = b""
    while b"data:" not in first or not first.endswith(b"\n\n"):
        piece = res.read1(65536)
        assert piece, first
        first += piece
    return conn, res, first


def refused(router):
    """True if the gateway takes no new request: the connection is refused, or the answer is a 503."""
    try:
        return call(router.port, "POST", "/v1/chat/completions",
                    {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})[0] == 503
    except (OSError, http.client.HTTPException):
        return True


def unready(router):
    """True if /ready says 503."""
    return call(router.admin, "GET", "/ready")[0] == 503


def test_a_stream_is_finished_before_the_exit():
    gate = threading.Event()
    with RecordingWorker(gate=gate) as worker, \
            Serve([worker], gateway='shutdown_grace = "60s"') as router:
        conn, res, first = open_stream(router)
        router.terminate()
        eventually(lambda: unready(router), "/ready is 503 while the stream is open")
        eventually(lambda: refused(router), "new requests are refused")
        assert router.proc.poll() is None, "it ended before its stream"
        gate.set()
        rest = res.read()
        conn.close()
        assert first + rest == b"".join(STREAM_ANSWER), (first, rest)
        assert router.wait() == 0, router.log()


def test_a_stream_without_end_does_not_keep_it_beyond_the_grace():
    gate = threading.Event()
    try:
        with RecordingWorker(gate=gate) as worker, \
                Serve([worker], gateway='shutdown_grace = "1s"') as router:
            conn, res, first = open_stream(router)
            router.terminate()
            router.wait()
            try:
                rest = res.read()
            except (OSError, http.client.HTTPException) as e:
                rest = getattr(e, "partial", b"")
            conn.close()
            assert b"[DONE]" not in first + rest, "a broken stream must not look whole"
    finally:
        gate.set()


def test_an_idle_router_and_an_idle_mock_end_at_once():
    with Mock() as mock, Serve([mock]) as router:
        router.terminate()
        assert router.wait() == 0, router.log()
        mock.terminate()
        assert mock.wait() == 0, mock.log()
