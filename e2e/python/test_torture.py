"""Answers that are no streams, and HTTP in all its oddity, from a raw worker to a raw client through the router."""
import gzip
import hashlib
import json
import os

from torture import (CHAT, END, FIN, MESSAGES, RESPONSES, RST, Client, Rack, answer, check_502, check_same, each,
                     exchange, head, json_body, piece, post)

APART = 0.002
BODY = b'{ "id":"c",\r\n "choices":[{"message":{"content":"caf\xc3\xa9 \\u2713"}}], "unknown":[1.50,1e3] }\n'
PLAIN = b"application/json"


def test_an_answer_in_two_pieces_at_every_byte():
    sent = answer(BODY, b"X-Engine-Says: Hello  There")

    def run(at):
        got = rack.ask(sent[:at], APART, sent[at:])
        check_same(got, BODY)
        assert got.values(b"x-engine-says") == [b"Hello  There"], got.headers

    with Rack() as rack:
        each(range(1, len(sent)), run)


def test_an_answer_that_breaks_at_every_byte():
    """Within its head it is a 502; behind it the client sees that it is not whole."""
    def run(job):
        sent, begins, path, at, end = job
        got = rack.ask(sent[:at], APART, end, path=path)
        assert got is not None, "a head alone is no answer, and no reason for a silent end"
        if at <= begins or got.status == 502:
            # A reset may also take the rest with it.
            assert at <= begins + 4 or end == RST, got
            return check_502(got, path)
        assert (got.status, got.ended) == (200, "cut") and BODY.startswith(got.body), got
        return None

    with Rack() as rack:
        sized, chunked = answer(BODY), head(kind=PLAIN) + piece(BODY) + END
        each(((sent, sent.index(b"\r\n\r\n") + 4, path, at, end) for sent in (sized, chunked)
              for path in (CHAT, RESPONSES, MESSAGES) for at in range(len(sent)) for end in (FIN, RST)), run)


def test_errors_of_workers_pass_as_they_are():
    with Rack() as rack:
        for status in (b"400 Bad Request", b"401 Unauthorized", b"404 Not Found", b"418 I'm a teapot", b"422 X",
                       b"429 Z", b"500 Internal Server Error", b"503 Y", b"529 Overloaded", b"599 Z"):
            body = b"odd { body of " + status
            got = rack.ask(answer(body, b"X-Odd: 1", status=status))
            check_same(got, body, int(status[:3]))
            assert got.values(b"x-odd") == [b"1"], got.headers
            # After a 429 or 503 it is left alone for a while.
            rack.router.wait_ready(1)


def test_answers_without_a_body():
    """And the connection can be used after each: nothing of it is taken for the next answer."""
    with Rack() as rack, Client(rack.router.port) as client:
        for sent, status in ((b"HTTP/1.1 204 No Content\r\n\r\n", 204),
                             (b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 99\r\n\r\n", 304),
                             (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
                             (head(kind=PLAIN) + END, 200)):
            check_same(client.send(post(rack.will(sent))).answer(), b"", status)
            check_same(client.send(post(rack.will(answer(BODY)))).answer(), BODY)


def test_informational_answers_are_no_answers():
    with Rack() as rack:
        for before in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
                       b"HTTP/1.1 102 Processing\r\n\r\n" * 20):
            check_same(rack.ask(before + answer(BODY)), BODY)
            check_same(rack.ask(before, APART, answer(BODY)), BODY)
            check_502(rack.ask(before, FIN))


def test_switching_protocols_unasked_is_no_answer():
    with Rack() as rack:
        check_502(rack.ask(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: odd\r\n\r\nodd bytes"))
        check_same(rack.ask(answer(BODY)), BODY)


def test_status_lines_of_all_kinds():
    """Read, or refused as a whole: never half."""
    with Rack() as rack:
        rest = b"\r\nContent-Length: 2\r\n\r\nok"
        for line in (b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1 200 odd  words", b"HTTP/1.0 200 OK"):
            check_same(rack.ask(line + rest, FIN), b"ok")
        for line in (b"HTTP/1.1 099 Low", b"HTTP/1.1 600 High", b"HTTP/1.1 999 Higher", b"HTTP/1.1 20 OK",
                     b"HTTP/1.1 2000 OK", b"HTTP/9.9 200 OK", b"HTTP/1.1200 OK", b"ICY 200 OK", b"\x16\x03\x01", b"{}"):
            check_502(rack.ask(line + rest, FIN))


def test_an_answer_that_ends_with_its_connection():
    with Rack() as rack:
        for version in (b"HTTP/1.0", b"HTTP/1.1"):
            start = version + b" 200 OK\r\nContent-Type: application/json\r\n\r\n"
            check_same(rack.ask(start + BODY[:9], APART, BODY[9:], FIN), BODY)
        got = rack.ask(b"HTTP/1.0 200 OK\r\n\r\n" + BODY[:9], 0.05, RST)
        assert got.ended == "cut" or got.status == 502, got
        got = rack.ask(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc")
        check_same(got, b"abc")


def test_lengths_that_don_t_fit():
    with Rack() as rack:
        odd = [(b"Content-Length: 2\r\nContent-Length: 3", None), (b"Content-Length: 2, 3", None),
               (b"Content-Length: -2", None), (b"Content-Length: two", None), (b"Content-Length: 0x2", None),
               (b"Content-Length: 99999999999999999999", None), (b"Content-Length: +2", None),
               (b"Content-Length: 2\r\nContent-Length: 2", b"ok"), (b"Content-Length: 2, 2", b"ok")]
        for lines, body in odd:
            got = rack.ask(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\nok", FIN)
            if body is not None and got.status == 200:
                check_same(got, body)
                assert len(got.values(b"content-length")) <= 1, got.headers
            else:
                check_502(got)
        # Both ways of framing at once: that of the chunks holds, and the length doesn't pass.
        both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        got = rack.ask(both + piece(b"abcdef") + END)
        if got.status == 200:
            check_same(got, b"abcdef")
            assert got.values(b"content-length") in ([], [b"6"]), got.headers
        else:
            check_502(got)


def test_what_follows_an_answer_is_not_the_next_one():
    """Bytes behind the end of a worker's answer: nobody's, and least of all the next client's."""
    forged = answer(b"forged")
    with Rack() as rack:
        for sent in (answer(BODY) + forged, head(kind=PLAIN) + piece(BODY) + END + forged,
                     b"HTTP/1.1 204 No Content\r\n\r\n" + forged,
                     b"HTTP/1.1 304 Not Modified\r\nContent-Length: %d\r\n\r\n" % len(forged) + forged):
            for pause in ((), (APART,)):
                with Client(rack.router.port) as client:
                    first = client.send(post(rack.will(sent, *pause))).answer()
                    assert first.ended == "whole" and first.body in (BODY, b""), first
                    for _ in range(3):
                        check_same(client.send(post(rack.will(answer(BODY)))).answer(), BODY)


def test_a_worker_that_closes_behind_each_answer():
    """The race for a kept-alive connection: an answer, or an error that says it may have run; never another's bytes."""
    with Rack() as rack:
        def run(i):
            body, outcomes = b'{"n":%d}' % i, []
            with Client(rack.router.port) as client:
                for pause in (0, 0.001, 0):
                    got = client.send(post(rack.will(answer(body), pause, FIN if i % 2 else RST))).answer()
                    outcomes.append(got.status)
                    if got.status == 200:
                        check_same(got, body)
                    else:
                        check_502(got)
            return outcomes if i % 2 else []

        outcomes = sum(each(range(200), run), [])
        # A reset may take its answer with it; after a close it is the next request that may meet the end.
        assert outcomes.count(200) > len(outcomes) / 2, outcomes
    # With another worker to go to it is nearly always an answer.
    with Rack(count=3, attempts=2) as rack:
        got = each(range(200), lambda _: exchange(rack.router, post(rack.will(answer(BODY), FIN))).status)
        assert got.count(200) > 180, got


def test_connection_close_is_heeded():
    with Rack() as rack, Client(rack.router.port) as client:
        for _ in range(30):
            got = client.send(post(rack.will(answer(BODY, b"Connection: close"), FIN))).answer()
            check_same(got, BODY)
            # The worker's connection, not the client's.
            assert not any(v.lower() == b"close" for v in got.values(b"connection")), got.headers


def test_compressed_answers_nobody_asked_for():
    packed = gzip.compress(BODY)
    with Rack() as rack:
        got = rack.ask(answer(packed, b"Content-Encoding: gzip", b"Vary: Accept-Encoding"))
        check_same(got, packed)
        assert got.values(b"content-encoding") == [b"gzip"] and got.values(b"content-length") == [b"%d" % len(packed)]


def test_headers_of_answers():
    with Rack() as rack:
        long = bytes(33 + i % 94 for i in range(8 << 10))
        sent = [b"Set-Cookie: a=1; Path=/", b"X-OdD-CaSe: MiXed", b"set-cookie: b=2", b"X-Empty:", b"X-Tab: a\tb  c",
                b"X-Latin: caf\xe9 \xff", b"SET-COOKIE: c=3", b"X-Long: " + long, b"X-Colons: a: b: c",
                b"!#$%&'*+-.^_`|~0: token", b"Connection: X-Secret, keep-alive, X-Other", b"X-Secret: 1", b"x-other: 2",
                b"Keep-Alive: timeout=5", b"Proxy-Authenticate: Basic", b"Upgrade: h2c", b"X-Homing-Worker: forged",
                b"Date: Thu, 01 Jan 1970 00:00:00 GMT"]
        got = rack.ask(answer(BODY, *sent))
        check_same(got, BODY)
        assert got.values(b"set-cookie") == [b"a=1; Path=/", b"b=2", b"c=3"], got.headers
        for name, value in ((b"x-odd-case", b"MiXed"), (b"x-empty", b""), (b"x-tab", b"a\tb  c"), (b"x-long", long),
                            (b"x-latin", b"caf\xe9 \xff"), (b"x-colons", b"a: b: c"), (b"!#$%&'*+-.^_`|~0", b"token"),
                            (b"x-homing-worker", b"w0"), (b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")):
            assert got.values(name) == [value], (name, got.values(name))
        for name in (b"x-secret", b"x-other", b"keep-alive", b"proxy-authenticate", b"upgrade"):
            assert not got.values(name), (name, got.headers)
        got = rack.ask(answer(BODY, *(b"X-%d: %d" % (i, i) for i in range(80))))
        assert [got.values(b"x-%d" % i) for i in range(80)] == [[b"%d" % i] for i in range(80)]


def test_heads_that_are_none():
    """Folded lines, names with spaces, bytes that no header has, more of them than any has: a 502, or something that
    can be read in one way only."""
    with Rack() as rack:
        for line in (b"X-Fold: a\r\n b", b"X-Fold: a\r\n\tb", b"X Y: 1", b"X-Nul: a\x00b", b"X-Space : 1", b": 1",
                     b"nothing", b"X-Cr: a\rb", b"X-\xe9: 1", b"\r\r\n"):
            got = rack.ask(answer(BODY, line), FIN)
            if got.status == 200:
                check_same(got, BODY)
                assert all(set(name) & set(b" \t\x00\r\n") == set() for name, _ in got.headers), got.headers
                assert all(set(value) & set(b"\x00\r\n") == set() for _, value in got.headers), got.headers
            else:
                check_502(got)
        many = b"".join(b"X-%d: 1\r\n" % i for i in range(50_000))
        check_502(rack.ask(b"HTTP/1.1 200 OK\r\n" + many + b"\r\n", FIN))
        check_502(rack.ask(b"HTTP/1.1 200 OK\r\nX-Endless: " + b"a" * (2 << 20), FIN))
        check_same(rack.ask(answer(BODY)), BODY)


def test_64_mib_both_ways():
    """Of random bytes in random pieces; each way by a length and by chunks."""
    big = os.urandom(32 << 20).hex().encode()
    request = json_body()[:-1] + b', "pad": "' + big + b'"}'
    answered = b'{"pad":"' + big[::-1] + b'"}'
    with Rack(gateway='max_body = "128MiB"') as rack:
        for chunked in (False, True):
            if chunked:
                cuts = [0, 1, 99, 70_000, 5 << 20, (33 << 20) + 1, len(request)]
                framed = b"".join(piece(request[a:b]) for a, b in zip(cuts, cuts[1:])) + END
                act = rack.will(head(kind=PLAIN), piece(answered[:3]), piece(answered[3:]), END)
                lines = post(act, body=b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
                got = exchange(rack.router, lines + framed)
            else:
                act = rack.will(answer(answered))
                got = exchange(rack.router, post(act, body=request))
            assert (got.status, got.ended) == (200, "whole"), (got.status, got.ended, got.body[:300])
            assert hashlib.sha256(got.body).digest() == hashlib.sha256(answered).digest()
            assert rack.worker.seen[act].body == request, "the worker got something else"


def test_a_client_that_sends_too_much_is_heard_out():
    """Some clients send all of it before they read; a connection that is reset meanwhile hides the answer from them."""
    body = json_body()[:-1] + b', "pad": "' + b"x" * (40 << 20) + b'"}'
    with Rack() as rack:
        for framed in (post("0", body=body), post("0", body=b"").replace(
                b"Content-Length: 0", b"Transfer-Encoding: chunked") + piece(body[:-9]) + piece(body[-9:]) + END):
            with Client(rack.router.port) as client:
                got = client.send(framed).answer()
                assert got.status == 413 and json.loads(got.body)["error"]["code"] == "body_too_large", got


def test_a_worker_that_answers_before_it_has_read():
    """An early 413, with the connection closed behind it: passed on, or told as broken."""
    refused = b'{"error":{"message":"too much"}}'
    big = json_body()[:-1] + b', "pad": "' + b"x" * (16 << 20) + b'"}'
    with Rack() as rack:
        for end in ((0.05, FIN), (RST,), ()):
            act = rack.will(answer(refused, b"Connection: close", status=b"413 Too Large"), *(end or (0.2, RST)))
            got = exchange(rack.router, post(act, body=big, early=True))
            if got.status == 413:
                check_same(got, refused, 413)
            else:
                check_502(got)
        check_same(rack.ask(answer(BODY)), BODY)
