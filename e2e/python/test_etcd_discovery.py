"""Workers that are found in etcd, a real one: they register themselves or a side-car does it, they die, and etcd goes
away and comes back, while sessions keep their homes and no request fails."""
import json
import os
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager

from etcd_server import Etcd, free_port
from harness import BIN, MODEL, Mock, Serve, call, environment, eventually, run


def settings(etcd_url, more=""):
    return f'[discovery]\nbackend = "etcd"\nurls = ["{etcd_url}"]\n{more}[health]\ninterval = "500ms"\n'


def ready(router, count):
    """Waits for that many ready workers -> {id: worker}."""
    def look():
        found = {w["id"]: w for w in router.workers() if w["state"] == "ready"}
        return found if len(found) == count else None
    return eventually(look, f"{count} workers ready", 60)


def turn(router, session):
    """A turn of a session -> where it ran."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"Hello of {session}"}], "max_tokens": 2}
    status, headers, answer = router.post("/v1/chat/completions", body, {"x-homing-session-id": session})
    assert status == 200, (status, answer[:300])
    return headers["x-homing-worker"]


def readiness(router):
    status, _, body = call(router.admin, "GET", "/ready")
    return status, json.loads(body)


@contextmanager
def side_car(*flags):
    car = subprocess.Popen([BIN, "register", "--interval", "500ms", *flags], env=environment(),
                           stderr=subprocess.DEVNULL)
    try:
        yield car
    finally:
        car.kill()
        car.wait()


class Turns:
    """Turns of sessions, one after another, until it is closed; what each came to is kept."""

    def __init__(self, router, homes):
        self._router, self.homes, self.wrong, self.count = router, homes, [], 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            for session, home in self.homes.items():
                try:
                    at = turn(self._router, session)
                    if at != home:
                        self.wrong.append((session, home, at))
                except Exception as e:  # each is looked at below
                    self.wrong.append((session, home, repr(e)))
                self.count += 1
                time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def test_workers_register_themselves_and_an_outage_of_etcd_moves_nobody():
    with Etcd() as etcd, ExitStack() as stack:
        mocks = [stack.enter_context(Mock("--etcd", etcd.url)) for _ in range(3)]
        router = stack.enter_context(Serve([], extra=settings(etcd.url), ready=False))
        workers = ready(router, 3)
        assert {w["url"].rstrip("/") for w in workers.values()} == {m.url for m in mocks}
        homes = {f"s{n}": turn(router, f"s{n}") for n in range(24)}
        assert set(homes.values()) == set(workers), homes
        assert readiness(router) == (200, {"ready": True})
        with Turns(router, homes) as turns:
            etcd.stop()
            frozen = lambda: readiness(router)[1].get("frozen")
            said = eventually(frozen, "/ready says that etcd is away")
            assert etcd.url in said[0], said
            assert readiness(router)[0] == 200
            assert router.metric("homing_discovery_frozen") == 1
            # Longer than a lease lasts.
            time.sleep(17)
            assert len(router.workers()) == 3
            etcd.start()
            eventually(lambda: not frozen(), "/ready says no more of it", 60)
            assert set(ready(router, 3)) == set(workers)
            seen = turns.count
            eventually(lambda: turns.count > seen + len(homes), "each session had a turn since")
        assert turns.wrong == [], (turns.count, turns.wrong[:5])
        # One is told to go: it takes itself back at once.
        mocks[0].terminate()
        mocks[0].wait()
        assert len(ready(router, 2)) == 2
        assert len(etcd.workers()) == 2
        # One dies: its lease runs out.
        mocks[1].proc.kill()
        eventually(lambda: len(etcd.workers()) == 1, "its lease has run out", 60)
        eventually(lambda: len(router.workers()) == 1, "it has departed")
        assert turn(router, "s0") == next(iter(ready(router, 1)))


def test_a_worker_that_is_started_again_at_its_place_is_another():
    port = free_port()
    with Etcd() as etcd, Serve([], extra=settings(etcd.url), ready=False) as router:
        flags = ("--listen", f"127.0.0.1:{port}", "--etcd", etcd.url)
        first = subprocess.Popen([BIN, "mock", "--model", MODEL, *flags], env=environment(),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ready(router, 1)
            assert turn(router, "s") == f"127.0.0.1:{port}"
            assert router.workers()[0]["bindings"] == 1
        finally:
            first.kill()
            first.wait()
        # Its registration is still there.
        assert etcd.workers() == {f"127.0.0.1:{port}"}
        second = subprocess.Popen([BIN, "mock", "--model", MODEL, *flags], env=environment(),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: [w["bindings"] for w in router.workers()] == [0], "nobody is bound to this one")
            ready(router, 1)
            turn(router, "s")
            assert router.workers()[0]["bindings"] == 1
        finally:
            second.kill()
            second.wait()


def test_a_side_car_registers_a_stock_engine():
    with Etcd() as etcd, Mock("--stock") as engine, Serve([], extra=settings(etcd.url, 'group = "g-1"\n'),
                                                          ready=False) as router:
        where = ("--worker", engine.url, "--etcd", etcd.url, "--group", "g-1")
        with side_car(*where, "--id", "side", "--label", "zone=a") as car:
            found = ready(router, 1)
            assert found["side"]["labels"] == {"zone": "a"}
            home = turn(router, "s")
            # Started again, of an engine that goes on: nothing of it is seen.
            car.kill()
            car.wait()
            with side_car(*where, "--id", "side", "--label", "zone=a") as again, \
                    side_car(*where[2:], "--worker", "http://127.0.0.1:1", "--id", "side"):
                time.sleep(16)
                assert turn(router, "s") == home and len(router.workers()) == 1
                assert router.metric("homing_affinity_bindings") == 1
                again.terminate()
                assert again.wait(30) == 0
                eventually(lambda: not router.workers(), "it is taken back")
        assert etcd.workers("g-1") == set()


def test_bad_registrations_are_refused_and_counted():
    with Etcd() as etcd, Mock("--etcd", etcd.url) as mock, Serve([], extra=settings(etcd.url), ready=False) as router:
        ready(router, 1)
        etcd.ctl("put", "/homing/default/workers/bad", '{"id": "bad", "url": "http://h:1", "wieght": 2}')
        etcd.ctl("put", "/homing/default/workers/thief", json.dumps({"id": "thief", "url": mock.url}))
        eventually(lambda: router.metric("homing_registrations_refused_total") == 2, "both are counted")
        assert router.logged("wieght") and len(router.workers()) == 1
        assert turn(router, "s") == f"127.0.0.1:{mock.port}"


def test_an_id_that_another_source_claims_for_another_url_stays_whose_it_is():
    said = "a worker's id is claimed for another URL"
    with Etcd() as etcd, Mock() as mine, Mock() as thief, Serve([mine], extra=settings(etcd.url)) as router:
        refused = lambda: router.metric("homing_registrations_refused_total")
        url = lambda: router.workers()[0]["url"].rstrip("/")
        assert turn(router, "s") == "w0" and url() == mine.url
        key = "/homing/default/workers/w0"
        etcd.ctl("put", key, json.dumps({"id": "w0", "url": thief.url}))
        eventually(lambda: refused() == 1, "the one in etcd is counted")
        # A side-car says it again and again.
        for _ in range(3):
            status, _, answer = call(router.admin, "POST", "/admin/workers?ttl=15s", {"id": "w0", "url": thief.url})
            assert status == 409 and json.loads(answer)["error"]["code"] == "worker_exists", answer
        # The log's lines are written a moment later.
        eventually(lambda: router.stderr().count(said) >= 2, "both are in the log")
        assert refused() == 2 and router.stderr().count(said) == 2, router.log()
        assert turn(router, "s") == "w0" and len(router.workers()) == 1 and url() == mine.url
        assert router.metric("homing_affinity_bindings") == 1
        # The same place is the same worker; when etcd lets go of it, the configuration still has it.
        etcd.ctl("del", key)
        etcd.ctl("put", "/homing/default/workers/other", json.dumps({"id": "other", "url": thief.url}))
        ready(router, 2)
        etcd.ctl("put", key, json.dumps({"id": "w0", "url": mine.url}))
        etcd.ctl("del", key)
        etcd.ctl("del", "/homing/default/workers/other")
        eventually(lambda: len(router.workers()) == 1, "all of that is taken in")
        assert turn(router, "s") == "w0" and refused() == 2
        # An operator's word counts, and the one before is back after it.
        status, _, _ = call(router.admin, "POST", "/admin/workers?ttl=1s&replace=true", {"id": "w0", "url": thief.url})
        assert status == 201
        eventually(lambda: url() == thief.url, "it is replaced")
        eventually(lambda: url() == mine.url, "its time is over")


def test_an_etcd_that_is_not_there_yet_is_waited_for():
    port = free_port()
    with Serve([], extra=settings(f"http://127.0.0.1:{port}"), ready=False) as router:
        def away():
            status, body = readiness(router)
            return status == 503 and f"127.0.0.1:{port}" in body["error"]["message"]
        eventually(away, "/ready says what is missing")
        status, _, body = router.post("/v1/chat/completions", {"model": MODEL, "messages": []})
        assert status in (404, 503), body


def test_who_is_not_let_in_is_told_so_at_start():
    with Etcd() as etcd, tempfile.TemporaryDirectory() as folder:
        password = os.path.join(folder, "password")
        with open(password, "w", encoding="utf-8") as file:
            file.write("wrong\n")
        config = os.path.join(folder, "homing.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write('[gateway]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"\n'
                       + settings(etcd.url, f'user = "homing"\npassword_file = "{password}"\n'))
        etcd.guard()
        code, _, said = run("serve", "--config", config)
        assert code == 1 and "password" in said and "wrong" not in said, (code, said)
        flags = ("--etcd", etcd.url, "--etcd-user", "homing", "--etcd-password-file", password)
        code, _, said = run("register", "--worker", "http://127.0.0.1:1", *flags)
        assert code == 1 and "password" in said, (code, said)
        with open(password, "w", encoding="utf-8") as file:
            file.write("right\n")
        with Mock(*flags), Serve([], extra=settings(
                etcd.url, f'user = "homing"\npassword_file = "{password}"\n'), ready=False) as router:
            ready(router, 1)
        os.remove(password)
        code, _, said = run("check", "--config", config)
        assert code == 2 and password in said, (code, said)
        code, _, said = run("serve", "--config", config)
        assert code == 1 and password in said, (code, said)
