"""Real servers behind TLS and a password, as they are in production: who is right is let in, who is not is told so at
start."""
import os
import tempfile
import time
from contextlib import ExitStack

from certificates import Authority
from etcd_server import Etcd
from harness import Mock, Serve, eventually, run
from nats_server import Nats
from test_replication import KNOWN, turn


def secured(backend, started, stack, right, other):
    """Two routers that share over it; then each wrong word, and what is said of it."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())

    def file(name, content):
        path = os.path.join(folder, name)
        with open(path, "wb") as out:
            out.write(content)
        return path
    key, good, bad = file("key", os.urandom(32)), file("good", b"right\n"), file("bad", b"wrong\n")
    mocks = [stack.enter_context(Mock("--speedup", "200")) for _ in range(2)]

    def settings(ca, password, user="homing"):
        reach = f'urls = ["{started.url}"]\nuser = "{user}"\npassword_file = "{password}"\n'
        reach += f'ca_file = "{ca}"\n' if ca else ""
        more = f'[discovery]\nbackend = "etcd"\n{reach}' if backend == "etcd" else ""
        return f'[affinity]\nkey_file = "{key}"\n[replication]\nbackend = "{backend}"\n{reach}{more}'
    a, b = (stack.enter_context(Serve(mocks, settings(right.ca, good))) for _ in range(2))
    eventually(lambda: all(r.metric("homing_replication_up") == 1 for r in (a, b)), "both are let in")
    homes = {f"s{k}": turn(a, f"s{k}")[0] for k in range(6)}
    time.sleep(KNOWN)
    for session, home in homes.items():
        assert turn(b, session) == (home, "hit"), session

    def said(ca, password, user="homing"):
        text = ('[gateway]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"\n'
                f'[[workers]]\nurl = "{mocks[0].url}"\n' + settings(ca, password, user))
        began = time.monotonic()
        code, out, err = run("serve", "--config", file("wrong.toml", text.encode()))
        assert code == 1 and time.monotonic() - began < 30, (code, out, err)
        assert "wrong" not in err.replace("wrong.toml", "").replace("is wrong", ""), f"passwords are not repeated: {err}"
        return err
    for ca in (other.ca, None):
        words = said(ca, good)
        assert "certificate" in words.lower() or "TLS" in words, words
        assert f"127.0.0.1:{started.port}" in words, words
    for words in (said(right.ca, bad), said(right.ca, good, user="nobody")):
        assert "password" in words, words
    assert turn(a, "s0") == (homes["s0"], "hit") == turn(b, "s0"), "those that were let in go on"


def test_nats_by_tls_and_password():
    with ExitStack() as stack:
        right, other = (stack.enter_context(Authority()) for _ in range(2))
        nats = stack.enter_context(Nats("--tls", "--tlscert", right.cert, "--tlskey", right.key, "--user", "homing",
                                        "--pass", "right"))
        secured("nats", nats, stack, right, other)


def test_etcd_by_tls_and_password():
    with ExitStack() as stack:
        right, other = (stack.enter_context(Authority()) for _ in range(2))
        etcd = stack.enter_context(Etcd(right))
        etcd.guard()
        secured("etcd", etcd, stack, right, other)
