"""A stand-in engine that does what a test tells it, request by request (standard library only).

`recording_worker` answers every request alike and keeps it byte for byte; this one is for sessions: it says
429 on order, resets, stalls in a stream, is gone and comes back as another life. What it is to do
next is a list of acts; when that is empty it answers. `seen` has each request that came to a completion
endpoint, oldest first, whatever was done with it.
"""
import json
import socket
import socketserver
import struct
import threading

from harness import MODEL
from recording_worker import Request, read_body, read_head

# How long an act waits for a test that has forgotten it.
FORGOTTEN = 60


class Status:
    """Answers with this status, these headers and this body, to the byte; once `after` is open, if given."""

    def __init__(self, status, headers=None, body=b'{"error":{"message" : "the engine says no"}}', after=None):
        self.status, self.headers, self.body, self.after = status, headers or {}, body, after


class Reset:
    """Breaks the connection off before a byte of the answer."""


class Hold:
    """Waits for the event `open` before it answers; or, of a stream, after its first event (`begun`)."""

    def __init__(self, begun=False):
        self.open, self.begun = threading.Event(), begun


class ScriptedWorker:
    """One engine on a loopback port; `settings` are more lines of its [[workers]] table."""

    def __init__(self, settings="", started=1_700_000_000):
        self.settings, self.started = settings, started
        self.seen, self.acts, self.default = [], [], None
        self.healthy = True
        # Served names, each with the one that it is an adapter of.
        self.models = {MODEL: None}
        # Connections are closed behind each answer, without a word of it in the answer.
        self.closes = False
        self.port, self.name = 0, None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, started=None):
        """Listens, again at the same port once it has one; `started`: as another process."""
        self.started = started or self.started
        self._connections, worker = [], self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self):
                try:
                    while worker._serve(self) and not worker.closes:
                        pass
                except (OSError, ValueError):
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address, request_queue_size = True, True, 256

            def get_request(self):
                connection, address = super().get_request()
                worker._connections.append(connection)
                return connection, address

            def handle_error(self, *_):
                pass

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """As a killed process: its port refuses, its connections are cut."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def will(self, *acts):
        """What it does with the requests to come, one each."""
        self.acts.extend(acts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _serve(self, handler):
        head = read_head(handler.rfile)
        if head is None:
            return False
        request = Request(*head, read_body(handler.rfile, head[1]))
        path = request.target.split("?")[0]
        if request.method != "POST":
            self._probe(handler.wfile, path)
            return True
        if self._is_no_completion(handler.wfile, path):
            return True
        self.seen.append(request)
        try:
            act = self.acts.pop(0)
        except IndexError:
            act = self.default
        if isinstance(act, Status):
            if act.after:
                act.after.open.wait(FORGOTTEN)
            send(handler.wfile, act.status, act.body, act.headers)
        elif isinstance(act, Reset):
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            # The files hold it open; shutting down would be a polite end.
            handler.rfile.close()
            handler.wfile.close()
            handler.connection.close()
            return False
        else:
            hold = act if isinstance(act, Hold) else None
            if hold and not hold.begun:
                hold.open.wait(FORGOTTEN)
            self._answer(handler.wfile, json.loads(request.body), hold)
        return True

    def _probe(self, wfile, path):
        if path == "/health":
            send(wfile, 200 if self.healthy else 503, b"")
        elif path == "/metrics":
            send(wfile, 200, b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %d\n"
                 % self.started)
        elif path == "/v1/models":
            models = [{"id": name, "object": "model", "created": 1, "owned_by": "vllm", "parent": parent}
                      for name, parent in self.models.items()]
            send(wfile, 200, json.dumps({"object": "list", "data": models}).encode())
        else:
            send(wfile, 404, b'{"detail":"Not Found"}')

    def _is_no_completion(self, wfile, path):
        """Answers a POST that asks for no completion; False: it does."""
        return False

    def _answer(self, wfile, body, hold):
        if not body.get("stream"):
            send(wfile, 200, json.dumps({
                "id": "cmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": "I see."}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}).encode())
            return
        wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i, word in enumerate(("I", " see", ".")):
            chunk = {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
                     "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
            piece(wfile, b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if i == 0 and hold and hold.begun:
                hold.open.wait(FORGOTTEN)
        piece(wfile, b"data: [DONE]\n\n")
        piece(wfile, b"")


def piece(wfile, data):
    """One chunk of a chunked body."""
    wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def send(wfile, status, body, headers=None):
    """A whole answer in one write."""
    more = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items()).encode()
    wfile.write(b"HTTP/1.1 %d Scripted\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
                % (status, more, len(body), body))
