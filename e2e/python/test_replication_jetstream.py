"""JetStream goes while routers share their sessions in it: killed, paused, started again without its store, or wiped. No
request fails for it, sessions keep their homes, and afterwards all agree and the store is used again."""
import json
import time
from contextlib import ExitStack, contextmanager

from harness import eventually
from test_replication import KNOWN, Fleet, Load, at_rest, body, homes, turn

SESSIONS = 8


def says(routers, name, value):
    eventually(lambda: all(r.metric(name) == value for r in routers), f"{name} is {value} everywhere", 60)


@contextmanager
def away(goes):
    """Two routers under load from before the store goes until after it is back: `goes(nats)` takes it away, and gives what
    brings it back. What was bound before and meanwhile has its home everywhere in the end."""
    with ExitStack() as stack:
        fleet = Fleet(stack, "nats", "authoritative", mocks=4)
        routers = [fleet.router() for _ in range(2)]
        before = {f"s{k}": turn(routers[k % 2], f"s{k}")[0] for k in range(SESSIONS)}
        time.sleep(KNOWN)
        with Load(routers) as load:
            comes_back = goes(fleet.backend)
            for k, home in before.items():
                assert turn(routers[0], k) == (home, "hit") == turn(routers[1], k)
            new = {f"n{k}": turn(routers[k % 2], f"n{k}")[0] for k in range(4)}
            says(routers, "homing_replication_up", 0)
            comes_back()
            says(routers, "homing_replication_up", 1)
            says(routers, "homing_replication_in_step", 1)
            # First turns wait for a store that is paused, so this may take a while.
            eventually(lambda: load.count > 20, "some more turns", 60)
        assert not load.failed, load.failed[:3]

        def agreed():
            said = [{s["key_digest"]: s["worker"] for s in r.admin_json("/admin/sessions?limit=1000")["sessions"]}
                    for r in routers]
            return said[0] == said[1] and len(said[0]) >= len(before) + len(new)
        eventually(agreed, "both know the same", 60)
        for k, home in (before | new).items():
            assert turn(routers[0], k) == (home, "hit") == turn(routers[1], k), k
        # The store is asked again before first turns.
        asked = [r.metric("homing_replication_claims_total", outcome="ours") for r in routers]
        for n, router in enumerate(routers):
            turn(router, f"after{n}")
        for router, was in zip(routers, asked):
            assert router.metric("homing_replication_claims_total", outcome="ours") > was
        at_rest(*routers)
        yield fleet, routers


def test_jetstream_that_is_killed_fails_no_request():
    def goes(nats):
        nats.stop()
        return nats.start
    with away(goes):
        pass


def test_jetstream_that_is_paused_fails_no_request():
    def goes(nats):
        nats.pause()
        return nats.go_on
    with away(goes):
        pass


def test_nats_that_comes_back_without_jetstream_fails_no_request():
    def goes(nats):
        nats.stop()
        nats.start(jetstream=False)

        def comes_back():
            nats.stop()
            nats.start()
        return comes_back
    with away(goes):
        pass


def test_jetstream_that_was_wiped_is_filled_again():
    def goes(nats):
        nats.stop()
        nats.wipe()
        return nats.start
    with away(goes) as (fleet, routers):
        known = homes(routers[0], routers[0].admin_json("/admin/sessions?limit=1000")["count"])
        eventually(lambda: fleet.backend.kept() >= len(known), "the store holds all again", 60)
        # Whoever comes when all others are gone has it from the store alone.
        for router in routers:
            router.proc.kill()
            router.proc.wait()
        assert homes(fleet.router(), len(known)) == known


def test_strict_routers_refuse_first_turns_while_jetstream_is_paused_and_no_longer():
    with ExitStack() as stack:
        fleet = Fleet(stack, "nats", "authoritative", mocks=2, more='on_store_failure = "fail"\n')
        router = fleet.router()
        home, _ = turn(router, "s")
        fleet.backend.pause()
        status, headers, answer = router.post("/v1/chat/completions", body("x"), {"x-homing-session-id": "new"})
        assert status == 503 and json.loads(answer)["error"]["code"] == "affinity_target_unavailable", answer
        assert "retry-after" in headers
        assert turn(router, "s") == (home, "hit")
        fleet.backend.go_on()
        says([router], "homing_replication_up", 1)
        assert turn(router, "new")[1] == "new"
        assert router.post("/v1/chat/completions", body("x"))[0] == 200
        at_rest(router)
