"""What operators do to sessions: drain and undrain, look one up, end one, take a worker away under a stream."""
import json
from urllib.parse import quote

from harness import eventually
from scripted_worker import Hold
from sessions import Fleet, check_refused


def drain(fleet, worker, query=""):
    status, data = fleet.admin("POST", f"/admin/workers/{worker.name}/drain{query}")
    assert status == 200, (status, data)
    told = json.loads(data)
    assert told["id"] == worker.name and told["state"] == "draining", told
    return told


def undrain(fleet, worker):
    status, data = fleet.admin("POST", f"/admin/workers/{worker.name}/undrain")
    assert status == 200 and json.loads(data)["state"] == "ready", (status, data)


def test_a_drained_worker_keeps_its_sessions_and_gets_no_new_ones():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        (other,) = fleet.others(home)
        told = drain(fleet, home)
        assert told["sessions_move_in_seconds"] is None, told
        for i in range(4):
            assert fleet.ok("s").word == "hit"
            assert fleet.ok(f"new{i}").worker == other.name
            assert fleet.ok().worker == other.name
        # Soft ones may finish too
        turn = fleet.ok("s", headers={"x-homing-affinity": "soft"})
        assert (turn.word, turn.worker) == ("hit", home.name), turn
        undrain(fleet, home)
        assert {fleet.ok(f"later{i}").worker for i in range(4)} == {"w0", "w1"}
        assert fleet.ok("s").word == "hit"


def test_a_drain_that_moves_sessions_moves_each_with_its_next_turn():
    with Fleet(3) as fleet:
        home = fleet.home("s")
        hold = Hold(begun=True)
        home.will(hold)
        stream = fleet.stream("s")
        told = drain(fleet, home, "?move_sessions=true")
        assert told["sessions_move_in_seconds"] == 0, told
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn
        assert fleet.ok("s").word == "hit"
        # what runs there finishes, and its lease is nobody else's
        assert fleet.sessions()["leases"] == 1 and fleet.session("s")["leases"] == 0
        hold.open.set()
        assert b"[DONE]" in stream.rest()
        fleet.quiet()
        undrain(fleet, home)
        assert fleet.ok("s").worker == turn.worker, "nothing moves back"


def test_a_drain_with_a_deadline_moves_sessions_after_it():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        told = drain(fleet, home, "?deadline=10m")
        assert 0 < told["sessions_move_in_seconds"] <= 600, told
        assert fleet.ok("s").word == "hit"
        # the last word counts
        drain(fleet, home, "?deadline=300ms")
        eventually(lambda: fleet.preview({"x-homing-session-id": "s"})["worker"] != home.name, "the deadline is over")
        assert fleet.ok("s").word == "rebound"
        undrain(fleet, home)
        fleet.home("t", headers={"x-homing-worker": home.name})
        drain(fleet, home, "?deadline=0s")
        assert fleet.ok("t").word == "rebound"


def test_where_all_drain_new_sessions_are_refused_and_old_ones_served():
    with Fleet(2) as fleet:
        fleet.home("s")
        for worker in fleet.workers:
            drain(fleet, worker)
        assert fleet.ok("s").word == "hit"
        check_refused(fleet.turn("new"), 503, "no_worker")
        check_refused(fleet.turn(), 503, "no_worker", word="none")


def test_a_wrong_drain_is_told_and_does_nothing():
    with Fleet(1) as fleet:
        for query in ("?deadline=soon", "?deadline=2y", "?deadline=", "?deadline=-1s", "?move_sessions=perhaps",
                      "?move_session=true", "?move_sessions=true&deadline=10m"):
            status, data = fleet.admin("POST", f"/admin/workers/w0/drain{query}")
            assert status == 400, (query, status, data)
        assert fleet.admin("POST", "/admin/workers/nobody/drain")[0] == 404
        assert fleet.admin("POST", "/admin/workers/nobody/undrain")[0] == 404
        assert fleet.state(fleet.workers[0])["state"] == "ready"
        undrain(fleet, fleet.workers[0])


def test_a_session_is_looked_up_by_the_id_that_its_client_sends():
    ids = ["plain", "with space", "a/b", "über", "50%25", "?model=x", "..", "a+b", "x" * 256]
    with Fleet(2) as fleet:
        for i in ids:
            turn = fleet.ok(None, headers={"x-homing-session-id": i.encode()})
            assert turn.word == "new", (i, turn)
            found = fleet.session(i)
            assert found and found["worker"] == turn.worker, (i, found)
            assert set(found) >= {"key_digest", "partition", "worker", "dp_rank", "leases", "idle_seconds", "version"}
            assert i not in json.dumps(found) or i in (found["partition"], ".."), found
        assert fleet.session("nobody") is None
        assert fleet.session("plain", model="test-model")["worker"]
        assert fleet.session("plain", model="no-such-model") is None
        assert fleet.session("plain", tenant="somebody") is None
        assert fleet.session("plain", role="aggregated") is not None
        for query in ("role=boss", "modle=x"):
            assert fleet.admin("GET", f"/admin/sessions/plain?{query}")[0] == 400, query
        listed = fleet.sessions()
        assert listed["count"] == len(ids) == len({s["key_digest"] for s in listed["sessions"]})
        assert len(fleet.router.admin_json("/admin/sessions?limit=3")["sessions"]) == 3
        assert len(fleet.router.admin_json("/admin/sessions?limit=0")["sessions"]) == 0
        for query in ("limit=-1", "limit=x", "limits=1"):
            assert fleet.admin("GET", f"/admin/sessions?{query}")[0] == 400, query
        for i in ids:
            assert fleet.admin("DELETE", f"/admin/sessions/{quote(i, safe='')}")[0] == 204, i
        assert fleet.sessions()["count"] == 0


def test_r19_a_session_ended_under_its_stream_lets_the_stream_finish():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        hold = Hold(begun=True)
        home.will(hold)
        stream = fleet.stream("s")
        assert fleet.admin("DELETE", "/admin/sessions/s") == (204, b"")
        assert fleet.session("s") is None
        assert fleet.admin("DELETE", "/admin/sessions/s")[0] == 404
        # R13: the lease is its request's own, until the stream ends
        assert fleet.sessions()["leases"] == 1 and fleet.sessions()["count"] == 0
        turn = fleet.ok("s")
        assert turn.word == "new", turn
        assert fleet.session("s")["leases"] == 0, "the old one counts for its successor"
        # and ends into nothing: the successor stands, even as its final one
        hold.open.set()
        assert b"[DONE]" in stream.rest()
        fleet.quiet()
        again = fleet.ok("s")
        assert (again.word, again.worker) == ("hit", turn.worker), again


def test_r13_a_worker_removed_under_a_stream_lets_the_stream_finish():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        hold = Hold(begun=True)
        home.will(hold)
        stream = fleet.stream("s")
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        turn = fleet.ok("s")
        assert turn.word == "rebound" and turn.worker != home.name, turn
        assert fleet.sessions()["leases"] == 1 and fleet.session("s")["leases"] == 0
        hold.open.set()
        assert b"[DONE]" in stream.rest()
        fleet.quiet()
        assert fleet.ok("s").word == "hit"
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 404
