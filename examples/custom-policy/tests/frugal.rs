//! What a policy of one's own can do and what it can't, on a core; and that the program knows it by name.

#[cfg(test)]
mod frugal {
    use custom_policy::Frugal;
    use homing_core::SelectionCore;
    use homing_core::affinity::Outcome;
    use homing_core::ask::{Admission, Ask, Cause, Dispatch, Grant, Live, Session};
    use homing_core::fleet::{FleetChange, Probe, ServedName, WorkerSpec};
    use homing_core::hash::Prompt;
    use homing_core::ids::{SessionKey, WorkerId};
    use homing_core::settings::{CoreSettings, Mode};
    use homing_core::time::Time;
    use std::process::Command;

    const NOW: Time = Time::from_micros(1_000_000_000);

    struct Fleet(SelectionCore);

    impl Fleet {
        fn new(workers: usize, full: u32) -> Self {
            let policy = move || Box::new(Frugal { full }) as _;
            let core = SelectionCore::with_policy(CoreSettings::default(), 7, policy);
            for i in 0..workers {
                let name = format!("w{i}");
                let spec = WorkerSpec::new(&name, &format!("http://{name}"));
                core.handle_fleet(NOW, FleetChange::Register(spec)).unwrap();
                let id = core.worker_named(&name).unwrap();
                let served = vec![ServedName { name: "m".to_owned(), adapter: false }];
                core.handle_fleet(NOW, FleetChange::Serves(id, served)).unwrap();
                core.handle_fleet(NOW, FleetChange::Probed(id, Probe::Good)).unwrap();
            }
            Self(core)
        }

        fn ask(&self, session: Option<(u128, Mode)>) -> Ask {
            let route = self.0.route("m").unwrap();
            let mut ask = Ask::new(route.partition, route.name, Prompt::of_length(100));
            ask.session = session.map(|(key, mode)| Session::new(SessionKey(key), mode));
            ask
        }

        fn start(&self, session: Option<(u128, Mode)>) -> (WorkerId, Outcome, Live) {
            let grant: Grant = match self.0.admit(NOW, self.ask(session)) {
                Admission::Granted(grant) => grant,
                other => panic!("{other:?}"),
            };
            let worker = grant.worker().id;
            let Dispatch::Go(checked) = self.0.check_dispatch(NOW, grant) else { panic!("again") };
            let (live, outcome) = self.0.commit(NOW, checked);
            (worker, outcome, live)
        }

        fn turn(&self, session: Option<(u128, Mode)>) -> (WorkerId, Outcome) {
            let (worker, outcome, live) = self.start(session);
            self.0.finish(NOW, live);
            (worker, outcome)
        }
    }

    #[test]
    fn it_fills_one_worker_before_it_touches_the_next() {
        let fleet = Fleet::new(3, 4);
        let placed: Vec<_> = (0..12).map(|_| fleet.start(None)).collect();
        let at = |i: usize| placed[i].0;
        for group in 0..3 {
            let first = at(group * 4);
            assert!((0..4).all(|i| at(group * 4 + i) == first), "the {group}th worker is filled");
        }
        assert!(at(0) != at(4) && at(4) != at(8) && at(0) != at(8));
        placed.into_iter().for_each(|(_, _, live)| fleet.0.finish(NOW, live));
    }

    #[test]
    fn it_moves_a_soft_session_to_where_it_sends_everybody_and_never_a_hard_one() {
        let fleet = Fleet::new(2, 4);
        let (hard, soft) = (Some((1, Mode::Hard)), Some((2, Mode::Soft)));
        let (hard_home, _) = fleet.turn(hard);
        let (soft_home, _) = fleet.turn(soft);
        // Everybody goes to one of the two from now on: the one that has begun to fill.
        let (filling, _, first) = fleet.start(None);
        let (_, _, second) = fleet.start(None);
        assert_eq!(fleet.turn(hard), (hard_home, Outcome::Hit));
        let moves = if soft_home == filling { Outcome::Hit } else { Outcome::Rebound };
        assert_eq!(fleet.turn(soft), (filling, moves));
        for live in [first, second] {
            fleet.0.finish(NOW, live);
        }
    }

    #[test]
    fn where_its_filter_leaves_nothing_the_answer_is_no_worker_and_a_hard_session_is_given_up() {
        let fleet = Fleet::new(1, 1);
        let hard = Some((1, Mode::Hard));
        let (home, outcome, first) = fleet.start(hard);
        assert_eq!(outcome, Outcome::New);
        let (_, _, second) = fleet.start(None);
        let refused = |session| match fleet.0.admit(NOW, fleet.ask(session)) {
            Admission::Refused(refusal) => refusal.cause,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(None), Cause::NoWorker);
        assert_eq!(refused(hard), Cause::NoWorker);
        fleet.0.finish(NOW, first);
        fleet.0.finish(NOW, second);
        assert_eq!(fleet.turn(hard), (home, Outcome::New), "its next turn is a first turn (R07)");
    }

    #[test]
    fn the_program_knows_it_by_name() {
        let check = |policy: &str| {
            let flags = ["check", "--worker", "http://127.0.0.1:1", "--policy", policy];
            Command::new(env!("CARGO_BIN_EXE_custom-policy")).args(flags).output().unwrap()
        };
        let good = check("frugal");
        let text = String::from_utf8(good.stdout).unwrap();
        assert!(good.status.success() && text.contains("policy = \"frugal\""), "{text}");
        assert!(check("kv").status.success(), "the built-in ones are still there");
        assert_eq!(check("lavish").status.code(), Some(2));
    }
}
