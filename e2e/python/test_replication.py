"""Several routers in front of one fleet, over a real NATS and a real etcd: a session's turns go home whichever router they
come to, also while routers, workers, NATS and etcd are killed and cut off."""
import json
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from etcd_server import Etcd
from harness import MODEL, Mock, Serve, call, eventually, run
from nats_server import Cable, Nats, free_port

# What an update may take to be known everywhere; the machine may be busy.
KNOWN = 0.15


def body(text, tokens=4, stream=False):
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": stream,
            "ignore_eos": stream}


def turn(router, session, **more):
    """A turn of a session -> (where it ran, what became of the session)."""
    status, headers, answer = router.post("/v1/chat/completions", body(f"Hello of {session}", **more),
                                          {"x-homing-session-id": session})
    assert status == 200, (status, answer[:300], router.log())
    return headers["x-homing-worker"], headers["x-homing-affinity"]


class Fleet:
    """Mocks, a backend, and routers that share it; all end with it."""

    def __init__(self, stack, backend, mode="advisory", mocks=6, discovery="static", more=""):
        self._stack, self.mode, self.more = stack, mode, more
        self.key = stack.enter_context(tempfile.NamedTemporaryFile("wb"))
        self.key.write(os.urandom(32))
        self.key.flush()
        self.backend = stack.enter_context(Nats() if backend == "nats" else Etcd())
        self.kind = backend
        self.etcd = self.backend if backend == "etcd" else None
        if discovery == "etcd" and not self.etcd:
            self.etcd = stack.enter_context(Etcd())
        self.discovery, self.file = discovery, None
        flags = ["--etcd", self.etcd.url] if discovery == "etcd" else []
        self.mocks = [stack.enter_context(Mock("--speedup", "200", *flags)) for _ in range(mocks)]
        if discovery == "file":
            self.file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".toml"))
            self.file.write("".join(f'[[workers]]\nid = "w{i}"\nurl = "{m.url}"\n' for i, m in enumerate(self.mocks)))
            self.file.flush()

    def settings(self, url=None, extra=""):
        text = (f'[affinity]\nkey_file = "{self.key.name}"\n{extra}'
                f'[replication]\nbackend = "{self.kind}"\nmode = "{self.mode}"\n'
                f'urls = ["{url or self.backend.url}"]\n{self.more}[health]\ninterval = "500ms"\n')
        if self.discovery == "etcd":
            text += f'[discovery]\nbackend = "etcd"\nurls = ["{self.etcd.url}"]\n'
        if self.discovery == "file":
            text += f'[discovery]\nbackend = "file"\npath = "{self.file.name}"\n'
        return text

    def router(self, url=None, extra="", routing=""):
        workers = self.mocks if self.discovery == "static" else []
        router = self._stack.enter_context(Serve(workers, self.settings(url, extra) + routing, ready=False))
        eventually(lambda: sum(w["state"] == "ready" for w in router.workers()) == len(self.mocks),
                   "all workers are ready", 60)
        eventually(lambda: call(router.admin, "GET", "/ready")[0] == 200, "the router is ready", 60)
        return router


def homes(router, count):
    """Bindings by digest, once there are so many."""
    def look():
        said = router.admin_json("/admin/sessions?limit=10000")
        return said["sessions"] if said["count"] == count else None
    return {s["key_digest"]: s["worker"] for s in eventually(look, f"{count} sessions")}


def at_rest(*routers):
    """Nothing is held anywhere, and nobody believes that another has something to do."""
    def look():
        return all(w["active_requests"] + w["peer_requests"] == 0 for r in routers for w in r.workers()) and all(
            r.admin_json("/admin/sessions?limit=1")["leases"] == 0 for r in routers)
    eventually(look, "leases and load return to 0")


def sprayed(backend, mode, discovery):
    """A session's turns, sprayed over three routers one after another, stay on one worker."""
    with ExitStack() as stack:
        fleet = Fleet(stack, backend, mode, discovery=discovery)
        routers = [fleet.router() for _ in range(3)]
        for k in range(8):
            session, at = f"s{k}", set()
            for i in range(6):
                worker, outcome = turn(routers[(k + i) % 3], session)
                at.add(worker)
                assert outcome == ("new" if i == 0 else "hit"), (session, i, outcome, routers[(k + i) % 3].log())
                time.sleep(KNOWN)
            assert len(at) == 1, (session, at)
        said = [homes(r, 8) for r in routers]
        assert said[0] == said[1] == said[2]
        at_rest(*routers)


def test_session_affinity_file_over_nats():
    sprayed("nats", "advisory", "file")


def test_session_affinity_file_over_etcd():
    sprayed("etcd", "authoritative", "file")


def test_session_affinity_etcd_over_nats():
    sprayed("nats", "authoritative", "etcd")


def test_session_affinity_etcd_over_etcd():
    sprayed("etcd", "advisory", "etcd")


def overrides(backend, mode):
    """Two routers with opposite warm prefixes: the binding made at one overrides the other's own choice by prefix."""
    with ExitStack() as stack:
        fleet = Fleet(stack, backend, mode, mocks=2)
        a, b = (fleet.router(routing='[routing]\npolicy = "kv"\n[index]\nsource = "approximate"\n') for _ in range(2))
        for k in range(6):
            prompt = f"A long opening, number {k}, that both have seen before. " * 60
            for router, worker in ((a, "w0"), (b, "w1")):
                status, headers, _ = router.post("/v1/chat/completions", body(prompt), {"x-homing-worker": worker})
                assert (status, headers["x-homing-worker"]) == (200, worker)
            # What one has to do is told to the other with the next beat at the latest, and counts until then.
            at_rest(a, b)
            for router, worker in ((a, "w0"), (b, "w1")):
                status, headers, _ = router.post("/v1/chat/completions", body(prompt))
                assert headers["x-homing-worker"] == worker, "each prefers what it has warmed"
            at_rest(a, b)
            first, second = (a, b) if k % 2 else (b, a)
            head = {"x-homing-session-id": f"s{k}"}
            home = first.post("/v1/chat/completions", body(prompt), head)[1]["x-homing-worker"]
            assert home == ("w0" if first is a else "w1")
            time.sleep(KNOWN)
            answer = second.post("/v1/chat/completions", body(prompt), head)[1]
            assert (answer["x-homing-worker"], answer["x-homing-affinity"]) == (home, "hit")


def test_a_binding_overrides_the_other_routers_prefix_over_nats():
    overrides("nats", "advisory")


def test_a_binding_overrides_the_other_routers_prefix_over_etcd():
    overrides("etcd", "authoritative")


def together(backend):
    """First turns of one session at all routers at once end on one worker."""
    with ExitStack() as stack:
        fleet = Fleet(stack, backend, "authoritative")
        routers = [fleet.router() for _ in range(3)]
        pool = stack.enter_context(ThreadPoolExecutor(9))
        for k in range(15):
            runs = [pool.submit(turn, routers[i % 3], f"s{k}") for i in range(9)]
            at = {run.result()[0] for run in runs}
            assert len(at) == 1, (k, at)
        at_rest(*routers)
        for router in routers:
            claims = router.metric("homing_replication_claims_total")
            assert claims > 0, "the store was asked"


def test_first_turns_at_once_end_on_one_worker_over_etcd():
    together("etcd")


def test_first_turns_at_once_end_on_one_worker_over_nats():
    together("nats")


class Load:
    """Turns at all routers, until it is closed; what failed is kept: where, from when to when, and how. `pick` says of a
    thread's number and count which of the routers gets a turn, and of which session."""

    def __init__(self, routers, pick=None):
        self.routers, self.failed, self.count, self._stop = routers, [], 0, threading.Event()
        self._pick = pick or (lambda live, n, k: (live[(n + k) % len(live)], f"load{(n + k) % 12}"))
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, n):
        k = 0
        while not self._stop.is_set():
            k += 1
            router, session = self._pick(list(self.routers), n, k)
            began = time.monotonic()
            try:
                turn(router, session)
            except Exception as e:  # each is looked at by the test
                self.failed.append((router, began, time.monotonic(), repr(e)[:400]))
            self.count += 1
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def outage(backend, mode):
    """kill -9 of the backend under load, and back: no request fails, sessions keep their homes, then all agree."""
    with ExitStack() as stack:
        fleet = Fleet(stack, backend, mode)
        routers = [fleet.router() for _ in range(2)]
        before = {f"s{k}": turn(routers[k % 2], f"s{k}")[0] for k in range(8)}
        time.sleep(KNOWN)
        with Load(routers) as load:
            fleet.backend.stop()
            for k, home in before.items():
                assert turn(routers[0], k) == (home, "hit") == turn(routers[1], k)
            new = {f"n{k}": turn(routers[k % 2], f"n{k}")[0] for k in range(4)}
            time.sleep(2)
            fleet.backend.start()
            eventually(lambda: all(r.metric("homing_replication_up") == 1 for r in routers), "it is reached again", 60)
        assert not load.failed and load.count > 20, load.failed[:3]

        def agreed():
            said = [{s["key_digest"]: s["worker"] for s in r.admin_json("/admin/sessions?limit=1000")["sessions"]}
                    for r in routers]
            return said[0] == said[1] and len(said[0]) >= 8 + 4
        eventually(agreed, "both know the same", 60)
        for k, home in (before | new).items():
            assert turn(routers[0], k) == (home, "hit") == turn(routers[1], k), k
        at_rest(*routers)


def test_an_outage_of_nats_fails_no_request():
    outage("nats", "advisory")


def test_an_outage_of_etcd_fails_no_request():
    outage("etcd", "authoritative")


def test_a_router_that_was_cut_off_from_nats_learns_what_it_missed():
    with ExitStack() as stack:
        fleet = Fleet(stack, "nats")
        cable = stack.enter_context(Cable(fleet.backend.port))
        a, b = fleet.router(), fleet.router(url=f"nats://127.0.0.1:{cable.port}")
        first = {f"s{k}": turn(a, f"s{k}")[0] for k in range(5)}
        time.sleep(KNOWN)
        cable.cut()
        eventually(lambda: b.metric("homing_replication_up") == 0, "it notices")
        theirs = {f"a{k}": turn(a, f"a{k}")[0] for k in range(30)}
        ours = {f"b{k}": turn(b, f"b{k}")[0] for k in range(30)}
        status, _, _ = call(a.admin, "DELETE", "/admin/sessions/s0?model=" + MODEL)
        assert status in (200, 204), status
        cable.mend()
        eventually(lambda: b.metric("homing_replication_up") == 1, "it is back", 60)
        said = homes(a, 4 + 60)
        eventually(lambda: homes(b, 4 + 60) == said, "both know the same", 60)
        for k, home in (theirs | ours | {k: v for k, v in first.items() if k != "s0"}).items():
            assert turn(a, k) == (home, "hit") == turn(b, k), k
        assert b.metric("homing_replication_gaps_total") + a.metric("homing_replication_gaps_total") > 0
        at_rest(a, b)


def test_a_router_that_is_killed_leaves_nothing_and_its_successor_knows_all():
    with ExitStack() as stack:
        fleet = Fleet(stack, "nats")
        a, b = fleet.router(), fleet.router()
        known = {f"s{k}": turn((a, b)[k % 2], f"s{k}")[0] for k in range(20)}
        time.sleep(KNOWN)
        # Streams at the one that dies: what it had booked is over for the other, too.
        streams = [threading.Thread(target=lambda: _swallow(a)) for _ in range(4)]
        for stream in streams:
            stream.start()
        eventually(lambda: sum(w["peer_requests"] for w in b.workers()) >= 1, "the other sees its load")
        a.proc.kill()
        for stream in streams:
            stream.join()
        eventually(lambda: sum(w["peer_requests"] for w in b.workers()) == 0, "it is over", 30)
        c = fleet.router()
        assert len(homes(c, 20)) == 20, "it knew all before it was ready"
        for k, home in known.items():
            assert turn(c, k) == (home, "hit"), k
        at_rest(b, c)


def _swallow(router):
    try:
        router.post("/v1/chat/completions", body("tell me all", tokens=20_000, stream=True))
    except Exception:  # its router is killed
        pass


def test_a_worker_that_restarts_is_another_life_everywhere():
    with ExitStack() as stack:
        fleet = Fleet(stack, "nats", mocks=3)
        a, b = fleet.router(), fleet.router()
        known = {f"s{k}": turn((a, b)[k % 2], f"s{k}")[0] for k in range(12)}
        time.sleep(KNOWN)
        index = int(next(iter(known.values()))[1:])
        port = fleet.mocks[index].port
        fleet.mocks[index].proc.kill()
        fleet.mocks[index].proc.wait()
        new = stack.enter_context(_mock_at(port))
        with Load([a, b]) as load:
            for k in known:
                turn(a, k)
            time.sleep(KNOWN)
            for k, home in known.items():
                there, outcome = turn(b, k)
                assert outcome == "hit", (k, outcome)
                assert there == home or home == f"w{index}", (k, home, there)
        assert not load.failed, load.failed[:3]
        assert new.proc.poll() is None
        at_rest(a, b)


def _mock_at(port):
    from harness import Server

    class At(Server):
        def __init__(self):
            super().__init__("mock", "--listen", f"127.0.0.1:{port}", "--model", MODEL, "--speedup", "200")
            self.port, self.url = self.address("listening on"), f"http://127.0.0.1:{port}"
    return At()


def test_strict_routers_refuse_first_turns_without_the_store_and_serve_what_is_bound():
    with ExitStack() as stack:
        fleet = Fleet(stack, "etcd", "authoritative", mocks=2, more='on_store_failure = "fail"\n')
        router = fleet.router()
        home, _ = turn(router, "s")
        fleet.backend.stop()
        status, headers, answer = router.post("/v1/chat/completions", body("x"), {"x-homing-session-id": "new"})
        assert status == 503 and json.loads(answer)["error"]["code"] == "affinity_target_unavailable", answer
        assert "retry-after" in headers
        assert turn(router, "s") == (home, "hit")
        assert router.post("/v1/chat/completions", body("x"))[0] == 200, "without a session nobody is asked"
        fleet.backend.start()
        def again():
            return router.post("/v1/chat/completions", body("x"), {"x-homing-session-id": "new"})[0] == 200
        eventually(again, "first turns go on", 60)


def test_a_router_that_waits_for_the_others_says_so():
    with ExitStack() as stack:
        mock = stack.enter_context(Mock("--speedup", "200"))
        urls = f'urls = ["nats://127.0.0.1:{free_port()}"]\n'
        key = stack.enter_context(tempfile.NamedTemporaryFile("wb"))
        key.write(os.urandom(32))
        key.flush()
        settings = f'[affinity]\nkey_file = "{key.name}"\n[replication]\nbackend = "nats"\n{urls}'
        router = stack.enter_context(Serve([mock], settings, ready=False))
        waits = "waiting for what other routers know"

        def said():
            status, _, answer = call(router.admin, "GET", "/ready")
            return status == 503 and "a worker is ready; " + waits in json.loads(answer)["error"]["message"]
        eventually(said, "it says what it waits for")
        status, _, answer = call(router.port, "GET", "/readyz")
        assert status == 200 or status == 503 and waits in answer.decode(), answer
        eventually(lambda: call(router.port, "GET", "/readyz")[0] == 200, "it begins without them")


def test_settings_that_can_not_work_are_said():
    with tempfile.NamedTemporaryFile("wb", suffix=".key") as key, tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
        key.write(os.urandom(32))
        key.flush()

        def said(replication, affinity=f'[affinity]\nkey_file = "{key.name}"\n', command="check"):
            f.seek(0)
            f.truncate()
            f.write('[gateway]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"\n'
                    f'[[workers]]\nurl = "http://127.0.0.1:9"\n{affinity}[replication]\n{replication}')
            f.flush()
            code, out, err = run(command, "--config", f.name)
            return code, out + err
        code, text = said('backend = "nats"\nurls = ["nats://127.0.0.1:4222"]\n', affinity="")
        assert code == 2 and "affinity.key_file" in text, text
        code, text = said('backend = "nats"\n')
        assert code == 2 and "replication.urls" in text, text
        code, text = said('backend = "etcd"\nurls = ["nats://127.0.0.1:1"]\n')
        assert code == 2 and "etcd" in text, text
        code, text = said('urls = ["nats://127.0.0.1:1"]\n')
        assert code == 2 and "replication.backend" in text, text
        code, text = said('backend = "nats"\nurls = ["nats://127.0.0.1:4222"]\n')
        assert code == 0, text
        code, text = said(f'backend = "nats"\nurls = ["nats://127.0.0.1:{free_port()}"]\nca_file = "/no/such/file"\n',
                          command="serve")
        assert code in (1, 2) and "/no/such/file" in text, (code, text)
