"""Real clients' recorded requests through the gateway: what reaches the worker is what was sent.

The recordings are the bytes that the official OpenAI and Anthropic SDKs put on the wire (testdata/client-requests). They
are sent as they are, by a raw socket; the recording worker keeps what comes out at the other end. The
only differences allowed are those that the gateway's documentation names: hop-by-hop headers and
`x-homing-*` are dropped, `Host` is the worker's, and `x-request-id` is added where the client sent none.
"""
import glob
import http.client
import io
import json
import os
import socket

from harness import TESTDATA, Mock, Serve, check_error, events
from recording_worker import JSON_ANSWER, STREAM_ANSWER, RecordingWorker, Request, read_head

HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection",
              b"te", b"trailer", b"transfer-encoding", b"upgrade"}


MODELS = ("claude-test", "test-model")


def recordings():
    """Each recording as (name, its bytes), in the order of their numbers."""
    paths = sorted(glob.glob(os.path.join(TESTDATA, "client-requests", "*.http")))
    assert len(paths) == 19, paths
    for path in paths:
        with open(path, "rb") as f:
            yield os.path.basename(path), f.read()


def parsed(raw):
    """The bytes of a request as a Request."""
    file = io.BytesIO(raw)
    line, headers = read_head(file)
    sizes = [int(v) for k, v in headers if k.lower() == b"content-length"]
    return Request(line, headers, file.read(sizes[0] if sizes else 0))


def send_raw(port, raw):
    """Sends bytes on a connection of their own -> (status, headers as a list, body)."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        s.sendall(raw)
        res = http.client.HTTPResponse(s)
        res.begin()
        return res.status, [(k.lower(), v) for k, v in res.getheaders()], res.read()


def by_name(headers, but=()):
    """Headers as name -> values in order, names in lower case, without those in `but`."""
    grouped = {}
    for name, value in headers:
        if name.lower() not in but:
            grouped.setdefault(name.lower(), []).append(value)
    return grouped


def check_same(name, sent, got, worker):
    """What the worker got is what was sent, but for the headers that the documentation names."""
    assert (got.method, got.target, got.version) == (sent.method, sent.target, "HTTP/1.1"), (name, vars(got))
    assert got.body == sent.body, (name, got.body, sent.body)
    named = {v.strip().lower() for value in sent.values(b"connection") for v in value.split(b",")}
    dropped = HOP_BY_HOP | named | {k.lower() for k, _ in sent.headers if k.lower().startswith(b"x-homing-")}
    want = by_name(sent.headers, dropped)
    want[b"host"] = [f"127.0.0.1:{worker.port}".encode()]
    # a body of unknown length keeps its framing; hop-by-hop, so it is not compared otherwise
    have = by_name(got.headers, {b"connection", b"transfer-encoding"})
    if b"x-request-id" not in want:
        made = have.pop(b"x-request-id", [])
        assert len(made) == 1 and made[0], (name, "no x-request-id was made", got.headers)
    assert have == want, (name, {k: (want.get(k), have.get(k)) for k in want.keys() | have.keys()
                                 if want.get(k) != have.get(k)})


def test_what_reaches_the_worker_equals_what_was_sent():
    with RecordingWorker(models=MODELS) as worker, Serve([worker]) as router:
        for name, raw in recordings():
            sent = parsed(raw)
            before = len(worker.seen)
            status, _, body = send_raw(router.port, raw)
            assert status == 200, (name, status, body[:500])
            if sent.method == "GET":
                # the gateway knows its fleet's models itself, so no worker is asked
                assert sent.target == "/v1/models" and len(worker.seen) == before, name
                agents = [v for probe in worker.probes for v in probe.values(b"user-agent")]
                assert not any(v.startswith(b"OpenAI/") for v in agents), agents
                assert [m["id"] for m in json.loads(body)["data"]] == list(MODELS), body
                continue
            assert len(worker.seen) == before + 1, (name, len(worker.seen) - before)
            check_same(name, sent, worker.seen[-1], worker)


def test_what_the_worker_answers_reaches_the_client_unchanged():
    with RecordingWorker(models=MODELS) as worker, Serve([worker]) as router:
        for name, raw in recordings():
            sent = parsed(raw)
            if sent.method == "GET":
                continue
            status, headers, body = send_raw(router.port, raw)
            assert status == 200, (name, status, body[:500])
            stream = json.loads(sent.body).get("stream")
            assert body == (b"".join(STREAM_ANSWER) if stream else JSON_ANSWER), (name, body)
            assert ("x-engine-says", "Hello  There") in headers, (name, headers)
            if not stream:
                assert [v for k, v in headers if k == "set-cookie"] == ["a=1", "b=2"], (name, headers)
                assert ("content-length", str(len(JSON_ANSWER))) in headers, (name, headers)


def test_a_clients_request_id_goes_both_ways():
    with RecordingWorker() as worker, Serve([worker]) as router:
        raw = next(raw for name, raw in recordings() if name.startswith("006"))
        assert b"x-request-id: rid-1" in raw
        _, headers, _ = send_raw(router.port, raw)
        assert worker.seen[-1].values(b"x-request-id") == [b"rid-1"]
        assert ("x-request-id", "rid-1") in headers, headers
        # one that was made here is told to both as well
        raw = next(raw for name, raw in recordings() if name.startswith("001"))
        _, headers, _ = send_raw(router.port, raw)
        made = worker.seen[-1].values(b"x-request-id")
        assert [v.encode() for k, v in headers if k == "x-request-id"] == made, (headers, made)


def with_headers(raw, *lines):
    """The request with more header lines at the end of its head."""
    head, body = raw.split(b"\r\n\r\n", 1)
    return b"\r\n".join([head, *lines]) + b"\r\n\r\n" + body


def test_steering_and_hop_by_hop_headers_stay_here_and_others_go_on():
    with RecordingWorker() as worker, Serve([worker]) as router:
        raw = next(raw for name, raw in recordings() if name.startswith("001"))
        raw = raw.replace(b"Connection: keep-alive", b"Connection: keep-alive, X-Only-For-You")
        raw = with_headers(
            raw,
            b"X-Homing-Session-Id: s-1", b"x-homing-affinity: soft",
            b"X-Only-For-You: secret", b"Keep-Alive: timeout=5", b"TE: trailers", b"Proxy-Authorization: Basic eDp5",
            b"x-session-id: s-2", b"x-claude-code-session-id: s-3", b"X-Dynamo-Session-Id: s-1",
            b"X-Many: one", b"x-other: between", b"X-Many: two", b"X-Many: ", b"X-Many: one",
            b"X-Bytes: caf\xe9", b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            b"X-Forwarded-For: 10.1.2.3", b"Cookie: a=1; b=2")
        status, _, body = send_raw(router.port, raw)
        assert status == 200, (status, body)
        got = worker.seen[-1]
        check_same("001 with headers", parsed(raw), got, worker)
        assert got.values(b"x-many") == [b"one", b"two", b"", b"one"], got.headers
        assert got.values(b"x-session-id") == [b"s-2"], got.headers
        assert not any(k.lower().startswith(b"x-homing-") for k, _ in got.headers), got.headers


def test_a_chunked_body_arrives_whole():
    with RecordingWorker() as worker, Serve([worker]) as router:
        raw = next(raw for name, raw in recordings() if name.startswith("005"))
        head, body = raw.split(b"\r\n\r\n", 1)
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length"))
        pieces = [body[i:i + 7] for i in range(0, len(body), 7)]
        chunked = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
        status, _, answer = send_raw(router.port, head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked)
        assert status == 200, (status, answer)
        assert worker.seen[-1].body == body, worker.seen[-1].body


def test_a_query_and_an_unknown_path():
    with RecordingWorker() as worker, Serve([worker]) as router:
        raw = next(raw for name, raw in recordings() if name.startswith("001"))
        status, _, _ = send_raw(router.port, raw.replace(b"completions HTTP", b"completions?a=%20b&c HTTP"))
        assert status == 200
        assert worker.seen[-1].target == "/v1/chat/completions?a=%20b&c", worker.seen[-1].target
        before = len(worker.seen)
        status, _, _ = send_raw(router.port, raw.replace(b"/v1/chat/completions", b"/v1/no/such/path"))
        assert status == 404 and len(worker.seen) == before, status


def test_the_mock_answers_every_recording():
    with Mock() as mock, Serve([mock]) as router:
        for name, raw in recordings():
            sent = parsed(raw)
            status, headers, body = send_raw(router.port, raw)
            if b'"claude-test"' in sent.body or b'"previous_response_id"' in sent.body:
                # another model, and what this engine doesn't store
                assert status in (400, 404), (name, status, body[:500])
                continue
            assert status == 200, (name, status, body[:500])
            if sent.method == "GET":
                assert [m["id"] for m in json.loads(body)["data"]] == ["test-model"], (name, body)
                continue
            check_answer(name, sent, dict(headers), body)


def check_answer(name, sent, headers, body):
    """A 200 of the mock is a whole answer in OpenAI's shape."""
    asked = json.loads(sent.body)
    if sent.target == "/v1/responses":
        if asked.get("stream"):
            assert headers["content-type"].startswith("text/event-stream"), (name, headers)
            last = body.decode().strip().rpartition("\n\n")[2]
            assert last.startswith("event: response.completed\ndata: "), (name, last)
            body = json.dumps(json.loads(last.split("data: ", 1)[1])["response"])
        answer = json.loads(body)
        assert answer["object"] == "response" and answer["model"] == "test-model" and answer["id"], (name, answer)
        assert answer["output"][0]["content"][0]["text"] and answer["usage"]["input_tokens"] > 0, (name, answer)
        return
    chat = sent.target == "/v1/chat/completions"
    if asked.get("stream"):
        assert headers["content-type"].startswith("text/event-stream"), (name, headers)
        chunks = events(body)
        assert all(c["object"] == "chat.completion.chunk" and c["model"] == "test-model" for c in chunks), name
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
        assert text and reasons[-1] in ("stop", "length") and set(reasons[:-1]) <= {None}, (name, text, reasons)
        usage = [c["usage"] for c in chunks if c.get("usage")]
        assert bool(usage) == bool((asked.get("stream_options") or {}).get("include_usage")), (name, usage)
        return
    answer = json.loads(body)
    assert answer["object"] == ("chat.completion" if chat else "text_completion"), (name, answer)
    assert answer["model"] == "test-model" and answer["id"], (name, answer)
    choice = answer["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    assert text or (chat and choice["message"].get("tool_calls")), (name, choice)
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0, (name, usage)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], (name, usage)
    if "max_tokens" in asked:
        assert usage["completion_tokens"] <= asked["max_tokens"], (name, usage)
    if isinstance(asked.get("prompt"), list):
        assert usage["prompt_tokens"] == len(asked["prompt"]), (name, usage)


def test_an_unknown_model_reaches_no_worker():
    with RecordingWorker() as worker, Serve([worker]) as router:
        raw = next(raw for name, raw in recordings() if name.startswith("001"))
        raw = raw.replace(b'"test-model"', b'"nope-model"')
        status, _, body = send_raw(router.port, raw)
        check_error(status, body, 404, "model_not_found")
        assert not worker.seen, worker.seen
