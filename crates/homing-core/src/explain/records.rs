//! Keeping records: each step of a request's way is noted under its partition's lock, which is held anyway.
//!
//! A request has one record from its first decision to its end, however often it is decided anew; its tokens carry
//! the place where it lies. Of many targets the whole list is not kept: the pick, the home, the best few, and
//! how many there were for each reason that spoke against them.

use super::Placement;
use super::lowest::lowest;
use super::record::{Attempt, Awaited, Record, Report, Stage};
use super::ring::{Ring, Slot};
use super::stands::{Seen, Stamps, Told};
use crate::affinity::{Outcome, Steer};
use crate::ask::{Abandon, Ask, Failure, Refusal};
use crate::ids::{Target, WorkerId};
use crate::queue::Line;
use crate::select::policy::{Policy, Weight};
use crate::select::{Costs, Demand, Fit};
use crate::time::Time;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that the records of all partitions take together, at most (but for two pages a partition).
pub const RECORD_BYTES: usize = 8 << 20;
/// Targets of one decision that are kept whole.
pub const WHOLE: usize = 64;
/// Of more than that, the best that are kept.
pub const BEST: usize = 16;
/// Names of departed workers that are kept for the records in which they are: the latest ones.
const GONE: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Records {
    ring: Ring,
    on: bool,
    gone: BTreeMap<WorkerId, Arc<str>>,
}

impl Records {
    /// `on`: unless it is, nothing is kept, and it takes no time.
    pub(crate) fn new(on: bool) -> Self {
        Self { ring: Ring::new(RECORD_BYTES), on, gone: BTreeMap::new() }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// There are so many partitions now.
    pub(crate) fn share(&mut self, partitions: usize) {
        self.ring.bound(RECORD_BYTES / partitions.max(1));
    }

    /// Whether nothing is kept.
    pub(crate) fn off(&self) -> bool {
        !self.on
    }

    /// The record of the ask, which is made if there is none (any more).
    fn open(&mut self, now: Time, ask: &mut Ask) -> Option<&mut Record> {
        if !self.on {
            return None;
        }
        let slot = match ask.past.record.filter(|slot| self.ring.get_mut(*slot).is_some()) {
            Some(slot) => slot,
            None => self.ring.push(Record::new(now, ask)),
        };
        ask.past.record = Some(slot);
        let record = self.ring.get_mut(slot)?;
        // It is looked up anew before it is asked about again.
        (record.times.prompt, record.times.look_up) = (ask.note.prompt, ask.note.look_up);
        Some(record)
    }

    fn get(&mut self, slot: Option<Slot>) -> Option<&mut Record> {
        self.ring.get_mut(slot?)
    }

    /// A decision has been made among these targets. `waits`: that it must wait.
    pub(crate) fn decided(
        &mut self,
        now: Time,
        ask: &mut Ask,
        steer: Steer,
        waits: Option<Line>,
        weighing: Weighing<'_>,
        stamps: &mut Stamps,
    ) {
        let Some(record) = self.open(now, ask) else { return };
        record.steer = steer;
        let waited = record.waiting.is_some();
        record.wait(now, waits);
        // Who waits is asked again and again: what counts is the first look, and the last.
        if waits.is_some() && waited {
            return;
        }
        let Some(slot) = ask.past.record else { return };
        self.weigh(slot, &weighing, stamps);
    }

    fn weigh(&mut self, slot: Slot, weighing: &Weighing<'_>, stamps: &mut Stamps) {
        let Weighing { policy, demand, seen, weighed, .. } = *weighing;
        let kept = (seen.all.len() > WHOLE).then(|| choose(weighing));
        let kept = kept.as_deref();
        let mut said: SmallVec<[Weight; WHOLE]> = SmallVec::new();
        if !policy.is_constant() {
            said = ask(weighing, kept);
        }
        let newcomer = demand.newcomer.is_some();
        let told = Told { now: demand.now, answer: demand.answer, newcomer, weighed };
        self.ring.weigh(slot, &seen, kept, stamps, told, &said);
        let Some(record) = self.ring.get_mut(slot) else { return };
        record.against = against(seen.fits);
        let left_out = kept.map_or(0, |kept| seen.all.len() - kept.len());
        record.left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
    }

    /// It has got a place.
    pub(crate) fn granted(
        &mut self,
        now: Time,
        slot: Option<Slot>,
        pick: Target,
        placement: Placement,
    ) {
        if let Some(record) = self.get(slot) {
            record.pick = Some(pick);
            record.placement = placement;
            record.times.granted = Some(now);
            record.stage = Stage::Placed;
        }
    }

    /// It was refused.
    pub(crate) fn refused(&mut self, now: Time, ask: &mut Ask, refusal: &Refusal) {
        if let Some(record) = self.open(now, ask) {
            record.wait(now, None);
            record.outcome = refusal.outcome;
            (record.cause, record.bound) = (Some(refusal.cause), refusal.bound);
            record.pick = None;
            record.end(now, Stage::Refused);
        }
    }

    /// It is sent.
    pub(crate) fn dispatched(&mut self, now: Time, slot: Option<Slot>, target: Target) {
        if let Some(record) = self.get(slot) {
            let attempt = Attempt { target, at: now, failure: None };
            if let Some(place) = record.tries.get_mut(record.attempts as usize) {
                *place = Some(attempt);
            }
            record.attempts = record.attempts.saturating_add(1);
            record.times.dispatched = Some(now);
            record.stage = Stage::Dispatched;
        }
    }

    /// A dispatch has failed.
    pub(crate) fn failed(&mut self, slot: Option<Slot>, failure: Failure) {
        if let Some(record) = self.get(slot) {
            let last = (record.attempts as usize).wrapping_sub(1);
            if let Some(Some(attempt)) = record.tries.get_mut(last) {
                attempt.failure = Some(failure.into());
            }
        }
    }

    /// Its worker has begun to answer.
    pub(crate) fn begun(&mut self, now: Time, slot: Option<Slot>, outcome: Outcome) {
        if let Some(record) = self.get(slot) {
            record.outcome = outcome;
            record.times.begun = Some(now);
            record.stage = Stage::Running;
        }
    }

    /// The first of its answer has come.
    pub(crate) fn first_token(&mut self, now: Time, slot: Option<Slot>) {
        if let Some(record) = self.get(slot) {
            record.times.first_token.get_or_insert(now);
        }
    }

    /// Its stream has ended.
    pub(crate) fn finished(&mut self, now: Time, slot: Option<Slot>, report: Report) {
        if let Some(record) = self.get(slot) {
            record.report = report;
            let said = report.stage.filter(|stage| stage.over());
            record.end(now, said.unwrap_or(Stage::Ended));
        }
    }

    /// Its place is given up.
    pub(crate) fn abandoned(
        &mut self,
        now: Time,
        slot: Option<Slot>,
        why: Abandon,
        outcome: Outcome,
    ) {
        if let Some(record) = self.get(slot) {
            record.outcome = outcome;
            record.end(
                now,
                match why {
                    Abandon::NotDispatched => Stage::GivenUp,
                    Abandon::Failed | Abandon::Answered => Stage::Failed,
                    Abandon::ClientGone => Stage::ClientGone,
                },
            );
        }
    }

    /// It has left the queue, since its client has gone.
    pub(crate) fn left(&mut self, now: Time, slot: Option<Slot>, outcome: Outcome) {
        if let Some(record) = self.get(slot) {
            record.wait(now, None);
            record.outcome = outcome;
            record.end(now, Stage::ClientGone);
        }
    }

    /// A worker has departed; the records still name it.
    pub(crate) fn departed(&mut self, worker: WorkerId, name: Arc<str>) {
        if self.on {
            self.gone.insert(worker, name);
            if self.gone.len() > GONE {
                // Ids are never used again: the smallest is the oldest life.
                self.gone.pop_first();
            }
        }
    }

    /// What a departed worker was called.
    pub(crate) fn gone(&self, worker: WorkerId) -> Option<&Arc<str>> {
        self.gone.get(&worker)
    }
}

/// Whether a policy is asked what it would cost.
pub(super) fn usable(fit: Fit) -> bool {
    !fit.any(Fit::UNUSABLE)
}

/// How many targets each reason speaks against.
fn against(fits: &[Fit]) -> [u32; Fit::COUNT] {
    let mut against = [0; Fit::COUNT];
    if Fit::of_any(fits) == Fit::default() {
        return against;
    }
    for fit in fits.iter().filter(|fit| **fit != Fit::default()) {
        for (n, (reason, _)) in against.iter_mut().zip(Fit::WORDS) {
            *n += u32::from(fit.any(reason));
        }
    }
    against
}

/// What those cost that are kept, which is asked only where the choice has not asked it; of those whom nobody could use,
/// nothing, but of the pick.
fn ask(weighing: &Weighing<'_>, kept: Option<&[u32]>) -> SmallVec<[Weight; WHOLE]> {
    let Weighing { policy, demand, seen, .. } = *weighing;
    let mut known = weighing.kept.iter().zip(weighing.costs.weights()).peekable();
    let n = kept.map_or(seen.all.len(), <[u32]>::len);
    let each = (0..n).map(|at| kept.map_or(at, |kept| kept[at] as usize));
    each.map(|i| match known.next_if(|(number, _)| **number as usize == i) {
        Some((_, weight)) => *weight,
        None => {
            let c = &seen.all[i];
            let c = if weighing.is_home(i) { c.as_home() } else { *c };
            // A session may be pinned where nobody else would be sent.
            let asked = usable(c.fit) || weighing.pick == Some(i);
            if asked { policy.weigh(demand, &c) } else { Weight::default() }
        }
    })
    .collect()
}

/// Of more targets than are kept: the numbers of those that are, in order. What they cost is asked only where the
/// choice has not asked it.
fn choose(weighing: &Weighing<'_>) -> SmallVec<[u32; WHOLE]> {
    let (asked, costs) = (weighing.kept, weighing.costs.costs());
    let best = if costs.len() == asked.len() && asked.len() >= BEST && weighing.asked_all() {
        lowest(costs).into_iter().map(|i| asked[i as usize]).collect()
    } else {
        best_of_all(weighing)
    };
    let home = weighing.home.clone().take(WHOLE - BEST - 1);
    let mut kept: SmallVec<[u32; WHOLE]> = home.chain(weighing.pick).map(|i| i as u32).collect();
    kept.extend(best);
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// The best few, where not all are known to cost something.
fn best_of_all(weighing: &Weighing<'_>) -> SmallVec<[u32; BEST]> {
    let Weighing { policy, demand, seen, ineligible, .. } = *weighing;
    let Seen { all, fits, .. } = seen;
    let mut known = weighing.kept.iter().zip(weighing.costs.costs()).peekable();
    // The best so far, in order.
    let mut best: SmallVec<[(f64, u32); BEST + 1]> = SmallVec::new();
    let mut worst = f64::INFINITY;
    for (i, fit) in (0u32..).zip(fits) {
        let known = known.next_if(|(number, _)| **number == i);
        // Those who could have served it come first.
        let cost = match usable(*fit) {
            true if fit.any(ineligible) => f64::MAX,
            true => known.map_or_else(|| policy.cost(demand, &all[i as usize]), |(_, cost)| *cost),
            false => f64::INFINITY,
        };
        if best.len() < BEST || cost < worst {
            best.truncate(BEST - 1);
            let at = best.partition_point(|(other, _)| *other <= cost);
            best.insert(at, (cost, i));
            worst = best.last().map_or(worst, |(worst, _)| *worst);
        }
    }
    best.into_iter().map(|(_, i)| i).collect()
}

/// What a decision was made of.
pub(crate) struct Weighing<'a> {
    pub(crate) policy: &'a dyn Policy,
    pub(crate) demand: &'a Demand,
    pub(crate) seen: Seen<'a>,
    /// The numbers of those that the policy was asked about, and what they cost, if it has said so.
    pub(crate) kept: &'a [u32],
    pub(crate) costs: &'a Costs,
    pub(crate) pick: Option<usize>,
    /// Where its session lives.
    pub(crate) home: Range<usize>,
    /// That was weighed against others, as a home.
    pub(crate) weighed: bool,
    /// What a candidate must not be that could have served it.
    pub(crate) ineligible: Fit,
}

impl Weighing<'_> {
    /// Whether everybody who could have served it was asked about.
    fn asked_all(&self) -> bool {
        let against = Fit::UNUSABLE.and(self.ineligible);
        let could = self.seen.fits.iter().filter(|fit| !fit.any(against)).count();
        could == self.kept.len()
    }

    /// Whether this one is the session's home, and was weighed as that.
    fn is_home(&self, i: usize) -> bool {
        self.weighed && self.home.contains(&i)
    }
}

impl Record {
    /// It waits in this line, or not any more.
    fn wait(&mut self, now: Time, line: Option<Line>) {
        match (self.waiting, line) {
            (None, Some(_)) => self.waiting = Some(now),
            (Some(since), None) => {
                self.times.waited += now.since(since);
                self.waiting = None;
            }
            _ => {}
        }
        if let Some(line) = line {
            self.awaited = Some(Awaited::from(line));
            self.stage = Stage::Waiting;
        }
    }

    fn end(&mut self, now: Time, stage: Stage) {
        self.stage = stage;
        self.times.ended = Some(now);
    }
}
