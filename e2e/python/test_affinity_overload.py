"""R07, a live worker that is overloaded: each answer that `on_overload` may give, and whose words the client
gets to hear."""
import json
import time

from harness import eventually
from sessions import Background, Fleet, check_refused
from scripted_worker import Hold, Status

# Nothing here outlasts it: who is shed stays shed.
LONG = {"Retry-After": "60"}
BUSY = Status(429, {"X-Engine-Says": "Hello  There", **LONG}, b'{ "error":{"message":"full \xe2\x9c\x93", "n":1.0 } }\n')


def shed(fleet, worker, seconds=60):
    """Makes the router hold a worker for overloaded, through a request that is no session's."""
    worker.will(Status(429, {"Retry-After": str(seconds)}))
    turn = fleet.turn(headers={"x-homing-worker": worker.name})
    assert turn.status == 429 and turn.worker == worker.name, turn
    assert fleet.state(worker)["state"] == "overloaded", fleet.state(worker)


def test_r07_spill_keeps_the_binding_and_the_third_in_a_row_rebinds():
    with Fleet() as fleet:
        home = fleet.home("s")
        version = fleet.session("s")["version"]
        home.will(BUSY)
        first = fleet.ok("s")
        assert first.word == "spilled" and first.worker != home.name, first
        assert len(home.seen) == 2, "it was asked, and said no"
        second = fleet.ok("s")
        assert second.word == "spilled" and second.worker != home.name, second
        kept = fleet.session("s")
        assert (kept["worker"], kept["version"]) == (home.name, version), kept
        third = fleet.ok("s")
        assert third.word == "rebound" and third.worker != home.name, third
        assert fleet.session("s")["worker"] == third.worker
        fourth = fleet.ok("s")
        assert (fourth.word, fourth.worker) == ("hit", third.worker), fourth
        assert len(home.seen) == 2, "who is shed is not asked"
        assert fleet.router.metric("homing_affinity_resolutions_total", outcome="spilled") == 2
        assert fleet.router.metric("homing_affinity_moves_total", reason="overloaded") == 1
        fleet.quiet()


def test_r07_a_hit_resets_the_count_of_spills():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        home.will(Status(429, {"Retry-After": "1"}))
        assert fleet.ok("s").word == "spilled"
        # on a machine that is slow enough it may be over by now
        assert fleet.ok("s").word in ("spilled", "hit")
        time.sleep(1.2)
        back = fleet.ok("s")
        assert (back.word, back.worker) == ("hit", home.name), back
        home.will(BUSY)
        assert fleet.ok("s").word == "spilled", "the third in all, but the first in a row"
        assert fleet.session("s")["worker"] == home.name


def test_r07_spill_with_nobody_else_passes_the_workers_own_answer_unchanged():
    for status in (429, 503):
        with Fleet(1) as fleet:
            home = fleet.home("s")
            home.will(Status(status, BUSY.headers, BUSY.body))
            turn = fleet.turn("s")
            assert (turn.status, turn.body) == (status, BUSY.body), turn
            assert turn.headers["retry-after"] == "60", turn.headers
            assert turn.headers["x-engine-says"] == "Hello  There", turn.headers
            assert turn.word == "unbound" and turn.worker == home.name, turn
            assert fleet.session("s")["worker"] == home.name
            # now it is known, and nobody is bothered
            check_refused(fleet.turn("s"), 429, "overloaded")
            assert len(home.seen) == 2
            assert fleet.session("s")["worker"] == home.name
            fleet.quiet()


def test_r07_reject_passes_the_workers_own_answer_and_speaks_for_it_afterwards():
    with Fleet(affinity='on_overload = "reject"') as fleet:
        home = fleet.home("s")
        home.will(BUSY)
        turn = fleet.turn("s")
        assert (turn.status, turn.body, turn.worker) == (429, BUSY.body, home.name), turn
        assert turn.headers["retry-after"] == "60", turn.headers
        seen = fleet.seen()
        turn = fleet.turn("s")
        check_refused(turn, 429, "affinity_target_overloaded")
        assert fleet.seen() == seen, "a worker was reached"
        assert fleet.session("s")["worker"] == home.name
        # others are not concerned
        assert fleet.ok("t").word == "new"
        fleet.quiet()


def test_r07_reject_ends_with_the_overload():
    with Fleet(affinity='on_overload = "reject"') as fleet:
        home = fleet.home("s")
        shed(fleet, home, seconds=1)
        turn = eventually(lambda: answered(fleet.turn("s")), "served again")
        assert (turn.word, turn.worker) == ("hit", home.name), turn


def answered(turn):
    """The turn, once it is no refusal for overload."""
    if turn.status == 200:
        return turn
    check_refused(turn, 429, "affinity_target_overloaded")
    return None


def test_r16_a_preview_knows_that_an_overload_is_over():
    with Fleet(affinity='on_overload = "reject"') as fleet:
        home = fleet.home("s")
        shed(fleet, home, seconds=1)
        # nobody asks for it meanwhile
        eventually(lambda: fleet.preview({"x-homing-session-id": "s"})["worker"] == home.name,
                   "the preview says what a request would meet", seconds=5)
        assert fleet.state(home)["state"] == "ready", fleet.state(home)


def test_r07_wait_queues_for_the_target_and_is_served_there():
    with Fleet(affinity='on_overload = "wait"') as fleet:
        home = fleet.home("s")
        shed(fleet, home, seconds=2)
        elsewhere = [len(w.seen) for w in fleet.others(home)]
        waiting = Background(lambda: fleet.turn("s"))
        eventually(lambda: fleet.router.metric("homing_queue_depth") == 1 or not waiting.is_alive(), "it waits")
        assert waiting.is_alive(), waiting.result()
        turn = waiting.result()
        assert (turn.status, turn.word, turn.worker) == (200, "hit", home.name), turn
        assert [len(w.seen) for w in fleet.others(home)] == elsewhere
        fleet.quiet()


def test_r07_wait_ends_at_the_deadline_and_changes_no_binding():
    with Fleet(affinity='on_overload = "wait"', gateway='request_timeout = "1s"') as fleet:
        home = fleet.home("s")
        shed(fleet, home)
        version, seen = fleet.session("s")["version"], fleet.seen()
        check_refused(fleet.turn("s"), 504, "timeout")
        assert fleet.seen() == seen
        assert fleet.session("s")["version"] == version
        fleet.quiet()


def test_r07_wait_whose_target_departs_moves_at_once():
    with Fleet(affinity='on_overload = "wait"') as fleet:
        home = fleet.home("s")
        shed(fleet, home)
        waiting = Background(lambda: fleet.turn("s"))
        eventually(lambda: fleet.router.metric("homing_queue_depth") == 1, "it waits")
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        turn = waiting.result()
        assert turn.status == 200 and turn.word == "rebound" and turn.worker != home.name, turn
        fleet.quiet()


def test_r07_dispatch_ignores_the_verdict():
    with Fleet(affinity='on_overload = "dispatch"') as fleet:
        home = fleet.home("s")
        shed(fleet, home)
        turn = fleet.ok("s")
        assert (turn.word, turn.worker) == ("hit", home.name), turn
        seen = [len(w.seen) for w in fleet.others(home)]
        home.will(BUSY)
        turn = fleet.turn("s")
        assert (turn.status, turn.body, turn.worker) == (429, BUSY.body, home.name), turn
        assert [len(w.seen) for w in fleet.others(home)] == seen, "it was tried elsewhere"
        assert fleet.session("s")["worker"] == home.name


def test_r07_soft_goes_elsewhere_and_rebinds_at_once():
    for answer in (True, False):
        with Fleet(affinity='mode = "soft"') as fleet:
            home = fleet.home("s")
            if answer:
                home.will(BUSY)
            else:
                shed(fleet, home)
            turn = fleet.ok("s")
            assert turn.word == "rebound" and turn.worker != home.name, (answer, turn)
            again = fleet.ok("s")
            assert (again.word, again.worker) == ("hit", turn.worker), (answer, again)
            fleet.quiet()


def test_r22_a_first_turn_that_was_sent_away_binds_where_it_ran():
    for act in (BUSY, Status(503, LONG)):
        with Fleet(2) as fleet:
            # it begins at either; the one that it meets first says no
            for worker in fleet.workers:
                worker.will(act)
            first = fleet.turn("s")
            # both were asked, within retry.attempts = 1, and the last one's answer stands
            assert (first.status, first.word, first.body) == (act.status, "unbound", act.body), first
            assert [len(w.seen) for w in fleet.workers] == [1, 1]
            assert fleet.sessions()["count"] == 0
            fleet.quiet()
        with Fleet(2) as fleet:
            fleet.workers[0].will(act)
            words = []
            # one of these two meets it first, whatever the policy's next turn is
            for session in ("s", "t"):
                turn = fleet.ok(session)
                assert (turn.word, turn.worker) == ("new", "w1"), turn
                words.append(fleet.ok(session).word)
            assert words == ["hit", "hit"] and len(fleet.workers[0].seen) == 1, words


def test_r09_an_explicit_target_is_never_moved_for_overload():
    with Fleet() as fleet:
        worker = fleet.workers[1]
        shed(fleet, worker)
        worker.will(BUSY)
        turn = fleet.turn("s", headers={"x-homing-worker": "w1"})
        assert (turn.status, turn.body, turn.worker) == (429, BUSY.body, "w1"), turn
        assert fleet.seen() == 2 and len(worker.seen) == 2
        turn = fleet.ok("s", headers={"x-homing-worker": "w1"})
        assert (turn.word, turn.worker) == ("new", "w1"), turn
        fleet.quiet()


def test_r12_an_error_that_is_no_overload_passes_and_keeps_the_binding():
    with Fleet() as fleet:
        home = fleet.home("s")
        for status in (400, 404, 500, 502):
            home.will(Status(status, {"X-Engine-Says": "Hello  There"}, b'{"odd" : [ ]}'))
            seen = fleet.seen()
            turn = fleet.turn("s")
            assert (turn.status, turn.body, turn.worker) == (status, b'{"odd" : [ ]}', home.name), turn
            assert turn.headers["x-engine-says"] == "Hello  There", turn.headers
            assert turn.word == "unbound", turn
            assert fleet.seen() == seen + 1
        assert fleet.ok("s").word == "hit"
        fleet.quiet()


def test_r07_refusals_of_overload_as_an_argument():
    with Fleet(affinity='on_overload = "reject"\nreject_as = "invalid_argument"') as fleet:
        home = fleet.home("s")
        shed(fleet, home)
        turn = fleet.turn("s")
        check_refused(turn, 400, "affinity_conflict")
        assert "overload" in json.loads(turn.body)["error"]["message"], turn
        assert fleet.ok("s", headers={"x-homing-affinity": "off"}).worker != home.name


def test_r07_a_retry_after_that_is_odd_breaks_nothing():
    for odd in ("0", "-1", "soon", "18446744073709551615", "99999999999999999999999", "1e3", "",
                "Wed, 21 Oct 2065 07:28:00 GMT"):
        with Fleet(2, affinity='on_overload = "reject"') as fleet:
            home = fleet.home("s")
            home.will(Status(429, {"Retry-After": odd, "Retry-After-Ms": odd}))
            turn = fleet.turn("s")
            assert turn.status == 429 and turn.headers["retry-after"] == odd, turn
            # overloaded for a second at least
            check_refused(fleet.turn("s"), 429, "affinity_target_overloaded")
            assert fleet.ok("t").worker != home.name


def test_r07_a_spilled_turns_stream_holds_the_binding():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        (other,) = fleet.others(home)
        home.will(BUSY)
        hold = Hold(begun=True)
        other.will(hold)
        stream = fleet.stream("s")
        assert (stream.turn.word, stream.turn.worker) == ("spilled", other.name), stream.turn
        kept = fleet.session("s")
        assert (kept["worker"], kept["leases"]) == (home.name, 1), kept
        hold.open.set()
        stream.rest()
        fleet.quiet()
        assert fleet.session("s")["worker"] == home.name


def test_r07_wait_whose_own_worker_answers_429_stays_with_it():
    with Fleet(affinity='on_overload = "wait"') as fleet:
        home = fleet.home("s")
        elsewhere = [len(w.seen) for w in fleet.others(home)]
        home.will(Status(429, {"Retry-After": "1"}, b"full"))
        turn = fleet.turn("s")
        # waited for, within retry.attempts, or its own words: never another's answer
        assert turn.worker == home.name and (turn.status, turn.word) == (200, "hit") or turn.body == b"full", turn
        assert [len(w.seen) for w in fleet.others(home)] == elsewhere
        assert fleet.session("s")["worker"] == home.name
        fleet.quiet()


def wait_in_line(fleet, home, seconds=60):
    """A turn that waits for its shed home."""
    shed(fleet, home, seconds)
    waiting = Background(lambda: fleet.turn("s"))
    eventually(lambda: fleet.router.metric("homing_queue_depth") == 1, "it waits")
    return waiting


KEEN = '[health]\ninterval = "100ms"\ntimeout = "1s"\nfailures = 2'


def test_r08_who_waits_for_a_home_that_is_drained_of_its_sessions_leaves_at_once():
    for query in ("move_sessions=true", "deadline=200ms"):
        with Fleet(affinity='on_overload = "wait"') as fleet:
            home = fleet.home("s")
            waiting = wait_in_line(fleet, home)
            assert fleet.admin("POST", f"/admin/workers/{home.name}/drain?{query}")[0] == 200
            turn = waiting.result()
            assert turn.status == 200 and turn.word == "rebound" and turn.worker != home.name, (query, turn)
            fleet.quiet()


def test_r08_who_waits_for_a_home_that_goes_down_leaves_at_once():
    for on_down in ("rebind", "reject"):
        with Fleet(affinity=f'on_overload = "wait"\non_down = "{on_down}"', extra=KEEN) as fleet:
            home = fleet.home("s")
            waiting = wait_in_line(fleet, home)
            home.healthy = False
            turn = waiting.result()
            if on_down == "reject":
                check_refused(turn, 503, "affinity_target_unavailable")
                assert fleet.session("s")["worker"] == home.name
            else:
                assert turn.status == 200 and turn.word == "rebound" and turn.worker != home.name, turn
            fleet.quiet()


def test_r08_the_session_is_read_when_a_queued_turn_is_granted():
    with Fleet(affinity='on_overload = "wait"') as fleet:
        home = fleet.home("s")
        waiting = wait_in_line(fleet, home, seconds=2)
        assert fleet.admin("DELETE", "/admin/sessions/s")[0] == 204
        turn = waiting.result()
        assert turn.status == 200 and turn.word in ("new", "rebound"), turn
        assert fleet.session("s")["worker"] == turn.worker
        fleet.quiet()
