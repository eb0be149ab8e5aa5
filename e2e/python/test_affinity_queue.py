"""R08: who waits in the router, and for whom. A worker here is busy with one request."""
import http.client

from harness import eventually
from sessions import Background, Fleet, check_refused

# Only who names a worker waits.
NAMED_ONLY = "[queue]\nbusy_active_requests = 1"
# Everybody may.
ALL = "[queue]\nbusy_active_requests = 1\nmax_requests = 10"


def waits(fleet, count=1):
    eventually(lambda: fleet.router.metric("homing_queue_depth") == count, f"{count} in the queue")


def test_r08_a_bound_turn_does_not_wait_for_its_busy_worker():
    for extra in (NAMED_ONLY, ALL):
        with Fleet(2, extra=extra) as fleet:
            home = fleet.home("s")
            gate, stream = fleet.hold(home)
            # the other worker is free, so that nobody but an explicit request would wait
            for _ in range(3):
                turn = fleet.ok("s")
                assert (turn.word, turn.worker) == ("hit", home.name), turn
            assert not gate.open.is_set()
            # a new one goes where there is room
            assert fleet.ok("new").worker != home.name
            gate.open.set()
            stream.rest()
            fleet.quiet()


def test_r08_an_explicit_turn_waits_and_is_served_when_its_worker_is_free():
    for session in (None, "s", "new"):
        for extra in (NAMED_ONLY, ALL):
            with Fleet(2, extra=extra) as fleet:
                home = fleet.home("s")
                gate, stream = fleet.hold(home)
                seen = fleet.seen()
                waiting = Background(lambda: fleet.turn(session, headers={"x-homing-worker": home.name}))
                waits(fleet)
                assert fleet.seen() == seen, "it was sent though its worker is busy"
                gate.open.set()
                stream.rest()
                turn = waiting.result()
                word = {None: "none", "s": "hit", "new": "new"}[session]
                assert (turn.status, turn.word, turn.worker) == (200, word, home.name), turn
                fleet.quiet()


def test_r08_an_explicit_turn_whose_time_is_up_is_504_and_changes_nothing():
    with Fleet(2, extra=NAMED_ONLY + '\nmax_wait = "300ms"') as fleet:
        home = fleet.home("s")
        gate, stream = fleet.hold(home)
        seen, version = fleet.seen(), fleet.session("s")["version"]
        named = {"x-homing-worker": home.name}
        check_refused(fleet.turn("s", headers=named), 504, "timeout")
        check_refused(fleet.turn("new", headers=named), 504, "timeout")
        check_refused(fleet.turn(headers=named), 504, "timeout", word="none")
        assert fleet.seen() == seen and fleet.session("s")["version"] == version
        assert fleet.session("new") is None
        gate.open.set()
        stream.rest()
        fleet.quiet()


def test_r08_an_explicit_target_that_departs_ends_the_wait():
    with Fleet(2, extra=NAMED_ONLY) as fleet:
        home = fleet.home("s")
        gate, stream = fleet.hold(home)
        seen = fleet.seen()
        waiting = [Background(lambda s=s: fleet.turn(s, headers={"x-homing-worker": home.name}))
                   for s in ("s", "new")]
        waits(fleet, 2)
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        for one in waiting:
            check_refused(one.result(), 503, "affinity_target_unavailable")
        assert fleet.seen() == seen
        # the one that runs there finishes
        gate.open.set()
        assert b"[DONE]" in stream.rest()
        fleet.quiet()


def test_r08_where_everybody_is_busy_a_bound_turn_waits_like_any_other():
    with Fleet(2, extra=ALL) as fleet:
        home = fleet.home("s")
        (other,) = fleet.others(home)
        at_home, first = fleet.hold(home)
        elsewhere, second = fleet.hold(other)
        bound = Background(lambda: fleet.turn("s"))
        waits(fleet)
        new = Background(lambda: fleet.turn("new"))
        waits(fleet, 2)
        # once anybody is free nobody has to wait for its own: it goes home, busy or not
        elsewhere.open.set()
        second.rest()
        turn = bound.result()
        assert (turn.status, turn.word, turn.worker) == (200, "hit", home.name), turn
        assert not at_home.open.is_set()
        turn = new.result()
        assert (turn.status, turn.word, turn.worker) == (200, "new", other.name), turn
        at_home.open.set()
        first.rest()
        fleet.quiet()


def test_r08_liveness_is_read_when_a_queued_turn_is_granted():
    with Fleet(2, extra=ALL) as fleet:
        home = fleet.home("s")
        (other,) = fleet.others(home)
        at_home, first = fleet.hold(home)
        elsewhere, second = fleet.hold(other)
        bound = Background(lambda: fleet.turn("s"))
        waits(fleet)
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        elsewhere.open.set()
        second.rest()
        turn = bound.result()
        assert (turn.status, turn.word, turn.worker) == (200, "rebound", other.name), turn
        at_home.open.set()
        assert b"[DONE]" in first.rest()
        fleet.quiet()


def test_r08_joiners_of_a_queued_first_turn_queue_too_and_share_its_worker():
    with Fleet(1, extra=ALL) as fleet:
        gate, stream = fleet.hold(fleet.workers[0])
        turns = [Background(lambda: fleet.turn("s")) for _ in range(4)]
        waits(fleet, 4)
        gate.open.set()
        stream.rest()
        words = sorted(turn.result().word for turn in turns)
        # one binds; who is granted after its answer has begun finds the binding
        assert words.count("new") == 1 and set(words) <= {"new", "joined", "hit"}, words
        fleet.quiet()


def test_r04_a_waiting_client_that_leaves_gives_its_place_up():
    with Fleet(1, extra=ALL) as fleet:
        gate, stream = fleet.hold(fleet.workers[0])
        conn = http.client.HTTPConnection("127.0.0.1", fleet.router.port, timeout=30)
        conn.request("POST", "/v1/chat/completions",
                     '{"model":"test-model","messages":[{"role":"user","content":"x"}]}',
                     {"content-type": "application/json", "x-homing-session-id": "s"})
        waits(fleet)
        conn.close()
        waits(fleet, 0)
        seen = fleet.seen()
        gate.open.set()
        stream.rest()
        fleet.quiet()
        assert fleet.seen() == seen and fleet.session("s") is None


def test_r26_a_full_queue_is_a_refusal_with_the_sessions_word():
    with Fleet(1, extra=ALL.replace("10", "1")) as fleet:
        home = fleet.home("s")
        gate, stream = fleet.hold(home)
        first = Background(lambda: fleet.turn("s"))
        waits(fleet)
        check_refused(fleet.turn("s"), 429, "queue_full")
        check_refused(fleet.turn("new"), 429, "queue_full")
        check_refused(fleet.turn(), 429, "queue_full", word="none")
        gate.open.set()
        stream.rest()
        assert first.result().word == "hit"
        fleet.quiet()
