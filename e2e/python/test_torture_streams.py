"""Event streams in every spelling and cut at every byte, from a raw worker to a raw client through the router."""
import gzip
import json

from torture import (CHAT, END, FIN, MESSAGES, RESPONSES, RST, Client, Rack, answer, check_broken, check_same, each,
                     exchange, head, piece, post)

# A pause that lets what was written before arrive by itself. Where it doesn't, the test is only a weaker one.
APART = 0.002


def chunk(text):
    return json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [
        {"index": 0, "delta": {"content": text}, "finish_reason": None}]}, ensure_ascii=False).encode()


# Each line that the WHATWG's rules allow and a careless relay drops, joins or misreads.
NASTY = (b"\xef\xbb\xbf: a comment first\n\nretry: 3000\nid: 1\nevent: odd\ndata:{\"no\":\"space\"}\n\n:\n"
         b"data: " + chunk("caf\u00e9 \u4f60\u597d \U0001f642") + b"\r\n\r\nid\ndata: {\"two\":\ndata:  \"lines\"}\n\n"
         b"data: " + chunk("data: [DONE]\n\ndata: [DONE]") + b"\n\nfield_of_tomorrow: 1\n\n\n\n"
         b"data: " + chunk("[DONE]") + b"\r\rdata\n\ndata:[DONE]\n\n: behind it\n\n")
SHORT = b'event: a\r\ndata: {"t":"\xe2\x9c\x93"}\r\n\r\n: c\r\nid: 7\r\ndata: 2\r\n\r\ndata: [DONE]\r\n\r\n'
# One for each API, as its engines write it, short enough to be cut at every byte.
STREAMS = {
    CHAT: b'data: {"choices":[{"delta":{"content":"\xe4\xbd\xa0"}}]}\n\ndata: {"x":"data: [DONE]"}\n\ndata: [DONE]\n\n',
    RESPONSES: b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'
               b'event: response.completed\ndata: {"type":"response.completed","sequence_number":1}\n\n',
    MESSAGES: b'event: ping\ndata: {"type": "ping"}\n\nevent: message_stop\r\ndata: {"type":"message_stop"}\r\n\r\n',
}


def test_every_spelling_passes_byte_for_byte():
    with Rack() as rack:
        for kind in (b"text/event-stream", b"text/event-stream; charset=utf-8", b"Text/Event-Stream", b"text/plain"):
            got = rack.ask(head(kind=kind) + piece(NASTY) + END, stream=True)
            check_same(got, NASTY)
            assert got.values(b"content-type") == [kind], got.headers
        drip = [head(), *(part for i in range(len(NASTY)) for part in (piece(NASTY[i:i + 1]), 0))]
        check_same(rack.ask(*drip, END, stream=True), NASTY)


def test_a_stream_in_two_pieces_at_every_byte():
    def run(at):
        check_same(rack.ask(head() + piece(body[:at]), APART, piece(body[at:]), APART, END, stream=True), body)

    with Rack() as rack:
        for body in (NASTY, SHORT):
            each(range(1, len(body)), run)


def test_chunked_framing_in_two_pieces_at_every_byte():
    """The cuts of TCP are those of the framing, too."""
    framed = piece(SHORT[:11]) + piece(SHORT[11:]).replace(b"\r\n", b";ext=\"a\"\r\n", 1) + END

    def run(at):
        check_same(rack.ask(head() + framed[:at], APART, framed[at:], stream=True), SHORT)

    with Rack() as rack:
        each(range(1, len(framed)), run)


def test_a_stream_that_breaks_at_every_byte():
    """By a closed connection all whole events are there, and an honest end; by a reset some may be lost on the way."""
    def run(job):
        path, at, end = job
        body = STREAMS.get(path, SHORT)
        got = rack.ask(head() + (piece(body[:at]) if at else b""), APART, end, path=path, stream=True)
        check_broken(got, body[:at], path, exactly=end == FIN)

    with Rack() as rack:
        each(((path, at, end) for path, body in STREAMS.items() for at in range(len(body) + 1)
              for end in (FIN, RST)), run)


def test_crlf_streams_that_break_at_every_byte():
    def run(job):
        body, at = job
        check_broken(rack.ask(head() + (piece(body[:at]) if at else b""), APART, FIN, stream=True), body[:at])

    with Rack() as rack:
        each(((body, at) for body in (SHORT, SHORT.replace(b"\r\n", b"\r"), NASTY)
              for at in range(len(body) + 1)), run)


def test_framing_that_breaks_at_every_byte():
    """In the middle of a chunk's size, its data, or what ends the body: nothing of it is a clean end."""
    framed = piece(SHORT[:11]) + piece(SHORT[11:]) + END

    def carried(sent):
        """The bytes of the body in what was sent of the framing, whole chunks or not."""
        first = piece(SHORT[:11])
        rest = sent[len(first):]
        begins = rest.find(b"\r\n") + 2
        got = first[3:-2][:max(0, len(sent) - 3)]
        return got + (rest[begins:][:len(SHORT) - 11] if begins > 1 else b"")

    def run(job):
        at, end = job
        got = rack.ask(head() + framed[:at], APART, end, stream=True)
        check_broken(got, carried(framed[:at]), exactly=end == FIN)

    with Rack() as rack:
        each(((at, end) for at in range(len(framed)) for end in (FIN, RST)), run)


def test_nonsense_in_the_framing_is_a_break():
    first = b"data: 1\n\n"
    with Rack() as rack:
        for nonsense in (b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"5\r\nabcdefgh\r\n", b"\r\n",
                         b"5 5\r\nabcde\r\n", b"0x5\r\nabcde\r\n"):
            got = rack.ask(head() + piece(first), APART, nonsense + piece(b"data: 2\n\n") + END, stream=True)
            assert got.ended == "cut", (nonsense, got)
            assert got.body.startswith(first) and b"worker_error" in got.body, (nonsense, got)


def test_a_stream_with_a_length():
    with Rack() as rack:
        check_same(rack.ask(answer(SHORT, kind=b"text/event-stream"), stream=True), SHORT)

        def run(at):
            sent = answer(SHORT, kind=b"text/event-stream")
            got = rack.ask(sent[:len(sent) - len(SHORT) + at], APART, FIN, stream=True)
            if got.status == 502:
                return
            # No room for a word of ours within the length that was told: the connection is cut, which is honest.
            assert (got.status, got.ended) == (200, "cut") and SHORT.startswith(got.body), got

        each(range(len(SHORT)), run)


def test_a_stream_that_ends_with_its_connection():
    """HTTP/1.0's way, and 1.1's without a word of the length: the end of the connection is the end of the body."""
    with Rack() as rack:
        for version in (b"HTTP/1.0", b"HTTP/1.1"):
            lines = head(b"Connection: close", chunked=False).replace(b"HTTP/1.1", version)
            for body in (NASTY, SHORT):
                check_same(rack.ask(lines + body[:40], APART, body[40:], FIN, stream=True), body)
        got = rack.ask(head(chunked=False) + SHORT[:40], 0.05, RST, stream=True)
        check_broken(got, SHORT[:40], exactly=False)


def test_a_stream_without_data_and_one_without_anything():
    with Rack() as rack:
        for body in (b"", b"\n\n", b": only a comment\n\n", b"event: a\nid: 1\n\n", b"data", b"data: unended"):
            check_same(rack.ask(head() + (piece(body) if body else b"") + END, stream=True), body)


def test_events_of_any_size():
    """One byte over what the router holds of an unfinished event, and far more, in pieces that end nowhere."""
    with Rack() as rack:
        for size in (64 << 10, (256 << 10) + 1, (1 << 20) - 7, (1 << 20) + 1, 5 << 20):
            body = b"data: " + b"x" * size + b"\n\ndata: [DONE]\n\n"
            pieces = [piece(body[i:i + 77_777]) for i in range(0, len(body), 77_777)]
            check_same(rack.ask(head(), *pieces, END, stream=True), body)
            # Broken off within: what passed of an event that is too long to hold can't be completed by us.
            part, first = body[:size - 9], b"data: 1\n\n"
            pieces = [piece(part[i:i + 77_777]) for i in range(0, len(part), 77_777)]
            got = rack.ask(head() + piece(first), *pieces, 0.05, FIN, stream=True)
            if len(part) <= 1 << 20:
                check_broken(got, first + part)
            else:
                assert got.ended == "cut" and (first + part).startswith(got.body), got


def test_compressed_events_nobody_asked_for():
    packed = gzip.compress(NASTY)
    with Rack() as rack:
        got = rack.ask(head(b"Content-Encoding: gzip") + piece(packed[:9]), APART, piece(packed[9:]) + END, stream=True)
        check_same(got, packed)
        assert got.values(b"content-encoding") == [b"gzip"] and gzip.decompress(got.body) == NASTY
        got = rack.ask(head(b"Content-Encoding: gzip") + piece(packed[:9]), APART, FIN, stream=True)
        assert (got.status, got.ended, got.body) == (200, "cut", packed[:9]), got


def test_trailers_end_a_stream():
    with Rack() as rack:
        sent = head(b"Trailer: X-Sum") + piece(SHORT) + b"0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n"
        got = rack.ask(sent, stream=True, headers=[b"TE: trailers"])
        check_same(got, SHORT)
        # They pass to whoever takes them, and so does the header that announces them.
        assert b"1" in got.trailers and b"x-sum" in got.trailers.lower(), got.trailers
        assert got.values(b"trailer") == [b"X-Sum"], got


def test_streams_one_after_the_other_on_one_connection():
    """What an answer leaves behind is never the beginning of the next one."""
    with Rack() as rack, Client(rack.router.port) as client:
        for i in range(40):
            body = b"data: %d\n\n" % i + SHORT
            act = rack.will(head() + piece(body[:i]) + piece(body[i:]) + END if i else head() + piece(body) + END)
            check_same(client.send(post(act, stream=True)).answer(), body)


def test_a_stream_to_a_client_of_http_1_0():
    with Rack() as rack:
        act = rack.will(head() + piece(SHORT[:20]), APART, piece(SHORT[20:]) + END)
        request = post(act, stream=True).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        got = exchange(rack.router, request)
        check_same(got, SHORT)
        assert not got.values(b"transfer-encoding"), got
