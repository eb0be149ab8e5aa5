//! What a record says of targets is what the decision was shown, to the last bit, whatever happens between the
//! decision and the reading: held against a preview that was asked for a moment before, and against a policy that can't
//! be asked again, of which all is kept.

use super::world::*;
use homing_core::ask::{Admission, Ask, Dispatch, Live, Step};
use homing_core::dice::Dice;
use homing_core::explain::{BEST, Preview, WHOLE};
use homing_core::fleet::{Drain, Probe, ServedName};
use homing_core::hash::Prompt;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::Overlap;
use homing_core::load::report::Report;
use homing_core::select::policy::{Costs, Policy, Terms, Weight, built_in};
use homing_core::select::{Among, Candidate, Demand, Fit, Kv, Latency};
use homing_core::settings::{CoreSettings, Mode, PolicyKind, Soft};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const ADAPTER: &str = "x-lora";

/// The same policy, which doesn't promise to say the same again.
#[derive(Clone, Debug)]
struct Moody<P>(P);

impl<P: Policy> Policy for Moody<P> {
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        self.0.cost(demand, c)
    }

    fn terms(&self, demand: &Demand, c: &Candidate) -> Terms {
        self.0.terms(demand, c)
    }

    fn weigh(&self, demand: &Demand, c: &Candidate) -> Weight {
        self.0.weigh(demand, c)
    }

    fn near(&self) -> f64 {
        self.0.near()
    }

    fn pick(
        &self,
        demand: &Demand,
        among: Among<'_>,
        costs: &mut Costs,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        costs.ask(self, demand, among);
        self.0.pick(demand, among, &mut Costs::default(), dice)
    }

    fn weighs_homes(&self) -> bool {
        self.0.weighs_homes()
    }

    fn price_of_moving(&self, demand: &Demand, home_cost: f64) -> f64 {
        self.0.price_of_moving(demand, home_cost)
    }

    fn picked(&mut self, demand: &Demand, c: &Candidate) {
        self.0.picked(demand, c);
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A request: of which session, if of one, how long, who holds how much of it, for an adapter, for whom alone.
    Begin {
        session: Option<(u8, bool)>,
        tokens: u32,
        holders: Vec<(u16, u32, u32)>,
        adapter: bool,
        only: Option<u16>,
    },
    Progress(usize, u32),
    Finish(usize),
    Pass(u64),
    Reported(u16, u32),
    Down(u16),
    Back(u16),
    Drain(u16, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let holders = prop::collection::vec((any::<u16>(), 0u32..40, 0u32..40), 0..5);
    let begin = (
        prop::option::of((0u8..6, any::<bool>())),
        1u32..5000,
        holders,
        prop::bool::weighted(0.2),
        prop::option::weighted(0.1, any::<u16>()),
    );
    prop_oneof![
        8 => begin.prop_map(|(session, tokens, holders, adapter, only)| Op::Begin {
            session, tokens, holders, adapter, only
        }),
        4 => (any::<usize>(), 0u32..40).prop_map(|(at, n)| Op::Progress(at, n)),
        4 => any::<usize>().prop_map(Op::Finish),
        3 => (1u64..500_000).prop_map(Op::Pass),
        1 => (any::<u16>(), 0u32..9).prop_map(|(at, n)| Op::Reported(at, n)),
        1 => any::<u16>().prop_map(Op::Down),
        2 => any::<u16>().prop_map(Op::Back),
        1 => (any::<u16>(), any::<bool>()).prop_map(|(at, on)| Op::Drain(at, on)),
    ]
}

/// A world, what runs in it, and what previews have foretold, by request.
struct Bed {
    w: World,
    ids: Vec<WorkerId>,
    ranks: u16,
    running: Vec<Live>,
    foretold: BTreeMap<String, Preview>,
}

impl Bed {
    fn new(mut w: World, workers: usize, ranks: u16) -> Self {
        let mut ids = Vec::new();
        for i in 0..workers {
            let id = w.up_with_ranks(&format!("w{i}"), 0, ranks);
            if i % 2 == 0 {
                let name = |name: &str, adapter| ServedName { name: name.into(), adapter };
                let names = vec![name(MODEL, false), name(ADAPTER, true)];
                w.fleet(homing_core::fleet::FleetChange::Serves(id, names));
            }
            ids.push(id);
        }
        Self { w, ids, ranks, running: Vec::new(), foretold: BTreeMap::new() }
    }

    fn id(&self, at: u16) -> WorkerId {
        self.ids[usize::from(at) % self.ids.len()]
    }

    fn ask(&self, n: usize, op: &Op) -> Option<Ask> {
        let Op::Begin { session, tokens, holders, adapter, only: alone } = op else { return None };
        let names: Vec<_> = (0..6).map(|i| format!("s{i}")).collect();
        let mode = |hard| if hard { Mode::Hard } else { Mode::Soft };
        let session = session.map(|(i, hard)| (&*names[usize::from(i)], mode(hard)));
        let mut ask = self.w.ask_for(if *adapter { ADAPTER } else { MODEL }, session);
        ask.prompt = Prompt::of_length(*tokens);
        ask.prompt.block_size = 16;
        ask.overlaps = holders
            .iter()
            .map(|(at, blocks, far)| {
                let (worker, rank) = (self.id(*at), DpRank(at % self.ranks));
                let told = blocks / 2;
                Overlap { worker, rank, blocks: *blocks, told, host: far / 2, disk: far - far / 2 }
            })
            .collect();
        ask.overlaps.sort_by_key(|o| (o.worker, o.rank));
        ask.overlaps.dedup_by_key(|o| (o.worker, o.rank));
        ask.note.id = Some(n.to_string().into());
        if let Some(at) = alone {
            ask = only(ask, &[&self.w.name_of(self.id(*at))]);
        }
        Some(ask)
    }

    fn step(&mut self, n: usize, op: &Op) {
        if let Some(ask) = self.ask(n, op) {
            let preview = self.w.core.preview(self.w.now, &ask).unwrap();
            self.foretold.insert(n.to_string(), preview);
            if let Admission::Granted(grant) = self.w.admit(ask)
                && let Dispatch::Go(checked) = self.w.check(grant)
            {
                self.running.push(self.w.commit(checked).0);
            }
            return;
        }
        let at = |i: usize| i % self.running.len().max(1);
        match *op {
            Op::Begin { .. } => {}
            Op::Progress(i, tokens) => {
                if let Some(live) = self.running.get(at(i)) {
                    let step = if tokens == 0 { Step::FirstToken } else { Step::Output(tokens) };
                    self.w.core.progress(self.w.now, live, step);
                }
            }
            Op::Finish(i) => {
                if !self.running.is_empty() {
                    let live = self.running.swap_remove(at(i));
                    self.w.finish(live);
                }
            }
            Op::Pass(us) => self.w.pass(Duration::from_micros(us)),
            Op::Reported(i, n) => {
                let report = Report { running: n, waiting: n / 2, kv_usage: None };
                self.w.core.handle_report(self.w.now, self.id(i), None, report);
                self.w.core.check();
            }
            Op::Down(i) => self.w.down(self.id(i)),
            Op::Back(i) => self.w.probe(self.id(i), Probe::Good),
            Op::Drain(i, on) => {
                let drain = on.then_some(Drain { moves_at: None });
                self.w.fleet(homing_core::fleet::FleetChange::Drain(self.id(i), drain));
            }
        }
    }

    /// Each record says what its preview said. `weighs`: homes of Soft sessions are shown as such to the policy, which
    /// a preview doesn't print.
    fn compare(&self, weighs: bool) {
        for (id, preview) in &self.foretold {
            let d = self.w.core.decision(id).expect("records of so few are kept");
            assert_eq!(d.candidates.len() + d.record.left_out as usize, preview.candidates.len());
            let whole = preview.candidates.len() <= WHOLE;
            assert!(!whole || d.record.left_out == 0);
            assert!(whole || (BEST..WHOLE).contains(&d.candidates.len()));
            let pick = d.record.pick;
            assert!(pick.is_none() || d.candidates.iter().any(|c| Some(c.target()) == pick));
            for c in &d.candidates {
                let same = |(_, ((was, _), _)): &(usize, ((&Candidate, f64), &Terms))| {
                    was.target() == c.target()
                };
                let all = preview.candidates.iter().map(|(c, cost)| (c, *cost));
                let (_, ((was, _), terms)) =
                    all.zip(&preview.terms).enumerate().find(same).unwrap();
                let load = (was.load.active_requests, was.load.prefill_tokens, was.load.blocks);
                assert_eq!(
                    (c.active_requests, u64::from(c.prefill_tokens), u64::from(c.blocks)),
                    load
                );
                assert_eq!(
                    (c.overlap, c.told, c.host, c.disk),
                    (was.overlap, was.told, was.host, was.disk)
                );
                assert_eq!((c.fit, c.trust, c.homes), (was.fit, was.trust, was.homes));
                let shown = weighs && d.record.home().is_some_and(|home| home.admits(c.target()));
                if !c.fit.any(Fit::UNUSABLE) && !shown {
                    let parts: Vec<_> = d.parts(c).collect();
                    let said: Vec<_> =
                        terms.iter().map(|(name, part)| (*name, *part as f32)).collect();
                    assert_eq!(parts, said, "request {id}");
                }
            }
        }
    }
}

/// Workers and ranks: few, as many as are kept whole, one more, and many more.
const FLEETS: [(usize, u16); 5] = [(3, 1), (4, 3), (16, 4), (13, 5), (10, 9)];

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_record_says_what_the_decision_was_shown(
        ops in prop::collection::vec(op(), 1..60),
        fleet in prop::sample::select(&FLEETS[..]),
        policy in prop::sample::select(&POLICIES[..]),
        weigh in any::<bool>(),
    ) {
        let mut settings = CoreSettings { policy, ..settings() };
        settings.affinity.soft = if weigh { Soft::Weigh } else { settings.affinity.soft };
        let mut bed = Bed::new(World::with(settings, 0), fleet.0, fleet.1);
        for (n, op) in ops.iter().enumerate() {
            bed.step(n, op);
        }
        bed.compare(weigh || built_in(policy).weighs_homes());
    }

    #[test]
    fn it_says_the_same_as_one_in_which_all_was_kept(
        ops in prop::collection::vec(op(), 1..60),
        fleet in prop::sample::select(&FLEETS[..]),
        latency in any::<bool>(),
        weigh in any::<bool>(),
    ) {
        let mut settings = settings();
        settings.affinity.soft = if weigh { Soft::Weigh } else { settings.affinity.soft };
        let policy = if latency { PolicyKind::Latency } else { PolicyKind::Kv };
        let asked = World::with(CoreSettings { policy, ..settings.clone() }, 0);
        let kept = match latency {
            true => World::choosing(settings, Moody(Latency::default()), 0),
            false => World::choosing(settings, Moody(Kv::default()), 0),
        };
        let mut beds = [asked, kept].map(|w| Bed::new(w, fleet.0, fleet.1));
        for bed in &mut beds {
            for (n, op) in ops.iter().enumerate() {
                bed.step(n, op);
            }
        }
        let [asked, kept] = beds.map(|bed| bed.w.core.decisions(usize::MAX));
        prop_assert_eq!(asked.len(), kept.len());
        for (a, b) in asked.iter().zip(&kept) {
            prop_assert_eq!((&a.record, &a.candidates, a.terms), (&b.record, &b.candidates, b.terms));
            prop_assert_eq!((a.predicted_ttft_ms, a.least_ttft_ms), (b.predicted_ttft_ms, b.least_ttft_ms));
        }
    }
}
