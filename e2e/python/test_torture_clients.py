"""Requests in all their oddity from a raw client: the worker gets the same bytes, or nothing at all."""
import json
import time

from harness import eventually
from torture import END, Client, Rack, answer, check_same, each, exchange, head, json_body, piece, post

APART = 0.002
OK = answer(b'{"ok":true}')
# Hop by hop, ours, or made anew.
NOT_PASSED = {b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
              b"proxy-authorization", b"proxy-connection", b"content-length", b"x-request-id"}


def chunked(act, body, *sizes, trailers=b"", extension=b""):
    """A request with a chunked body, in chunks of these sizes and one of the rest."""
    lines = post(act, body=b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    framed = b""
    for size in sizes:
        framed += piece(body[:size]).replace(b"\r\n", extension + b"\r\n", 1)
        body = body[size:]
    return lines + framed + piece(body) + b"0\r\n" + trailers + b"\r\n"


def check_refused(got, *statuses):
    """A request that is none: an error, or no answer at all; its connection is not used any more."""
    assert got is None or (got.status in statuses and got.ended == "whole"), got


def test_a_request_in_two_pieces_at_every_byte():
    def run(job):
        make, at = job
        act = rack.will(OK)
        request = make(act)
        with Client(rack.router.port) as client:
            client.send(request[:at])
            time.sleep(APART)
            check_same(client.send(request[at:]).answer(), b'{"ok":true}')
        assert rack.worker.seen[act].body == body

    body = json_body()
    with Rack() as rack:
        for make in (lambda act: post(act, body=body), lambda act: chunked(act, body, 1, 7)):
            # The act's name grows with its number; its last bytes are cut in other runs.
            each(((make, at) for at in range(1, len(make("1")))), run)


def test_a_request_that_ends_at_every_byte_reaches_nobody():
    """Half a request is none, whether its client leaves politely or vanishes."""
    def run(job):
        make, at, vanish = job
        act = rack.will(OK)
        with Client(rack.router.port) as client:
            client.send(make(act)[:at])
            if vanish:
                client.reset()
                return act
            client.socket.shutdown(1)
            check_refused(client.answer(), 400, 408)
        return act

    body = json_body()
    with Rack() as rack:
        for make in (lambda act: post(act, body=body), lambda act: chunked(act, body, 1, 7)):
            acts = each(((make, at, vanish) for at in range(len(make("1"))) for vanish in (False, True)), run)
            assert not [act for act in acts if act in rack.worker.seen]
        check_same(rack.ask(OK), b'{"ok":true}')


def test_chunked_requests_of_all_kinds():
    body = json_body()[:-1] + ', "pad": "caf\u00e9 \u4f60"}'.encode()
    with Rack() as rack:
        for make in (lambda act: chunked(act, body, *[1] * (len(body) - 1)),
                     lambda act: chunked(act, body, 5, extension=b';name="va;lue"'),
                     lambda act: chunked(act, body, 5, extension=b" ;a"),
                     lambda act: chunked(act, body, 5, trailers=b"X-Sum: 1\r\nContent-Length: 3\r\n"),
                     lambda act: chunked(act, body).replace(b"\r\n%x\r\n" % len(body), b"\r\n000%X\r\n" % len(body))):
            act = rack.will(OK)
            check_same(exchange(rack.router, make(act)), b'{"ok":true}')
            seen = rack.worker.seen[act]
            assert seen.body == body, seen.body
            assert not seen.values(b"x-sum") and not seen.values(b"trailer"), seen.headers


def test_framing_that_can_be_read_in_two_ways_is_refused():
    """What another server would end elsewhere: the way by which one client's bytes become another's request."""
    body = json_body()
    hidden = post("hidden", body=body)
    with Rack() as rack:
        rack.worker.acts["hidden"] = (answer(b"forged"),)
        told = b"Content-Length: %d" % len(body)
        for lines, sent in ((told + b"\r\nContent-Length: %d" % (len(body) + 1), body + hidden),
                            (b"Content-Length: +%d" % len(body), body), (b"Content-Length: %d, 5" % len(body), body),
                            (b"Content-Length: -1", body), (b"Content-Length: 1e2", body),
                            (b"Content-Length: 99999999999999999999", body),
                            (b"Transfer-Encoding: gzip", body),
                            (b"Transfer-Encoding: chunked, gzip", piece(body) + END),
                            (b"Transfer-Encoding : chunked", piece(body) + END),
                            (b"Transfer-Encoding: xchunked", piece(body) + END),
                            (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", piece(body) + END),
                            (b"Content-Length : %d" % len(body), body), (b"X-Fold: a\r\n b\r\n" + told, body),
                            (b"X Y: 1\r\n" + told, body), (b"X-Nul: a\x00b\r\n" + told, body),
                            (b"X-Cr: a\rb\r\n" + told, body),
                            (b"Transfer-Encoding: chunked", b"5\r\nabcdefgh\r\n0\r\n\r\n"),
                            (b"Transfer-Encoding: chunked", b"zz\r\n" + body),
                            (b"Transfer-Encoding: chunked", b"-5\r\n" + body),
                            (b"Transfer-Encoding: chunked", b"fffffffffffffffff\r\n" + body)):
            act = rack.will(OK)
            request = post(act, body=b"").replace(b"Content-Length: 0", lines) + sent
            with Client(rack.router.port) as client:
                got = client.send(request).answer()
                check_refused(got, 400, 413, 431, 501)
                assert client.answer() is None, "the connection is still used"
            assert act not in rack.worker.seen, (lines, rack.worker.seen[act].body)
        # Both at once: RFC 9112 lets the chunks hold, and the connection ends then; the worker sees one framing.
        act = rack.will(OK)
        request = post(act, body=b"").replace(b"Content-Length: 0", told + b"\r\nTransfer-Encoding: chunked")
        with Client(rack.router.port) as client:
            got = client.send(request + piece(body) + END).answer()
            if got is not None and got.status == 200:
                check_same(got, b'{"ok":true}')
                seen = rack.worker.seen[act]
                assert seen.body == body, seen.body
                assert len(seen.values(b"content-length")) + len(seen.values(b"transfer-encoding")) == 1, seen.headers
            else:
                check_refused(got, 400)
        assert "hidden" not in rack.worker.seen


def test_headers_of_requests():
    with Rack() as rack:
        long = bytes(33 + i % 94 for i in range(8 << 10))
        sent = [(b"X-OdD-CaSe", b"MiXed"), (b"Cookie", b"a=1"), (b"cookie", b"b=2"), (b"X-Empty", b""),
                (b"X-Tab", b"a\tb  c"), (b"X-Latin", b"caf\xe9 \xff"), (b"X-Long", long),
                (b"!#$%&'*+-.^_`|~0", b"token"), (b"Authorization", b"Bearer x"), (b"User-Agent", b"odd/1"),
                (b"Accept-Encoding", b"gzip, br"), (b"X-Forwarded-For", b"10.0.0.1"),
                (b"Connection", b"X-Secret, Keep-Alive , x-other"), (b"X-Secret", b"1"), (b"X-OTHER", b"2"),
                (b"TE", b"trailers"), (b"Keep-Alive", b"timeout=5"), (b"Upgrade", b"websocket"),
                (b"Proxy-Authorization", b"Basic x"), (b"Proxy-Connection", b"keep-alive")]
        act = rack.will(OK)
        got = exchange(rack.router, post(act, headers=[b": ".join(pair) for pair in sent]))
        check_same(got, b'{"ok":true}')
        seen = rack.worker.seen[act]
        passed = {}
        for name, value in sent:
            if name.lower() not in NOT_PASSED | {b"x-secret", b"x-other"}:
                passed.setdefault(name.lower(), []).append(value)
        for name, values in passed.items():
            assert seen.values(name) == values, (name, seen.values(name))
        told = {b"x-act", b"content-type", b"host", b"content-length", b"x-request-id"}
        assert {name.lower() for name, _ in seen.headers} == set(passed) | told, seen.headers
        assert seen.line == b"POST /v1/chat/completions HTTP/1.1", seen.line


def test_heads_too_large_are_refused():
    body = json_body()
    with Rack() as rack:
        for headers in ([b"X-%d: 1" % i for i in range(5_000)], [b"X-Long: " + b"a" * (1 << 20)]):
            act = rack.will(OK)
            with Client(rack.router.port) as client:
                try:
                    client.send(post(act, body=body, headers=headers))
                    check_refused(client.answer(), 400, 431)
                except ConnectionError:
                    pass
            assert act not in rack.worker.seen
        with Client(rack.router.port) as client:
            client.send(b"POST /" + b"a" * (1 << 17) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            check_refused(client.answer(), 400, 404, 414, 431)


def test_requests_that_come_before_their_turn():
    """Pipelined: answered in order, each with its own."""
    with Rack() as rack, Client(rack.router.port) as client:
        bodies = [b'{"n":%d}' % i for i in range(20)]
        streamed = [head() + piece(b"data: " + body + b"\n\n") + END for body in bodies]
        acts = [rack.will(0.01 if i % 3 else 0, answer(bodies[i]) if i % 2 else streamed[i]) for i in range(20)]
        client.send(b"".join(post(act) for act in acts))
        for i, body in enumerate(bodies):
            check_same(client.answer(), body if i % 2 else b"data: " + body + b"\n\n")


def test_expect_100_continue():
    body = json_body()
    with Rack() as rack:
        act = rack.will(OK)
        request = post(act, body=body, headers=[b"Expect: 100-continue"])
        with Client(rack.router.port) as client:
            client.send(request[:-len(body)])
            head_came = client.socket.recv(4096)
            assert head_came.startswith(b"HTTP/1.1 100 "), head_came
            check_same(client.send(body).answer(), b'{"ok":true}')
        assert rack.worker.seen[act].body == body and not rack.worker.seen[act].values(b"expect")


def test_a_body_that_is_no_json_reaches_nobody():
    with Rack() as rack:
        for body in (b"", b"\xff\xfe", b"[]", b"{", b'{"model":"test-model"', b"\x00" * 99,
                     b'{"model":"test-model"}{"a":1}',
                     b'{"model":"test-model","messages":[{"role":"user","content":"\xed\xa0\x80"}]}'):
            act = rack.will(OK)
            got = exchange(rack.router, post(act, body=body))
            if act in rack.worker.seen:
                # Whatever it is to us, the engine gets it as it was sent.
                assert rack.worker.seen[act].body == body
                check_same(got, b'{"ok":true}')
            else:
                assert got.status == 400 and json.loads(got.body)["error"]["code"] == "invalid_request", (body, got)


def test_a_client_that_vanishes_at_every_byte_of_its_answer():
    """Whatever of the stream it has read, the worker's connection is closed and nothing is left of it."""
    events = b"".join(b"data: %d\n\n" % i for i in range(9))

    def run(at):
        act = rack.will(head() + piece(events), 30, END)
        client = Client(rack.router.port)
        client.send(post(act, stream=True))
        got = b""
        while len(got) < at:
            got += client.socket.recv(at - len(got))
        (client.reset if at % 2 else client.close)()

    with Rack() as rack:
        each(range(0, 260), run)
        eventually(lambda: all(w["active_requests"] == 0 for w in rack.router.workers()), "nothing runs", 20)
