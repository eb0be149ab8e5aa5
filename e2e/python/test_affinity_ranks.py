"""Workers of two data-parallel ranks: a session lives at one of them (R03, R06, R09)."""
from collections import Counter

from sessions import Fleet, check_refused

TWO = "dp_size = 2"


def told(worker):
    """The ranks that the last request to a worker named."""
    return [v.decode() for v in worker.seen[-1].values(b"x-data-parallel-rank")]


def test_r05_a_session_sticks_to_its_rank_and_both_sides_are_told_it():
    with Fleet(2, settings=TWO) as fleet:
        homes = {}
        for turn in range(4):
            for s in range(8):
                got = fleet.ok(f"s{s}")
                assert got.rank in ("0", "1"), got
                assert told(fleet.worker(got.worker)) == [got.rank], (got, fleet.worker(got.worker).seen[-1].headers)
                assert homes.setdefault(s, (got.worker, got.rank)) == (got.worker, got.rank), (turn, homes, got)
                assert got.word == ("hit" if turn else "new"), got
        assert Counter(homes.values()) == Counter({(w, r): 2 for w in ("w0", "w1") for r in ("0", "1")}), homes
        listed = {(s["worker"], s["dp_rank"]) for s in fleet.sessions()["sessions"]}
        assert listed == {("w0", 0), ("w0", 1), ("w1", 0), ("w1", 1)}, listed
        assert fleet.state(fleet.workers[0])["ranks"] == 2
        fleet.quiet()


def test_r05_a_worker_of_one_rank_is_told_none():
    with Fleet(1) as fleet:
        turn = fleet.ok("s")
        assert turn.rank is None and told(fleet.workers[0]) == [], turn


def test_r05_a_rank_that_the_client_wrote_itself_does_not_pass_beside_ours():
    with Fleet(1, settings=TWO) as fleet:
        rank = fleet.ok("s").rank
        other = "1" if rank == "0" else "0"
        turn = fleet.ok("s", headers={"X-data-parallel-rank": other})
        assert turn.rank == rank and told(fleet.workers[0]) == [rank], told(fleet.workers[0])


def test_r09_an_explicit_rank_is_where_it_runs_and_binds():
    for worker, rank in (("x-homing-worker", "x-homing-dp-rank"),
                         ("x-dynamo-worker-instance-id", "x-dynamo-dp-rank")):
        with Fleet(2, settings=TWO) as fleet:
            turn = fleet.ok("s", headers={worker: "w1", rank: "1"})
            assert (turn.word, turn.worker, turn.rank) == ("new", "w1", "1"), turn
            assert told(fleet.workers[1]) == ["1"]
            turn = fleet.ok("s")
            assert (turn.word, turn.worker, turn.rank) == ("hit", "w1", "1"), turn
            # without a session too, and both at once
            turn = fleet.ok(headers={worker: "w0", rank: "1"})
            assert (turn.word, turn.worker, turn.rank) == ("none", "w0", "1"), turn
            turn = fleet.ok("s", headers={worker: "w1", rank: "1"})
            assert turn.word == "hit", turn


def test_r09_the_other_rank_of_home_is_a_conflict_for_hard_and_a_move_for_soft():
    with Fleet(2, settings=TWO) as fleet:
        home = fleet.ok("s")
        other = {"x-homing-worker": home.worker, "x-homing-dp-rank": "1" if home.rank == "0" else "0"}
        seen, version = fleet.seen(), fleet.session("s")["version"]
        check_refused(fleet.turn("s", headers=other), 400, "affinity_conflict")
        assert fleet.seen() == seen and fleet.session("s")["version"] == version
        moved = fleet.ok("s", headers={**other, "x-homing-affinity": "soft"})
        assert moved.word == "rebound" and moved.rank == other["x-homing-dp-rank"], moved
        turn = fleet.ok("s")
        assert (turn.word, turn.worker, turn.rank) == ("hit", home.worker, moved.rank), turn


def test_r09_a_worker_alone_needs_a_session_to_find_its_rank():
    with Fleet(2, settings=TWO) as fleet:
        named = {"x-homing-worker": "w1"}
        check_refused(fleet.turn(headers=named), 400, "rank_required", word="none")
        off = {**named, "x-homing-affinity": "off"}
        check_refused(fleet.turn("s", headers=off), 400, "rank_required", word="none")
        assert fleet.seen() == 0 and fleet.sessions()["count"] == 0
        # a new session: the scheduler chooses; afterwards the binding does
        first = fleet.ok("s", headers=named)
        assert (first.word, first.worker) == ("new", "w1") and first.rank in ("0", "1"), first
        for _ in range(4):
            turn = fleet.ok("s", headers=named)
            assert (turn.word, turn.worker, turn.rank) == ("hit", "w1", first.rank), turn
        ranks = {fleet.ok(f"t{i}", headers=named).rank for i in range(8)}
        assert ranks == {"0", "1"}, ranks


def test_r09_passive_ids_need_a_rank_too():
    with Fleet(2, settings=TWO, affinity='ttl = "off"') as fleet:
        check_refused(fleet.turn("s", headers={"x-homing-worker": "w1"}), 400, "rank_required", word="none")
        assert fleet.ok("s", headers={"x-homing-worker": "w1", "x-homing-dp-rank": "0"}).word == "none"


def test_r09_a_rank_out_of_range_is_the_clients_fault():
    with Fleet(2, settings=TWO) as fleet:
        fleet.ok("s")
        seen, version = fleet.seen(), fleet.session("s")["version"]
        for rank in ("2", "65535"):
            named = {"x-homing-worker": "w1", "x-homing-dp-rank": rank}
            check_refused(fleet.turn("s", headers=named), 400, "invalid_request")
            check_refused(fleet.turn("new", headers=named), 400, "invalid_request")
            check_refused(fleet.turn(headers=named), 400, "invalid_request", word="none")
        for rank in ("-1", "one", "65536", "+1", "1.0", "0x1"):
            turn = fleet.turn("s", headers={"x-homing-worker": "w1", "x-homing-dp-rank": rank})
            assert (turn.status, turn.code) == (400, "invalid_request"), turn
        turn = fleet.turn("s", headers={"x-homing-dp-rank": "1"})
        assert (turn.status, turn.code) == (400, "invalid_request"), turn
        assert fleet.seen() == seen and fleet.session("s")["version"] == version
        assert fleet.sessions()["count"] == 1


def test_r16_a_preview_names_the_rank():
    with Fleet(2, settings=TWO) as fleet:
        turn = fleet.ok("s")
        told = fleet.preview({"x-homing-session-id": "s"})
        assert (told["worker"], told["dp_rank"]) == (turn.worker, int(turn.rank)), told
        assert len(told["candidates"]) == 4, told
        told = fleet.preview({"x-homing-worker": "w0"})
        assert told["worker"] is None and told["error"]["code"] == "rank_required", told
