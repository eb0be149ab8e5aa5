"""R07, a home that is gone, broken or not to be reached; and the strict set, under which a session runs at
home or nowhere."""
import json
import time

from harness import call, eventually
from scripted_worker import Hold, Reset, Status
from sessions import Background, Fleet, check_refused

# Whatever the router learns here it learns from requests: the next probe is an hour away.
BLIND = '[health]\ninterval = "1h"'
# It sees at once.
KEEN = '[health]\ninterval = "100ms"\ntimeout = "1s"\nfailures = 2'
STRICT = 'on_overload = "reject"\non_failure = "reject"\non_down = "reject"\nreject_as = "invalid_argument"'


def is_state(fleet, worker, state):
    return lambda: fleet.state(worker)["state"] == state


def test_r07_a_port_that_refuses_is_down_at_once_and_its_sessions_move():
    with Fleet(extra=BLIND) as fleet:
        home = fleet.home("s")
        fleet.home("other", headers={"x-homing-worker": home.name})
        home.stop()
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn
        assert fleet.state(home)["state"] == "down", fleet.state(home)
        again = fleet.ok("s")
        assert (again.word, again.worker) == ("hit", turn.worker), again
        assert fleet.ok("other").word == "rebound"
        # one request, one decision
        assert fleet.router.metric("homing_requests_total") == 5
        assert fleet.router.metric("homing_affinity_resolutions_total", outcome="rebound") == 2
        assert fleet.router.metric("homing_affinity_resolutions_total") == 5
        assert fleet.router.metric("homing_affinity_moves_total", reason="departed") == 2
        fleet.quiet()


def test_r07_on_down_reject_keeps_the_binding_until_another_life_is_there():
    with Fleet(extra=KEEN, affinity='on_down = "reject"') as fleet:
        home = fleet.home("s")
        home.stop()
        seen = [len(w.seen) for w in fleet.others(home)]
        for _ in range(3):
            check_refused(fleet.turn("s"), 503, "affinity_target_unavailable")
        assert fleet.session("s")["worker"] == home.name
        assert [len(w.seen) for w in fleet.others(home)] == seen
        assert fleet.ok("t").worker != home.name
        home.start(started=1_800_000_000)
        eventually(is_state(fleet, home, "ready"), "it is back")
        turn = fleet.ok("s")
        assert turn.word == "rebound", turn
        assert fleet.ok("s").worker == turn.worker
        fleet.quiet()


def test_r07_on_down_reject_ends_when_discovery_drops_the_worker():
    with Fleet(extra=BLIND, affinity='on_down = "reject"') as fleet:
        home = fleet.home("s")
        home.stop()
        check_refused(fleet.turn("s"), 503, "affinity_target_unavailable")
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn


def test_r07_a_worker_that_only_fails_its_probes_is_the_same_life_afterwards():
    with Fleet(extra=KEEN, affinity='on_down = "reject"') as fleet:
        home = fleet.home("s")
        home.healthy = False
        eventually(is_state(fleet, home, "down"), "it is found out")
        check_refused(fleet.turn("s"), 503, "affinity_target_unavailable")
        home.healthy = True
        eventually(is_state(fleet, home, "ready"), "it is well again")
        turn = fleet.ok("s")
        assert (turn.word, turn.worker) == ("hit", home.name), turn
    with Fleet(extra=KEEN) as fleet:
        home = fleet.home("s")
        home.healthy = False
        eventually(is_state(fleet, home, "down"), "it is found out")
        home.healthy = True
        eventually(is_state(fleet, home, "ready"), "it is well again")
        assert fleet.ok("s").word == "hit", "a blip between two turns costs nothing"
        home.healthy = False
        eventually(is_state(fleet, home, "down"), "it is found out")
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn


def test_r07_another_process_at_the_same_place_is_another_life():
    with Fleet(extra='[health]\ninterval = "50ms"') as fleet:
        home = fleet.home("s")
        before = fleet.state(home)["incarnation"]
        # no connection was refused: only its start time tells
        home.started += 1000
        eventually(lambda: fleet.state(home)["incarnation"] != before, "the router sees it")
        eventually(is_state(fleet, home, "ready"), "it is ready")
        assert fleet.session("s") is None or fleet.session("s")["worker"] is None, fleet.session("s")
        assert fleet.ok("s").word == "rebound"


def test_r07_on_failure_rebind_moves_and_binds_where_it_ran():
    with Fleet(extra=BLIND) as fleet:
        home = fleet.home("s")
        home.will(Reset())
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn
        again = fleet.ok("s")
        assert (again.word, again.worker) == ("hit", turn.worker), again
        assert fleet.router.metric("homing_affinity_moves_total") == 1
        fleet.quiet()


def test_r07_on_failure_reject_runs_nowhere_else_and_keeps_the_binding():
    with Fleet(extra=BLIND, affinity='on_failure = "reject"') as fleet:
        home = fleet.home("s")
        version, seen = fleet.session("s")["version"], fleet.seen()
        home.will(Reset())
        check_refused(fleet.turn("s"), 503, "affinity_target_unavailable")
        assert fleet.seen() == seen + 1
        assert fleet.session("s")["version"] == version
        turn = fleet.ok("s")
        assert (turn.word, turn.worker) == ("hit", home.name), turn
        # a Soft turn may move all the same
        home.will(Reset())
        assert fleet.ok("s", headers={"x-homing-affinity": "soft"}).word == "rebound"
        fleet.quiet()


def test_r07_a_reset_in_a_streams_prefill_is_a_failure_too():
    with Fleet(extra=BLIND) as fleet:
        home = fleet.home("s")
        home.will(Reset())
        stream = fleet.stream("s")
        assert stream.turn.word == "rebound" and stream.turn.worker != home.name, stream.turn
        assert b"[DONE]" in stream.rest()
        fleet.quiet()


def test_r07_an_idle_connection_that_the_worker_closed_is_no_failure():
    with Fleet(extra=BLIND, affinity=STRICT) as fleet:
        home = fleet.home("s")
        for worker in fleet.workers:
            worker.closes = True
        for _ in range(20):
            turn = fleet.ok("s")
            assert (turn.word, turn.worker) == ("hit", home.name), turn
            # The close must be there before the next turn is: one whose bytes have left is a failure.
            time.sleep(0.05)
        assert fleet.router.metric("homing_retries_total") == 0
        fleet.quiet()


def test_r07_the_strict_set_never_runs_a_session_away_from_a_known_home():
    with Fleet(extra=BLIND, affinity=STRICT) as fleet:
        home = fleet.home("s")
        elsewhere = [len(w.seen) for w in fleet.others(home)]

        def check(word, **kw):
            turn = fleet.turn("s", **kw)
            check_refused(turn, 400, "affinity_conflict")
            message = json.loads(turn.body)["error"]["message"].lower()
            assert word in message, (word, message)
            assert fleet.session("s")["worker"] == home.name
            assert [len(w.seen) for w in fleet.others(home)] == elsewhere, "another worker was reached"
            return message

        others = ",".join(w.name for w in fleet.others(home))
        causes = [check("", headers={"x-homing-allowed-workers": others}),
                  check("", headers={"x-homing-worker": fleet.others(home)[0].name})]
        home.will(Reset())
        causes.append(check("can't be used"))
        assert fleet.ok("s").worker == home.name
        elsewhere = [len(w.seen) for w in fleet.others(home)]
        # the worker's own refusal passes; then the router speaks
        home.will(Status(429, {"Retry-After": "60"}, b"full"))
        turn = fleet.turn("s")
        assert (turn.status, turn.body) == (429, b"full"), turn
        causes.append(check("overload"))
        home.stop()
        # an overload that is known comes before the port that is not tried
        check("overload")
        assert len(set(causes)) == 3, ("the cause is in the message", causes)
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn
        fleet.quiet()


def test_r07_the_strict_set_at_a_port_that_refuses():
    with Fleet(extra=BLIND, affinity=STRICT) as fleet:
        home = fleet.home("s")
        seen = fleet.seen()
        home.stop()
        for _ in range(2):
            check_refused(fleet.turn("s"), 400, "affinity_conflict")
        assert fleet.seen() == seen
        assert fleet.session("s")["worker"] == home.name
        # only a Hard session's home is an argument: an unbound explicit turn meets the plain code
        turn = fleet.turn("new", headers={"x-homing-worker": home.name})
        check_refused(turn, 503, "affinity_target_unavailable")


def test_r07_labels_that_exclude_home_are_the_requests_own_fault():
    with Fleet(2, settings='labels = { zone = "a" }') as fleet:
        home = fleet.home("s")
        seen, version = fleet.seen(), fleet.session("s")["version"]
        check_refused(fleet.turn("s", headers={"x-homing-require-labels": "zone=b"}), 400, "affinity_conflict")
        check_refused(fleet.turn("new", headers={"x-homing-require-labels": "zone=b"}), 503, "no_worker")
        assert fleet.seen() == seen and fleet.session("s")["version"] == version
        turn = fleet.ok("s", headers={"x-homing-require-labels": "zone=a"})
        assert (turn.word, turn.worker) == ("hit", home.name), turn


def test_r07_every_worker_gone_is_a_refusal_and_no_crash():
    with Fleet(2, extra=KEEN) as fleet:
        home = fleet.home("s")
        for worker in fleet.workers:
            worker.stop()
        turn = fleet.turn("s")
        assert turn.status == 503 and turn.code == "no_worker", turn
        assert turn.word in ("rejected", "unbound"), turn
        for worker in fleet.workers:
            worker.start(started=1_800_000_000)
        fleet.router.wait_ready(2)
        assert fleet.ok("s").word in ("new", "rebound")
        assert fleet.ok("s").word == "hit", home
        fleet.quiet()


def test_r22_a_first_turn_that_failed_binds_where_it_ran():
    with Fleet(2, extra=BLIND) as fleet:
        fleet.workers[0].will(Reset())
        for session in ("s", "t"):
            # one of the two meets it first
            if fleet.workers[0].acts:
                turn = fleet.ok(session)
                assert (turn.word, turn.worker) == ("new", "w1"), turn
                assert fleet.session(session)["worker"] == "w1"
        assert len(fleet.workers[0].seen) == 1
        fleet.workers[0].stop()
        for i in range(4):
            turn = fleet.ok(f"u{i}")
            assert (turn.word, turn.worker) == ("new", "w1"), turn
        fleet.quiet()


def test_r22_joiners_of_a_worker_that_refuses_bind_where_they_ran():
    with Fleet(3, extra=BLIND) as fleet:
        fleet.workers[0].stop()
        turns = [Background(lambda i=i: fleet.ok(f"s{i % 4}")) for i in range(24)]
        homes = {}
        for i, turn in enumerate(turns):
            homes.setdefault(i % 4, set()).add(turn.result().worker)
        assert all("w0" not in workers for workers in homes.values()), homes
        for i in range(4):
            turn = fleet.ok(f"s{i}")
            assert turn.word == "hit" and turn.worker in homes[i], (turn, homes)
        fleet.quiet()


def test_r09_an_explicit_target_that_fails_is_not_moved():
    with Fleet(extra=BLIND) as fleet:
        worker = fleet.workers[2]
        seen = [len(w.seen) for w in fleet.others(worker)]
        # tried again there, within retry.attempts
        worker.will(Reset())
        turn = fleet.ok("s", headers={"x-homing-worker": "w2"})
        assert (turn.word, turn.worker) == ("new", "w2"), turn
        assert len(worker.seen) == 2
        worker.stop()
        turn = fleet.turn("t", headers={"x-homing-worker": "w2"})
        check_refused(turn, 503, "affinity_target_unavailable")
        assert [len(w.seen) for w in fleet.others(worker)] == seen
        assert fleet.session("t") is None
        fleet.quiet()


def test_r13_a_client_that_leaves_before_the_answer_leaves_nothing():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        hold = Hold()
        home.will(hold)

        def leave():
            try:
                call(fleet.router.port, "POST", "/v1/chat/completions",
                     {"model": "test-model", "messages": [{"role": "user", "content": "x"}]},
                     {"x-homing-session-id": "s"}, timeout=0.3)
            except TimeoutError:
                return "left"
            return "answered"

        assert Background(leave).result() == "left"
        fleet.quiet()
        hold.open.set()
        assert fleet.ok("s").word == "hit"


def test_r07_a_worker_that_hangs_up_on_an_idle_connection_is_asked_again():
    """Found by a breaker: the goodbye of an idle connection, a 408, became the answer to whoever came just then."""
    bye = Status(408, {"Connection": "close"}, b"idle for too long")
    with Fleet(extra=BLIND) as fleet:
        home = fleet.home("s")
        home.will(bye)
        turn = fleet.ok("s")
        assert (turn.word, turn.worker, len(home.seen)) == ("hit", home.name, 3), (turn, len(home.seen))
        # Who is too slow hears so, and so does who gets no other answer.
        for said, times in ([bye, bye], 2), ([Status(408, body=b"too slow")], 1):
            before = len(home.seen)
            home.will(*said)
            turn = fleet.turn("s")
            assert (turn.status, turn.worker, len(home.seen) - before) == (408, home.name, times), turn
        assert fleet.ok("s").worker == home.name
        assert fleet.state(home)["state"] == "ready", fleet.state(home)
        fleet.quiet()
