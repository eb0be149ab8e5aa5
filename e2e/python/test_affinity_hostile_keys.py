"""R01: ten thousand session keys that somebody made up to break something. Each is a session, no session or
a 400; the router goes on; and no line of its log, nor a list of its admin API, has a key in it.

Over raw sockets, because no HTTP library sends most of these. Every key bears MARK, which nothing else does.
"""
import base64
import json
import random
import socket
import unicodedata
from urllib.parse import quote_from_bytes

from harness import MODEL, PATIENCE, call, eventually
from scripted_worker import ScriptedWorker
from sessions import Background, Fleet

MARK = "zq7Kj"
COUNT = 10_000
OWN = [b"x-homing-session-id", b"X-Homing-Session-ID", b"x-dynamo-session-id", b"x-dynamo-session-affinity-id"]
FOREIGN = [b"x-session-id", b"session-id", b"session_id", b"x-claude-code-session-id", b"x-litellm-session-id",
           b"X-GROK-CONV-ID", b"x-session-affinity"]
PARENTS = [b"x-homing-parent-session-id", b"x-dynamo-parent-session-id"]
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
# What a request may come to: a session, none, a 400 of ours, or a 4xx of the HTTP layer.
SESSION, NONE, REFUSED, BROKEN = "session", "none", "refused", "broken"


def text_key(i, dice):
    """A key that is text, but not of the tame kind -> bytes without control characters."""
    return dice.choice([
        f"{MARK}{i}",
        f"{MARK}{i} %s%n{{}}${{jndi:ldap://x}}",
        f"{MARK}{i}'\";--<script>",
        f"../../{MARK}{i}/..%2f%00",
        f"{MARK}{i}".replace("K", "\u041a"),                         # a Cyrillic K
        f"{MARK}{i}\u200b\u202e",
        unicodedata.normalize("NFD", f"é{MARK}{i}"),
        f"{MARK}{i}" + "k" * dice.randrange(200),
        "x-homing-session-id: " + f"{MARK}{i}",
        f"level=ERROR session={MARK}{i}",
    ]).encode()


def hostile(i, dice):
    """The i-th request -> (header lines, body, what may come of it)."""
    body = json.dumps(BODY).encode()
    own, foreign = dice.choice(OWN), dice.choice(FOREIGN)
    mark = f"{MARK}{i}".encode()
    kind = i % 20
    if kind < 4:
        return [own + b": " + text_key(i, dice)], body, {SESSION}
    if kind == 4:
        return [foreign + b": " + text_key(i, dice)], body, {SESSION}
    if kind == 5:
        return [own + b":" + dice.choice([b"", b" ", b"\t  \t"])], body, {NONE}
    if kind == 6:
        return [own + b": " + mark.ljust(dice.choice([256, 256, 255]), b"k")], body, {SESSION}
    if kind == 7:
        return [own + b": " + mark.ljust(dice.choice([257, 258, 300, 4096, 8000]), b"k")], body, {REFUSED}
    if kind == 8:
        return [foreign + b": " + mark.ljust(dice.choice([4095, 4096]), b"k")], body, {SESSION}
    if kind == 9:
        return [foreign + b": " + mark.ljust(dice.choice([4097, 5000, 9000]), b"k")], body, {NONE}
    if kind == 10:
        # far beyond what a head may be
        return [own + b": " + mark * (dice.choice([20_000, 600_000]) // len(mark))], body, {REFUSED, BROKEN}
    if kind == 11:
        high = bytes(dice.randrange(0x80, 0x100) for _ in range(dice.randrange(1, 40)))
        return [dice.choice([own, foreign]) + b": " + mark + high], body, {SESSION}
    if kind == 12:
        control = bytes([dice.choice([c for c in range(0x20) if c not in (9, 10, 13)] + [0x7f])])
        return [dice.choice([own, foreign]) + b": " + mark + control + b"z"], body, {REFUSED, BROKEN}
    if kind == 13:
        # the one control character that HTTP itself lets through
        return [own + b": " + mark + b"\tz"], body, {REFUSED}
    if kind == 14:
        other = dice.choice([mark, mark, b"other" + mark])
        return [own + b": " + mark, own + b": " + other], body, {SESSION if other == mark else REFUSED}
    if kind == 15:
        # a later header of less weight is nobody's business; an empty one counts as absent
        return [own + b": " + mark, foreign + b": other" + mark, b"x-homing-session-id:"], body, {SESSION}
    if kind == 16:
        return [dice.choice([
            own + b": " + mark + b"\r\n " + mark,                    # folded
            own + b" : " + mark,
            own + b": " + mark + b"\rx-homing-affinity: off",
            b": " + mark,
            b"\xffname: " + mark])], body, {REFUSED, BROKEN, SESSION, NONE}
    if kind == 17:
        parent = dice.choice(PARENTS)
        bad = dice.random() < 0.5
        value = mark.ljust(300, b"k") if bad else text_key(i, dice)
        return [parent + b": " + value], body, {REFUSED if bad else NONE}
    key = dice.choice([
        f"{MARK}{i}\n\nlevel=ERROR \x1b[31m\x00", f"{MARK}{i}" * 900, f"{MARK}{i}\u2028\ufeff\U0001f600",
        f"\ud800{MARK}{i}", [f"{MARK}{i}"], {"id": f"{MARK}{i}"}, i, None, "", True, f"{MARK}{i}"])
    if kind == 18:
        return [], json.dumps(BODY | {"prompt_cache_key": key}).encode(), {SESSION, NONE, REFUSED}
    user = dice.choice([key, json.dumps({"session_id": f"{MARK}{i}"}), '{"session_id": ' * 50 + f'"{MARK}{i}"',
                        f"user_x_account__session_{MARK}{i}"])
    return [], json.dumps(BODY | {"metadata": {"user_id": user}}).encode(), {SESSION, NONE, REFUSED}


class Client:
    """Requests as bytes, over a connection that is made anew whenever the router closes it."""

    def __init__(self, port):
        self.port, self.sock, self.file = port, None, None

    def ask(self, headers, body):
        """-> (status, affinity word, error code, whole answer)."""
        if self.sock is None:
            self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.file = self.sock.makefile("rb")
        head = b"\r\n".join([b"POST /v1/chat/completions HTTP/1.1", b"Host: x",
                             b"Content-Length: %d" % len(body), *headers])
        try:
            self.sock.sendall(head + b"\r\n\r\n" + body)
        except OSError:
            pass                                                     # it had enough; its answer may be there
        try:
            lines = [self.file.readline(65536)]
            while lines[-1] not in (b"\r\n", b""):
                lines.append(self.file.readline(65536))
        except ConnectionResetError:
            lines = [b""]
        if lines[-1] == b"":
            self.close()
            return None, None, None, b""
        status = int(lines[0].split()[1])
        told = {k.strip().lower(): v.strip() for k, _, v in (line.partition(b":") for line in lines[1:])}
        answer = self.file.read(int(told.get(b"content-length", 0)))
        if told.get(b"connection") == b"close":
            self.close()
        code = None
        if status != 200 and answer:
            code = json.loads(answer)["error"]["code"]
        return status, told.get(b"x-homing-affinity", b"").decode(), code, b"".join(lines) + answer

    def close(self):
        if self.sock:
            self.file.close()
            self.sock.close()
        self.sock = None


def outcome(status, word, code):
    if status == 200:
        return NONE if word == "none" else SESSION
    if status == 400 and code in ("invalid_session_id", "invalid_request"):
        return REFUSED
    # the HTTP layer's own 400 or 431, or a connection that it closed
    assert code is None and status in (400, 431, None), (status, word, code)
    return BROKEN


def send_all(port, numbers, seed):
    """Sends these -> how many came to what."""
    client, dice, counts = Client(port), random.Random(seed), {}
    for i in numbers:
        headers, body, may = hostile(i, dice)
        status, word, code, answer = client.ask(headers, body)
        got = outcome(status, word, code)
        assert got in may, (i, [h[:80] for h in headers], body[-80:], status, word, code, may)
        if got == REFUSED:
            assert code != "invalid_session_id" or word == "rejected", (i, word)
            assert MARK.encode() not in answer, (i, answer)
        counts[got] = counts.get(got, 0) + 1
    client.close()
    return counts


def traces(text):
    """The places of a text that give a key away, plainly or in a usual disguise."""
    mark = MARK.encode()
    wanted = {MARK, mark.hex(), MARK.replace("K", "\u041a"), ", ".join(str(b) for b in mark)}
    # without the end, which the byte behind it changes
    wanted.add(base64.b64encode(mark)[:6].decode())
    low = text.lower()
    return [text[max(0, at - 80):at + 80] for w in wanted for at in [low.find(w.lower())] if at >= 0]


def test_r01_ten_thousand_hostile_keys():
    with Fleet(2) as fleet:
        router, threads = fleet.router, 4
        sent = [Background(lambda t=t: send_all(router.port, range(t, COUNT, threads), seed=t)) for t in range(threads)]
        counts = {}
        for one in sent:
            one.join(120)
            for got, count in one.result().items():
                counts[got] = counts.get(got, 0) + count
        assert sum(counts.values()) == COUNT, counts
        assert counts[SESSION] > 3000 and counts[REFUSED] > 1500 and counts[NONE] > 1000, counts
        # a refusal reaches nobody
        assert fleet.seen() == counts[SESSION] + counts[NONE], (fleet.seen(), counts)
        fleet.quiet()
        # it serves, and it knows its sessions
        assert [fleet.ok("tame").word for _ in range(3)] == ["new", "hit", "hit"]
        assert 3000 < fleet.sessions()["count"] <= counts[SESSION] + 1
        check_nothing_told(fleet, requests=COUNT - counts.get(BROKEN, 0))


def check_nothing_told(fleet, requests):
    router = fleet.router
    # the log is written in the background, and a line may be lost but not unnoticed
    lost = router.metric("homing_log_lines_dropped_total")
    eventually(lambda: router.stderr().count("homing::access") + lost >= requests, "the access log is there")
    assert lost < requests / 2, lost
    log = router.stderr() + "\n".join(router.lines)
    assert not traces(log), traces(log)[:3]
    assert traces(log + MARK), "it would be seen"
    listed = call(router.admin, "GET", "/admin/sessions?limit=10000")[2].decode()
    assert len(json.loads(listed)["sessions"]) > 3000 and not traces(listed)
    for path in ("/metrics", "/admin/workers"):
        assert not traces(call(router.admin, "GET", path)[2].decode()), path


def test_r01_look_alikes_are_sessions_of_their_own():
    alike = ["key", "Key", "kеy", "ｋｅｙ", "key\u200b", "ké", "ke\u0301", "key%20", "key;v=1", '"key"', "key,key",
             "key\u00a0", "k\u0000ey".replace("\0", "0"), "kеy".encode().decode("latin-1")]
    with Fleet(2) as fleet:
        client = Client(fleet.router.port)
        for turn in ("new", "hit"):
            for key in alike:
                told = client.ask([b"x-homing-session-id: " + key.encode()], json.dumps(BODY).encode())
                assert told[:2] == (200, turn), (key, told)
        assert fleet.sessions()["count"] == len(alike)
        # HTTP's own blanks around a value are no part of it
        told = client.ask([b"x-homing-session-id: \t key \t"], json.dumps(BODY).encode())
        assert told[:2] == (200, "hit"), told
        # one id in several headers is one session, and a body's key the same again
        for header in (b"x-session-id", b"session_id", b"x-dynamo-session-id"):
            assert client.ask([header + b": key"], json.dumps(BODY).encode())[1] == "hit", header
        client.close()
        assert fleet.ok(prompt_cache_key="key").word == "hit"


def test_r18_no_id_names_a_group_or_an_inferred_session():
    with Fleet(3, affinity='subagents = "group"\ninfer = true') as fleet:
        fleet.ok("a", headers={"x-homing-parent-session-id": "boss"})
        fleet.ok(text="an opener")
        digests = {s["key_digest"] for s in fleet.sessions()["sessions"]}
        assert len(digests) == 2
        for key in ("boss", "group:boss", "parent:boss", "group\tboss", "boss/group", "an opener", *digests):
            turn = fleet.turn(key)
            assert turn.word in ("new", "rejected"), (key, turn)


def test_r01_hostile_ids_in_the_admin_api_find_nothing_and_break_nothing():
    dice = random.Random(5)
    with Fleet(1) as fleet:
        for i in range(300):
            raw = MARK.encode() + bytes(dice.randrange(256) for _ in range(dice.randrange(30)))
            path = "/admin/sessions/" + quote_from_bytes(raw, safe="")
            for method in ("GET", "DELETE"):
                status, data = fleet.admin(method, path)
                assert status in (400, 404), (raw, status, data)
        for path in ("/admin/sessions/", "/admin/sessions/%", "/admin/sessions/%zz", "/admin/sessions/" + "k" * 9000):
            assert fleet.admin("GET", path)[0] in (400, 404, 414), path
        assert fleet.ok("s").word == "new"
        log = fleet.router.stderr() + "\n".join(fleet.router.lines)
        assert not traces(log), traces(log)
