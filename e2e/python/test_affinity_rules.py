"""Single rules of the affinity contract that the acceptance tests leave out: R09, R15, R16, R18, R19, R20, R26,
R27. What sessions do when their home is away is in `test_affinity_away`, and by what is overload in
`test_affinity_overload`."""
from collections import Counter

from harness import eventually
from scripted_worker import Hold, Status
from sessions import CHAT, Background, Fleet, Turn, chat_body, check_refused


def test_r09_r26_a_refusal_reaches_no_worker_changes_nothing_and_says_so():
    with Fleet(3, settings='labels = { zone = "a" }') as fleet:
        home = fleet.home("s")
        other = fleet.others(home)[0].name
        rest = ",".join(w.name for w in fleet.others(home))
        before, seen = fleet.session("s"), fleet.seen()
        # headers of the request, and what is said to: a bound session, a new one, none
        refusals = [
            ({"x-homing-worker": "nobody"}, (400, "unknown_worker"), True),
            ({"x-homing-worker": other}, (400, "affinity_conflict"), False),
            ({"x-homing-worker": home.name, "x-homing-allowed-workers": rest}, (400, "invalid_request"), True),
            ({"x-homing-worker": home.name, "x-homing-require-labels": "zone=b"}, (400, "invalid_request"), True),
            ({"x-homing-worker": home.name, "x-homing-dp-rank": "1"}, (400, "invalid_request"), True),
            ({"x-homing-allowed-workers": rest}, (400, "affinity_conflict"), False),
            ({"x-homing-allowed-workers": "nobody"}, (400, "affinity_conflict"), False),
        ]
        for headers, (status, code), anybody in refusals:
            check_refused(fleet.turn("s", headers=headers), status, code)
            if anybody:
                check_refused(fleet.turn("new", headers=headers), status, code)
                check_refused(fleet.turn(headers=headers), status, code, word="none")
        for headers in ({"x-homing-allowed-workers": "nobody"}, {"x-homing-allowed-workers": ""},
                        {"x-homing-require-labels": "zone=b"}):
            check_refused(fleet.turn("new", headers=headers), 503, "no_worker")
        check_refused(fleet.turn("k" * 257), 400, "invalid_session_id")
        check_refused(fleet.turn("s", model="no-such-model"), 404, "model_not_found")
        assert fleet.seen() == seen, "a worker was reached"
        after = fleet.session("s")
        assert {k: after[k] for k in ("worker", "version", "leases")} == \
            {k: before[k] for k in ("worker", "version", "leases")}, (before, after)
        assert after["idle_seconds"] >= before["idle_seconds"], "a refusal refreshed the binding"
        assert fleet.sessions()["count"] == 1
        fleet.quiet()


def test_r26_a_refusal_of_a_request_that_cant_be_read_says_rejected_too():
    # it has a session, whatever else is wrong with it
    wrong = [{"x-homing-affinity": "firm"}, {"x-homing-dp-rank": "0"}, {"x-homing-session-final": "perhaps"},
             {"x-homing-priority": "high"}, {"x-homing-require-labels": "zone"}, {"x-homing-tpyo": "1"}]
    with Fleet(1) as fleet:
        words = [(headers, fleet.turn("s", headers=headers).word) for headers in wrong]
        words.append(("a body", Turn(*fleet.router.post(CHAT, b"[]", {"x-homing-session-id": "s"})).word))
        assert {word for _, word in words} == {"rejected"}, words


def test_r26_the_metrics_count_what_the_headers_say():
    with Fleet(2) as fleet:
        turns = [fleet.turn("s"), fleet.turn("s"), fleet.turn(), fleet.turn("s", headers={"x-homing-worker": "no"}),
                 fleet.turn("k" * 257), fleet.turn("s", model="no-such-model")]
        told = Counter(turn.word for turn in turns)
        counted = {word: fleet.router.metric("homing_affinity_resolutions_total", outcome=word)
                   for word in ("new", "hit", "none", "rejected")}
        assert counted == told, (counted, told)


def test_r09_a_target_that_names_itself_twice_must_agree():
    with Fleet(2) as fleet:
        turn = fleet.turn("s", headers={"x-homing-worker": "w0", "x-dynamo-worker-instance-id": "w1"})
        assert (turn.status, turn.code) == (400, "invalid_request"), turn
        turn = fleet.ok("s", headers={"x-homing-worker": "w1", "x-dynamo-worker-instance-id": "w1"})
        assert turn.worker == "w1", turn
        sent = [k.lower() for k, _ in fleet.workers[1].seen[0].headers]
        assert not any(k.startswith(b"x-homing-") for k in sent), sent


def test_r09_explicit_turns_refresh_the_binding():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        hold = Hold(begun=True)
        home.will(hold)
        stream = fleet.stream("s", {"x-homing-worker": home.name})
        assert stream.turn.word == "hit" and fleet.session("s")["leases"] == 1
        hold.open.set()
        stream.rest()
        fleet.quiet()


def test_r15_a_full_table_never_evicts_a_binding_that_is_in_use():
    with Fleet(2, affinity='max_sessions = 1\non_full = "evict_idle"') as fleet:
        hold = Hold(begun=True)
        for worker in fleet.workers:
            worker.will(hold)
        stream = fleet.stream("one")
        for worker in fleet.workers:
            worker.acts.clear()
        turn = fleet.ok("two")
        assert turn.word == "unbound_full", turn
        assert fleet.session("one")["leases"] == 1 and fleet.session("two") is None
        assert fleet.router.metric("homing_affinity_full_table_fallbacks_total") == 1
        hold.open.set()
        stream.rest()
        fleet.quiet()
        assert fleet.ok("two").word == "new"
        assert fleet.session("one") is None and fleet.session("two") is not None


def test_r15_room_that_becomes_free_is_used():
    with Fleet(2, affinity='max_sessions = 2\nttl = "1s"') as fleet:
        fleet.home("one"), fleet.home("two")
        assert fleet.ok("three").word == "unbound_full"
        assert fleet.admin("DELETE", "/admin/sessions/one")[0] == 204
        assert fleet.ok("three").word == "new"
        assert fleet.ok("four", headers={"x-homing-session-final": "true"}).word == "unbound_full"
        # and by expiry alone
        eventually(lambda: fleet.ok("four").word in ("new", "hit"), "the others idle out")
        assert fleet.sessions()["count"] <= 2


def test_r15_many_first_turns_at_once_never_exceed_the_table():
    with Fleet(2, affinity="max_sessions = 5") as fleet:
        turns = [Background(lambda i=i: fleet.ok(f"s{i}").word) for i in range(30)]
        words = [turn.result() for turn in turns]
        assert words.count("new") == 5 and words.count("unbound_full") == 25, words
        assert fleet.sessions()["count"] == 5
        assert fleet.router.metric("homing_affinity_full_table_fallbacks_total") == 25
        fleet.quiet()


def test_r16_previews_of_every_kind_touch_nothing():
    with Fleet(3, affinity="max_sessions = 2\nmax_parallel = 1") as fleet:
        home = fleet.home("s")
        s = {"x-homing-session-id": "s"}
        rest = [w.name for w in fleet.others(home)]

        def told(headers, body=None):
            before = fleet.session("s")
            got = fleet.preview(headers, body)
            after = fleet.session("s")
            assert (after["version"], after["leases"], after["final"]) == \
                (before["version"], before["leases"], before["final"]), (before, after)
            assert after["idle_seconds"] >= before["idle_seconds"], "a preview refreshed the binding"
            return got["worker"], got["session"].get("affinity"), (got["error"] or {}).get("code")

        seen, count = fleet.seen(), fleet.sessions()["count"]
        assert told(s) == (home.name, "hit", None)
        assert told({**s, "x-homing-session-final": "true"}) == (home.name, "hit", None)
        assert told({**s, "x-homing-worker": rest[0]}) == (None, "rejected", "affinity_conflict")
        assert told({**s, "x-homing-worker": "nobody"}) == (None, "rejected", "unknown_worker")
        assert told({**s, "x-homing-allowed-workers": rest[0]}) == (None, "rejected", "affinity_conflict")
        soft = {**s, "x-homing-affinity": "soft", "x-homing-allowed-workers": rest[0]}
        assert told(soft) == (rest[0], "rebound", None)
        assert told({**s, "x-homing-affinity": "off"})[1:] == ("none", None)
        assert told({**s, "x-homing-affinity": "firm"})[2] == "invalid_request"
        assert told({"x-homing-session-id": "k" * 257})[2] == "invalid_session_id"
        assert told({"x-homing-session-id": "new"})[1:] == ("new", None)
        assert told({})[1:] == ("none", None)
        assert told(s, chat_body(model="no-such-model"))[2] == "model_not_found"
        assert told(s, {"model": 5})[2] == "invalid_request"
        # neither turns of the policy were taken
        assert len({told({})[0] for _ in range(6)}) == 1, "a preview took the next one's turn"
        assert fleet.seen() == seen and fleet.sessions()["count"] == count
        # a home that is away: spilled, then departed
        home.will(Status(429, {"Retry-After": "60"}))
        assert fleet.ok("s").word == "spilled"
        worker, word, code = told(s)
        assert worker in rest and word == "spilled" and code is None, (worker, word, code)
        # too many at once
        hold, stream = fleet.hold(fleet.worker(rest[0]), session="busy")
        assert told({"x-homing-session-id": "busy"})[1] == "surplus"
        # a full table
        assert told({"x-homing-session-id": "third"})[1] == "unbound_full"
        hold.open.set()
        stream.rest()
        assert fleet.router.metric("homing_affinity_full_table_fallbacks_total") == 0
        assert fleet.admin("DELETE", f"/admin/workers/{home.name}")[0] == 204
        got = fleet.preview(s)
        assert got["worker"] in rest and got["session"]["affinity"] == "rebound", got
        assert fleet.ok("s").word == "rebound", "the preview before it dropped nothing"
        fleet.quiet()


def test_r16_a_preview_that_is_none_is_told():
    with Fleet(1) as fleet:
        for body in (b"", b"[]", b"{", {"body": {}, "hedaers": {}}, {"endpoint": CHAT}, {"endpoint": "/x", "body": {}},
                     {"headers": {"a b": "c"}, "body": chat_body()}):
            status, data = fleet.admin("POST", "/admin/preview", body)
            assert status == 400 and b"invalid_request" in data, (body, status, data)


def test_r18_a_parent_is_apart_from_its_group():
    with Fleet(3, affinity='subagents = "group"') as fleet:
        parent = fleet.ok("boss")
        child = {"x-homing-parent-session-id": "boss"}
        children = [fleet.ok(s, headers=child) for s in ("a", "b", None, "boss")]
        assert [c.word for c in children] == ["new", "hit", "hit", "hit"], children
        assert len({c.worker for c in children}) == 1
        # round robin: who is bound together is together, who is apart went on to the next
        assert children[0].worker != parent.worker, (parent, children)
        assert fleet.sessions()["count"] == 2
        assert fleet.session("boss")["worker"] == parent.worker
        assert fleet.session("boss", group="true")["worker"] == children[0].worker
        assert fleet.session("a") is None
        # by Dynamo's word and OpenCode's it is the same group; another parent's is another
        for name in ("x-dynamo-parent-session-id", "x-parent-session-id"):
            turn = fleet.ok("c", headers={name: "boss"})
            assert (turn.word, turn.worker) == ("hit", children[0].worker), (name, turn)
        assert fleet.ok("a", headers={"x-homing-parent-session-id": "a"}).word == "new"
        assert fleet.ok("boss").word == "hit"


def test_r18_by_default_a_child_binds_alone_and_without_an_id_not_at_all():
    with Fleet(3) as fleet:
        child = {"x-homing-parent-session-id": "boss"}
        assert [fleet.ok(s, headers=child).word for s in ("a", "b", "a", None)] == ["new", "new", "hit", "none"]
        assert fleet.session("boss") is None and fleet.session("boss", group="true") is None


def test_r19_a_childs_last_turn_is_ignored_and_the_parents_ends_both():
    with Fleet(3, affinity='subagents = "group"') as fleet:
        child, last = {"x-homing-parent-session-id": "boss"}, {"x-homing-session-final": "true"}
        fleet.home("boss")
        assert fleet.ok("a", headers=child).word == "new"
        assert fleet.ok("a", headers={**child, **last}).word == "hit"
        assert fleet.ok("b", headers=child).word == "hit", "a child's word has ended the group"
        assert fleet.sessions()["count"] == 2
        assert fleet.ok("boss", headers=last).word == "hit"
        fleet.quiet()
        assert fleet.sessions()["count"] == 0, fleet.sessions()
        assert fleet.ok("b", headers=child).word == "new"


def test_r19_a_group_with_a_running_child_ends_with_that_child():
    with Fleet(2, affinity='subagents = "group"') as fleet:
        child, last = {"x-homing-parent-session-id": "boss"}, {"x-homing-session-final": "true"}
        fleet.home("boss")
        home = fleet.worker(fleet.ok("a", headers=child).worker)
        hold = Hold(begun=True)
        home.will(hold)
        stream = fleet.stream("a", child)
        assert fleet.ok("boss", headers=last).word == "hit"
        eventually(lambda: fleet.session("boss") is None, "the parent has ended")
        assert fleet.ok("b", headers=child).word == "hit", "later turns hit while it runs"
        hold.open.set()
        stream.rest()
        fleet.quiet()
        assert fleet.sessions()["count"] == 0


def test_r19_later_turns_hit_while_the_last_one_runs_and_do_not_clear_its_mark():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        hold = Hold(begun=True)
        home.will(hold)
        stream = fleet.stream("s", {"x-homing-session-final": "true"})
        assert stream.turn.word == "hit" and fleet.session("s")["final"] is True
        for _ in range(3):
            turn = fleet.ok("s", headers={"x-homing-session-final": "false"})
            assert (turn.word, turn.worker) == ("hit", home.name), turn
        assert fleet.session("s")["final"] is True
        hold.open.set()
        stream.rest()
        eventually(lambda: fleet.session("s") is None, "gone with the last lease")
        assert fleet.ok("s").word == "new"
        fleet.quiet()


def test_r19_a_refused_or_failed_last_turn_marks_nothing():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        last = {"x-homing-session-final": "true"}
        check_refused(fleet.turn("s", headers={**last, "x-homing-worker": fleet.others(home)[0].name}), 400,
                      "affinity_conflict")
        home.will(Status(500))
        assert fleet.turn("s", headers=last).status == 500
        fleet.quiet()
        assert fleet.session("s")["final"] is False
        turn = fleet.turn("s", headers={"x-homing-session-final": "perhaps"})
        assert (turn.status, turn.code) == (400, "invalid_request"), turn
        # the first turn may be the last
        assert fleet.ok("one", headers={"x-dynamo-session-final": "true"}).word == "new"
        eventually(lambda: fleet.session("one") is None, "gone at once")


def test_r20_a_request_chooses_how_firmly_it_binds():
    with Fleet(2) as fleet:
        home = fleet.home("s")
        (other,) = fleet.others(home)
        away = {"x-homing-allowed-workers": other.name}
        check_refused(fleet.turn("s", headers={**away, "x-homing-affinity": "hard"}), 400, "affinity_conflict")
        before = fleet.session("s")
        turn = fleet.ok("s", headers={**away, "x-homing-affinity": "off"})
        assert (turn.word, turn.worker) == ("none", other.name), turn
        after = fleet.session("s")
        assert after["version"] == before["version"] and after["idle_seconds"] >= before["idle_seconds"]
        turn = fleet.ok("s", headers={**away, "x-homing-affinity": "soft"})
        assert (turn.word, turn.worker) == ("rebound", other.name), turn
        assert fleet.ok("s").worker == other.name
        for word in ("firm", "HARD", "", "hard,soft"):
            turn = fleet.turn("s", headers={"x-homing-affinity": word})
            assert (turn.status, turn.code) == (400, "invalid_request"), (word, turn)
    with Fleet(2, affinity='mode = "soft"') as fleet:
        home = fleet.home("s")
        away = {"x-homing-allowed-workers": fleet.others(home)[0].name}
        check_refused(fleet.turn("s", headers={**away, "x-homing-affinity": "hard"}), 400, "affinity_conflict")
        assert fleet.ok("s", headers=away).word == "rebound"


def test_r20_a_body_key_is_soft_unless_the_request_or_the_settings_say_otherwise():
    for affinity, headers, hard in (("", {}, False), ("", {"x-homing-affinity": "hard"}, True),
                                    ('body_mode = "hard"', {}, True)):
        with Fleet(2, affinity=affinity) as fleet:
            home = fleet.worker(fleet.ok(prompt_cache_key="k").worker)
            assert fleet.ok(prompt_cache_key="k").worker == home.name
            away = {**headers, "x-homing-allowed-workers": fleet.others(home)[0].name}
            turn = fleet.turn(headers=away, prompt_cache_key="k")
            if hard:
                check_refused(turn, 400, "affinity_conflict")
            else:
                assert turn.word == "rebound", turn


def test_r27_the_surplus_of_a_hot_key_is_placed_as_without_a_session():
    with Fleet(3, affinity="max_parallel = 2") as fleet:
        home = fleet.home("hot")
        holds = [Hold(begun=True), Hold(begun=True)]
        home.will(*holds)
        streams = [fleet.stream("hot"), fleet.stream("hot")]
        assert [s.turn.word for s in streams] == ["hit", "hit"]
        # as without a session: the policy's turn, whichever that is, and no mark of it
        turns = [fleet.ok("hot") for _ in range(6)]
        assert {t.word for t in turns} == {"surplus"}, turns
        assert {t.worker for t in turns} == {"w0", "w1", "w2"}, turns
        assert fleet.session("hot")["leases"] == 2 and fleet.session("hot")["worker"] == home.name
        # others are not concerned
        assert fleet.ok("cold").word == "new"
        holds[0].open.set()
        streams[0].rest()
        eventually(lambda: fleet.session("hot")["leases"] == 1, "one has ended")
        turn = fleet.ok("hot")
        assert (turn.word, turn.worker) == ("hit", home.name), turn
        holds[1].open.set()
        streams[1].rest()
        fleet.quiet()
        assert fleet.router.metric("homing_affinity_resolutions_total", outcome="surplus") == 6


def test_r27_first_turns_count_before_they_bind():
    with Fleet(2, affinity="max_parallel = 3") as fleet:
        hold = Hold()
        for worker in fleet.workers:
            worker.default = hold
        turns = [Background(lambda: fleet.ok("s").word) for _ in range(8)]
        eventually(lambda: fleet.seen() == 8, "all are at a worker")
        hold.open.set()
        words = sorted(turn.result() for turn in turns)
        assert words == ["joined"] * 2 + ["new"] + ["surplus"] * 5, words
        fleet.quiet()


def test_r11_the_first_to_begin_binds_and_the_other_keeps_its_stream():
    for mode, word in (("hard", "conflict"), ("soft", "rebound")):
        with Fleet(2) as fleet:
            hold = Hold()
            fleet.workers[0].will(hold)
            first = Background(lambda m=mode: fleet.stream("s", {
                "x-homing-affinity": m, "x-homing-allowed-workers": "w0"}))
            eventually(lambda: fleet.seen() == 1, "the first is at its worker")
            # this one can't join it there
            second = fleet.ok("s", headers={"x-homing-allowed-workers": "w1"})
            assert (second.word, second.worker) == ("new", "w1"), second
            hold.open.set()
            stream = first.result()
            assert (stream.turn.word, stream.turn.worker) == (word, "w0"), stream.turn
            assert fleet.session("s")["worker"] == ("w1" if mode == "hard" else "w0")
            assert b"[DONE]" in stream.rest()
            fleet.quiet()
            assert fleet.router.metric("homing_affinity_resolutions_total", outcome=word) == 1


def test_r12_a_first_turn_that_fails_is_unbound_and_its_joiners_are_not():
    with Fleet(2) as fleet:
        hold = Hold()
        for worker in fleet.workers:
            worker.will(Status(400, after=hold), hold, hold, hold)
        first = Background(lambda: fleet.turn("s"))
        eventually(lambda: fleet.seen() == 1, "the first is at its worker")
        (home,) = [w for w in fleet.workers if w.seen]
        joiners = [Background(lambda: fleet.turn("s")) for _ in range(3)]
        eventually(lambda: len(home.seen) == 4, "they joined it")
        hold.open.set()
        assert (first.result().status, first.result().word) == (400, "unbound"), first.result()
        words = sorted(joiner.result().word for joiner in joiners)
        assert words == ["joined", "joined", "new"], words
        assert fleet.session("s")["worker"] == home.name
        fleet.quiet()
