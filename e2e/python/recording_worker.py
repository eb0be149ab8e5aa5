"""A stand-in engine that keeps what reaches it, byte for byte (standard library only).

http.client and http.server normalise headers; a proxy's test must not. So this reads the socket itself,
and keeps each request's line, its headers in order as sent, and its body as it was after the
framing. It answers like an engine for one model, and with bytes that a proxy which parsed and
re-serialised them could not reproduce (odd spacing, unknown fields, comments in the stream).
"""
import json
import socket
import socketserver
import threading

MODEL = "test-model"

JSON_ANSWER = (b'{ "id":"cmpl-1", "object" : "chat.completion","created":1.0,\r\n "model":"test-model",'
               b'"choices":[{"index":0,"message":{"role":"assistant","content":"caf\\u00e9 \xe2\x9c\x93"},'
               b'"finish_reason":"stop","unknown_field":{"b":1,"a":[2.50, 1e3]}}],'
               b'"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7} }\n')

# One list item is one write, so that a stream arrives in pieces which are not whole events.
STREAM_ANSWER = [
    b": a comment first\n\n",
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b'data:{"id":"cmpl-1","object":"chat.completion.chunk", "created":1,"model":"test-model",'
    b'"choices":[{"index":0,"delta":{"content":"caf\\u00e9 ',
    b'\xe2\x9c\x93"},"finish_reason":null}]}\r\n\r\n',
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"odd":[ ]}\n\n',
    b"data: [DONE]\n\n",
]


class Request:
    """One request as it came: method, target, version, headers as (name, value) bytes, body."""

    def __init__(self, line, headers, body):
        self.method, self.target, self.version = line.decode("latin-1").split(" ", 2)
        self.headers, self.body = headers, body

    def values(self, name):
        """The values of a header, in order; b"" never stands for an absent one."""
        return [v for k, v in self.headers if k.lower() == name]


def read_head(file):
    """A request line and headers from a buffered socket; None at the end of the connection."""
    line = file.readline(65536)
    while line in (b"\r\n", b"\n"):
        line = file.readline(65536)
    if not line:
        return None
    headers = []
    while True:
        raw = file.readline(65536)
        if raw in (b"\r\n", b"\n", b""):
            return line.rstrip(b"\r\n"), headers
        name, _, value = raw.rstrip(b"\r\n").partition(b":")
        headers.append((name, value.strip(b" \t")))


def read_body(file, headers):
    """The body after its framing is taken off."""
    named = {k.lower(): v for k, v in headers}
    if b"chunked" in named.get(b"transfer-encoding", b"").lower():
        body = b""
        while True:
            size = int(file.readline(1024).split(b";")[0], 16)
            body += file.read(size)
            file.readline(1024)
            if size == 0:
                return body
    return file.read(int(named.get(b"content-length", b"0")))


class RecordingWorker:
    """An engine on a free loopback port. `seen` has the requests to the completion endpoints, oldest
    first, `probes` the router's own. Leaving the `with` block fails if something else came than
    whole requests, as it does when a proxy's framing and its body disagree.

    `gate`, when not None, is an Event for which each stream waits after its first content chunk.
    `kv_event_sources` is what the engine says at that path; None: it has no such path (404).
    """

    def __init__(self, port=0, gate=None, kv_event_sources=None, models=(MODEL,)):
        self.seen, self.probes, self.garbage = [], [], []
        self.gate, self.kv_event_sources, self.models = gate, kv_event_sources, models
        worker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                try:
                    while worker._serve(self.rfile, self.wfile):
                        pass
                except OSError:
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self.close()
        assert failure or not self.garbage, f"no requests, but bytes on a worker's connection: {self.garbage}"

    def _serve(self, rfile, wfile):
        """One request; True if the connection may carry another."""
        head = read_head(rfile)
        if head is None:
            return False
        if head[0].count(b" ") != 2 or not head[0].endswith(b" HTTP/1.1"):
            self.garbage.append(head[0])
            return False
        request = Request(*head, read_body(rfile, head[1]))
        path = request.target.split("?")[0]
        if request.method == "POST" and path.startswith("/v1/"):
            self.seen.append(request)
            self._complete(request, wfile)
            return True
        self.probes.append(request)
        answer = {
            "/health": b"",
            "/metrics": b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n",
            "/v1/models": json.dumps({"object": "list", "data": [
                {"id": name, "object": "model", "created": 1, "owned_by": "vllm", "root": name,
                 "parent": None, "max_model_len": 32768} for name in self.models]}).encode(),
        }
        if self.kv_event_sources is not None:
            answer["/kv_event_sources"] = json.dumps(self.kv_event_sources).encode()
        if path in answer:
            self._send(wfile, b"200 OK", answer[path])
        else:
            self._send(wfile, b"404 Not Found", b'{"detail":"Not Found"}')
        return True

    def _complete(self, request, wfile):
        if not json.loads(request.body).get("stream"):
            self._send(wfile, b"200 OK", JSON_ANSWER, b"X-Engine-Says: Hello  There\r\n"
                       b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n")
            return
        wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                    b"X-Engine-Says: Hello  There\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i, piece in enumerate(STREAM_ANSWER):
            wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            wfile.flush()
            if i == 1 and self.gate is not None:
                self.gate.wait(60)
        wfile.write(b"0\r\n\r\n")
        wfile.flush()

    def _send(self, wfile, status, body, more=b""):
        wfile.write(b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
                    % (status, more, len(body), body))
        wfile.flush()


def free_port():
    """A port that was free a moment ago, for a worker that is to come up later."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
