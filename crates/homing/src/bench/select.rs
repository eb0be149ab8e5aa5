//! A decision, measured in this process: select, book, commit and finish among 8, 64 and 1,024 targets, and what the
//! record that is kept of it adds.
//!
//! The prompt has 512 blocks, of which eight targets hold different parts; targets have other requests. The same
//! requests go through two cores by turns, one that keeps records and one that doesn't, so that both meet the same
//! minute of the machine.

use super::meter::{Meter, median};
use homing_core::SelectionCore;
use homing_core::ask::{Admission, Ask, Dispatch, Live, Step};
use homing_core::fleet::{FleetChange, Probe, ServedName, WorkerSpec};
use homing_core::hash::{HashSpace, Prompt};
use homing_core::ids::DpRank;
use homing_core::index::Overlap;
use homing_core::settings::CoreSettings;
use homing_core::time::Time;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Targets among which is chosen.
const TARGETS: [usize; 3] = [8, 64, 1024];
/// Where a record is kept whole, and as large as it gets.
const RECORDED: usize = 1;
const BLOCK: u32 = 16;
const BLOCKS: u32 = 512;
/// Targets that hold some of the prompt.
const HOLDERS: usize = 8;
/// Requests that each target has already.
const BUSY: usize = 2;
const MODEL: &str = "m";

/// How much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Requests a round, among 8 targets; fewer among more.
    requests: usize,
    /// Requests that are made ready at a time, which is not measured: no round has fewer.
    batch: usize,
    /// Rounds of both cores by turns; the medians count.
    rounds: usize,
    /// Requests that all targets have already, at most.
    busy: usize,
}

impl Sizes {
    /// The size that the bars are meant for.
    pub(crate) const FULL: Self = Self { requests: 65_536, batch: 64, rounds: 9, busy: usize::MAX };
    /// To see that it works; its figures say nothing.
    pub(crate) const QUICK: Self = Self { requests: 64, batch: 8, rounds: 1, busy: 16 };
}

/// What came out, in us.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// By the number of targets.
    select: [f64; TARGETS.len()],
    /// What the record adds, by the number of targets.
    record: [f64; TARGETS.len()],
}

/// Measures.
pub(crate) fn measure(sizes: Sizes, say: &mut dyn FnMut(&str)) -> Result<Figures, String> {
    let mut figures = Figures::default();
    for (i, targets) in TARGETS.into_iter().enumerate() {
        say(&format!("decisions among {targets} targets"));
        let requests = (sizes.requests * TARGETS[0] / targets).max(sizes.batch);
        let mut beds = [Bed::new(sizes, targets, true)?, Bed::new(sizes, targets, false)?];
        let mut took = [Vec::new(), Vec::new()];
        // The first round fills the records, and is not counted.
        for round in 0..=sizes.rounds {
            for (bed, took) in beds.iter_mut().zip(&mut took) {
                let each = bed.round(requests)?;
                if round > 0 {
                    took.push(each);
                }
            }
        }
        let [on, off] = took.map(|took| median(&took).unwrap_or_default());
        figures.select[i] = on;
        figures.record[i] = on - off;
    }
    Ok(figures)
}

/// A core with its workers, all of them at work.
struct Bed {
    core: SelectionCore,
    ask: Ask,
    now: Time,
    meter: Meter,
    batch: usize,
    /// What they are at work on.
    _busy: Vec<Live>,
}

const REFUSED: &str = "the core refuses a request that anybody could serve";

impl Bed {
    fn new(sizes: Sizes, targets: usize, records: bool) -> Result<Self, String> {
        let settings = CoreSettings { records, ..CoreSettings::default() };
        let core = SelectionCore::new(settings, 7);
        let now = Time::from_micros(1_000_000);
        let mut ids = Vec::new();
        for i in 0..targets {
            let name = format!("w{i}");
            let tell = |change| core.handle_fleet(now, change).map_err(|e| e.to_string());
            tell(FleetChange::Register(WorkerSpec::new(&name, &format!("http://{name}"))))?;
            let id = core.worker_named(&name).ok_or("a worker that was registered is not known")?;
            tell(FleetChange::Serves(id, vec![ServedName { name: MODEL.into(), adapter: false }]))?;
            tell(FleetChange::Probed(id, Probe::Good))?;
            ids.push(id);
        }
        let route = core.route(MODEL).map_err(|e| e.to_string())?;
        let tokens: Vec<u32> = (0..BLOCKS * BLOCK).collect();
        let prompt = Prompt::from_tokens(&tokens, BLOCK, HashSpace::default());
        let mut ask = Ask::new(route.partition, route.name, prompt);
        ask.note.id = Some("5c1f0e9ab3d24771-2a".into());
        let holders = ids.iter().step_by((targets / HOLDERS).max(1)).zip(1u32..);
        ask.overlaps = holders
            .map(|(worker, i)| {
                let blocks = BLOCKS / HOLDERS as u32 * i;
                let rank = DpRank(0);
                Overlap { worker: *worker, rank, blocks, told: blocks, host: 0, disk: 0 }
            })
            .collect();
        let (meter, batch) = (Meter::new(), sizes.batch);
        let mut bed = Self { core, ask, now, meter, batch, _busy: Vec::new() };
        for _ in 0..(targets * BUSY).min(sizes.busy) {
            let live = bed.begin(bed.ask.clone())?;
            bed._busy.push(live);
        }
        Ok(bed)
    }

    /// From a request to its answer's beginning.
    fn begin(&self, ask: Ask) -> Result<Live, String> {
        let Admission::Granted(grant) = self.core.admit(self.now, ask) else {
            return Err(REFUSED.to_owned());
        };
        let Dispatch::Go(checked) = self.core.check_dispatch(self.now, grant) else {
            return Err(REFUSED.to_owned());
        };
        Ok(self.core.commit(self.now, checked).0)
    }

    /// So many requests, one after the other; us each.
    fn round(&mut self, requests: usize) -> Result<f64, String> {
        let mut took = Duration::ZERO;
        for _ in 0..requests / self.batch {
            self.now = self.now + Duration::from_millis(1);
            let asks = vec![self.ask.clone(); self.batch];
            let mut failed = None;
            took += self.meter.time(|| {
                for ask in asks {
                    match self.begin(ask) {
                        Ok(live) => {
                            let _ = self.core.progress(self.now, &live, Step::FirstToken);
                            self.core.finish(self.now, live);
                        }
                        Err(why) => failed = Some(why),
                    }
                }
            });
            if let Some(why) = failed {
                return Err(why);
            }
        }
        Ok(took.as_secs_f64() * 1e6 / (requests / self.batch * self.batch) as f64)
    }
}

impl Figures {
    /// Into the object that `--json` prints.
    pub(crate) fn put(&self, object: &mut Map<String, Value>) {
        let select = TARGETS.iter().zip(self.select);
        let select: Map<_, _> = select.map(|(n, us)| (n.to_string(), rounded(us).into())).collect();
        object.insert("select_us".to_owned(), Value::Object(select));
        object.insert("record_us".to_owned(), json!(rounded(self.record[RECORDED])));
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut out = String::from("decisions (512-block prompts)\n");
        for (i, targets) in TARGETS.into_iter().enumerate() {
            let (select, record) = (self.select[i], self.record[i]);
            // To a string: it can't fail.
            let _ = writeln!(
                out,
                "  select, book, commit, finish among {targets:>4}  {select:>8.2} us, {record:>5.2} of it the record"
            );
        }
        out
    }
}

fn rounded(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}
