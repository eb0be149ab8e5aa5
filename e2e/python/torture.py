"""A worker that answers any bytes at all, and a client that sends any (standard library only).

The other stand-ins are engines that misbehave; this one knows nothing of HTTP but where a request ends. What it
answers is a list of steps that the request names in its header `x-act`: bytes are written as they are, a number is a
pause in seconds, FIN and RST end the connection. The client is as raw: it reads an answer by its framing alone,
and tells whether it came to its end. Between the two stands the router, and `check_same` and `check_broken` say
what it may do: pass everything on byte for byte, or say honestly that it can't.
"""
import asyncio
import itertools
import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from harness import MODEL, PATIENCE, Serve, eventually

FIN, RST = "FIN", "RST"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
LINGER_NOT = struct.pack("ii", 1, 0)
# Exchanges at once.
PARALLEL = 16


class Request:
    """One request as it came: its first line, its headers in order, its body without framing."""

    def __init__(self, line, headers):
        self.line, self.headers, self.body = line, headers, b""

    def values(self, name):
        """The values of a header, in their order."""
        return [v for k, v in self.headers if k.lower() == name]


class TortureWorker:
    """An engine for MODEL at a free loopback port. `seen` has the whole requests by their acts; `garbage` what was
    none."""

    def __init__(self, settings=""):
        self.settings, self.acts, self.seen, self.garbage, self.left = settings, {}, {}, [], {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        async def serve():
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512, limit=1 << 20)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            async with server:
                await self._stop.wait()

        def run():
            asyncio.set_event_loop(self._loop)
            self._stop = asyncio.Event()
            self._loop.run_until_complete(serve())
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE)
        self.url = f"http://127.0.0.1:{self.port}"

    def will(self, *steps):
        """Notes what to answer -> the act's name, for a request's `x-act`."""
        name = str(next(self._numbers))
        self.acts[name] = steps
        self.left[name] = threading.Event()
        return name

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self.close()
        assert failure or not self.garbage, f"no requests, but bytes on a worker's connection: {self.garbage}"

    async def _connection(self, reader, writer):
        try:
            while await self._serve(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader, writer):
        """One request; True if the connection may carry another."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *rest = head[:-4].split(b"\r\n")
        if line.count(b" ") != 2 or not line.endswith(b" HTTP/1.1"):
            self.garbage.append(line)
            return False
        split = (raw.partition(b":") for raw in rest)
        request = Request(line, [(name, value.strip(b" \t")) for name, _, value in split])
        act = request.values(b"x-act")
        if not act:
            await self._probe(line, writer)
            return True
        act = act[0].decode()
        if request.values(b"x-early"):
            # It answers a request that it has not read.
            self.seen[act] = request
            return await self._play(act, reader, writer)
        request.body = await read_framed(reader, request)
        self.seen[act] = request
        return await self._play(act, reader, writer)

    async def _play(self, act, reader, writer):
        try:
            return await self._steps(self.acts[act], reader, writer)
        finally:
            self.left[act].set()

    async def _steps(self, steps, reader, writer):
        for step in steps:
            if step == RST:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
                writer.transport.abort()
                return False
            if step == FIN:
                writer.write_eof()
                await self._leave(reader)
                return False
            if isinstance(step, (int, float)):
                await asyncio.sleep(step)
            else:
                writer.write(step)
                await writer.drain()
        return True

    async def _leave(self, reader):
        """Until the router has left the ended connection too (or seems not to): no later request can meet its end."""
        try:
            await asyncio.wait_for(reader.read(), 1)
        except (OSError, asyncio.TimeoutError):
            pass

    async def _probe(self, line, writer):
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]}
        pages = {b"/health": b"", b"/v1/models": json.dumps(models).encode()}
        body = pages.get(line.split(b" ")[1])
        writer.write(answer(body) if body is not None else answer(b"{}", status=b"404 Not Found"))
        await writer.drain()


async def read_framed(reader, request):
    """A request's body, its framing taken off."""
    if b"chunked" in b",".join(request.values(b"transfer-encoding")).lower():
        body = bytearray()
        while True:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            if size == 0:
                while await reader.readuntil(b"\r\n") != b"\r\n":
                    pass
                return bytes(body)
            body += await reader.readexactly(size)
            assert await reader.readexactly(2) == b"\r\n"
    return await reader.readexactly(int((request.values(b"content-length") or [b"0"])[0]))


def answer(body, *headers, status=b"200 OK", kind=b"application/json"):
    """A whole answer with a length."""
    more = b"".join(line + b"\r\n" for line in headers)
    return (b"HTTP/1.1 %s\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n" % (status, kind, more, len(body))) + body


def head(*headers, kind=b"text/event-stream", chunked=True):
    """The head of an answer whose body follows."""
    lines = [b"HTTP/1.1 200 OK", b"Content-Type: " + kind, *headers]
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def piece(data):
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"


class Answer:
    """An answer as it came. `ended`: "whole" by its framing, "cut" if the connection ended first."""

    def __init__(self, status, headers):
        self.status, self.headers, self.body, self.ended, self.trailers = status, headers, b"", "whole", b""

    def values(self, name):
        return [v for k, v in self.headers if k.lower() == name]

    def __repr__(self):
        return f"{self.status} {self.ended} {self.headers} {self.body[-300:]!r}"


class Client:
    """One raw connection to the gateway."""

    def __init__(self, port, timeout=PATIENCE):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)
        return self

    def reset(self):
        """Vanishes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        self.close()

    def close(self):
        self._file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def answer(self):
        """The next answer; `None` if the connection ends without a byte of one. 1xx are kept in `informed`."""
        informed = []
        while True:
            got = self._head()
            if got is None or not 100 <= got.status < 200 or got.status == 101:
                break
            informed.append(got)
        if got is not None:
            got.informed = informed
            try:
                self._body(got)
            except (ConnectionError, EOFError):
                got.ended = "cut"
        return got

    def _line(self):
        line = self._file.readline(1 << 17)
        if not line.endswith(b"\r\n"):
            raise EOFError(line)
        return line[:-2]

    def _head(self):
        try:
            first = self._line()
        except EOFError as e:
            assert not e.args[0], e.args[0]
            return None
        except ConnectionError:
            return None
        assert first.startswith(b"HTTP/1.1 ") or first.startswith(b"HTTP/1.0 "), first
        headers = []
        while line := self._line():
            assert line[:1] not in b" \t", f"a folded header: {line}"
            name, _, value = line.partition(b":")
            headers.append((name, value.strip(b" \t")))
        return Answer(int(first[9:12]), headers)

    def _exactly(self, got, size):
        while size:
            data = self._file.read1(min(size, 1 << 20))
            if not data:
                raise EOFError
            got += data
            size -= len(data)

    def _body(self, got):
        body = bytearray()
        try:
            if got.status in (101, 204, 304):
                return
            if b"chunked" in b",".join(got.values(b"transfer-encoding")).lower():
                while size := int(self._line().split(b";")[0], 16):
                    self._exactly(body, size)
                    assert self._line() == b""
                while trailer := self._line():
                    got.trailers += trailer + b"\r\n"
            elif length := got.values(b"content-length"):
                assert len(set(length)) == 1, length
                self._exactly(body, int(length[0]))
            else:
                while data := self._file.read1(1 << 20):
                    body += data
        finally:
            got.body = bytes(body)


def json_body(path=CHAT, stream=False, **more):
    """A request's body, of the API of the path."""
    said = {"input": "Hi"} if path == RESPONSES else {"messages": [{"role": "user", "content": "Hi"}]}
    return json.dumps({"model": MODEL, "stream": stream, "max_tokens": 9, **said, **more}).encode()


def post(act, path=CHAT, stream=False, body=None, headers=(), early=False):
    """A request's bytes."""
    body = json_body(path, stream) if body is None else body
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: router", b"Content-Type: application/json",
             b"X-Act: " + act.encode(), *([b"X-Early: 1"] if early else []), *headers,
             b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def exchange(router, request):
    """One request on a connection of its own -> the answer, also to one that was cut short by it."""
    with Client(router.port) as client:
        try:
            client.send(request)
        except ConnectionError:
            pass
        return client.answer()


def each(jobs, run):
    """run(job) of many at once -> their results, in order. The first failure is raised, with its job."""
    def one(job):
        try:
            return run(job)
        except Exception as e:
            raise AssertionError(f"{job}: {type(e).__name__}: {e}") from e

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(one, jobs))


# No failure of a request may take a worker away from the next one: those here are made for failing.
EXTRA = ('[index]\nsource = "off"\n[retry]\nattempts = {attempts}\nbudget = 1.0\n'
         '[health]\ninterval = "200ms"\nfailures = 100\n')


class Rack:
    """A router over `count` torture workers; at the end nothing may run any more by its books."""

    def __init__(self, count=1, attempts=0, gateway="", extra=""):
        self.workers = [TortureWorker() for _ in range(count)]
        try:
            self.router = Serve(self.workers, extra=EXTRA.format(attempts=attempts) + extra, gateway=gateway)
        except BaseException:
            for worker in self.workers:
                worker.close()
            raise
        self.worker = self.workers[0]

    def will(self, *steps):
        """The same act at each worker."""
        return [worker.will(*steps) for worker in self.workers][0]

    def ask(self, *steps, path=CHAT, stream=False, **more):
        """One exchange with this act. One that ends its connection is over when the router has left it too."""
        act = self.will(*steps)
        got = exchange(self.router, post(act, path, stream, **more))
        if steps and steps[-1] == FIN:
            ended = (worker.left[act] for worker in self.workers if act in worker.seen)
            assert all(event.wait(PATIENCE) for event in ended), "a connection that ended is kept"
        return got

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        try:
            if not failure:
                assert self.router.proc.poll() is None, self.router.log()
                eventually(lambda: all(w["active_requests"] == 0 for w in self.router.workers()), "nothing runs")
                assert self.router.admin_json("/admin/sessions")["leases"] == 0
                assert "panicked" not in self.router.stderr(), self.router.log()
        finally:
            self.router.close()
            for worker in self.workers:
                worker.__exit__(failure)


def parse_sse(data):
    """The events of a stream by the WHATWG's rules -> [(event, id, data)] of those that are whole."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events, fields = [], []
    for line in text.split(b"\n")[:-1]:
        if line:
            name, _, value = line.partition(b":")
            if name:
                fields.append((name, value.removeprefix(b" ")))
            continue
        said = [v for k, v in fields if k == b"data"]
        last = {k: v for k, v in fields if k != b"data"}
        if said:
            events.append((last.get(b"event", b""), last.get(b"id", b""), b"\n".join(said)))
        fields = []
    return events


def check_same(got, body, status=200):
    """The answer is this body, to the byte, and whole."""
    assert got is not None, "the connection was closed without an answer"
    assert (got.status, got.ended) == (status, "whole"), got
    assert got.body == body, (len(got.body), len(body), got)


def check_502(got, path=CHAT):
    """Nothing had begun: one error in the API's shape, by our own word that it may have run."""
    assert got is not None and (got.status, got.ended) == (502, "whole"), got
    check_error_shape(path, json.loads(got.body))
    assert got.values(b"x-should-retry") == [b"false"], got.headers


def check_error_shape(path, error, event=False):
    if path == RESPONSES and event:
        assert error["type"] == "error" and error["code"] == "worker_error" and error["message"], error
        assert isinstance(error["sequence_number"], int), error
    elif path == MESSAGES:
        assert error["type"] == "error" and error["error"]["type"] == "api_error", error
        assert error["error"]["message"], error
    else:
        assert error["error"]["code"] == "worker_error" and error["error"]["message"], error


def check_broken(got, sent, path=CHAT, exactly=True):
    """A stream that broke off behind the bytes `sent`: a 502, or all of its whole events (`exactly`; else the first of
    them, as behind a reset), one error in the API's shape, and no clean end."""
    whole = parse_sse(sent)
    if got is not None and got.status == 502:
        assert not (exactly and whole), f"a 502 though {len(whole)} events had come"
        return check_502(got, path)
    assert got is not None and (got.status, got.ended) == (200, "cut"), got
    events = parse_sse(got.body)
    assert events, got
    (name, _, data), events = events[-1], events[:-1]
    assert events == whole[:len(events)], (events, whole)
    assert not exactly or len(events) == len(whole), (events, whole)
    assert name == (b"" if path == CHAT else b"error"), name
    check_error_shape(path, json.loads(data), event=True)
    ours = got.body.rindex(b"data: " if path == CHAT else b"event: error")
    assert sent.startswith(got.body[:ours]), (got.body, sent)
    return None
