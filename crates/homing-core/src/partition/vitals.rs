//! Whether workers are alive, by what comes back from them: bytes are life, green is not (F61-F64). A health
//! path answers for the process; what a request gets is what counts.
//!
//! * *stalled*: streams are open there, and for longer than [`STALL_LEAST`], and than three times what their
//!   prompts were expected to take, no byte has come of any of them;
//! * *failing*: its last dispatches all came to nothing: errors of its own, or connections that broke.
//!
//! Either is what a worker that is Down is, but for one request at a time, which tries it: any byte of any
//! stream clears a stall, an answer that is no fault clears the rest. After each trial that fails the next waits
//! twice as long. Refusals for load (429, 503) are no fault (F33), and a worker that is all there is is never
//! shut out (`standing`).

use crate::ids::WorkerId;
use crate::settings::VitalSettings;
use crate::time::Time;
use std::time::Duration;

/// Silence that is shorter is no sign of anything.
pub const STALL_LEAST: Duration = Duration::from_secs(10);
/// Of the time that a prompt was expected to take.
const STALL_FACTOR: f64 = 3.0;
/// What an answer that comes whole may take beyond its prompt: as much as so many tokens do.
const WHOLE_TOKENS: f64 = 8192.0;
/// The first pause between two trials; it doubles up to
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// as much.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Stalls are looked for as often.
const LOOK: Duration = Duration::from_secs(1);

/// Why a worker gets one request at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// No byte comes.
    Stalled,
    /// Nothing but faults comes.
    Failing,
}

impl Ailment {
    /// As the admin API says it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Failing => "failing",
        }
    }
}

/// What comes back from one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Vital {
    /// Dispatches that have not ended.
    open: u32,
    /// Since when they have been silent,
    since: Time,
    /// and for how long earlier ones had been that went away unanswered.
    silent: Duration,
    /// How long they may be.
    patience: Duration,
    /// Dispatches in a row that were faults, and streams that broke off, with none between that was well.
    faults: u32,
    breaks: u32,
    ailment: Option<Ailment>,
    /// A request is trying it.
    tried: bool,
    next_trial: Time,
    pause: Duration,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Vitals {
    settings: VitalSettings,
    /// In the order of ids.
    all: Vec<(WorkerId, Vital)>,
    ailing: u32,
    next_look: Time,
}

impl Vitals {
    pub(super) fn new(settings: VitalSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// How long a stream may be silent whose prompt, and those before it, should take so long; or an answer
    /// that comes whole, where a token takes that.
    pub(super) fn patience(expected_ms: f64, token_ms: Option<f64>) -> Duration {
        let whole = token_ms.map_or(0.0, |ms| ms * WHOLE_TOKENS);
        let ms = expected_ms.max(0.0) * STALL_FACTOR + whole;
        let most = Duration::from_secs(24 * 3600);
        Duration::try_from_secs_f64(ms / 1e3).unwrap_or(most).clamp(STALL_LEAST, most)
    }

    fn get(&self, worker: WorkerId) -> Option<&Vital> {
        let at = self.all.binary_search_by_key(&worker, |(w, _)| *w).ok()?;
        Some(&self.all[at].1)
    }

    fn known(&mut self, worker: WorkerId) -> Option<&mut Vital> {
        let at = self.all.binary_search_by_key(&worker, |(w, _)| *w).ok()?;
        Some(&mut self.all[at].1)
    }

    /// A worker is known from now on.
    pub(super) fn add(&mut self, worker: WorkerId) {
        if let Err(at) = self.all.binary_search_by_key(&worker, |(w, _)| *w) {
            self.all.insert(at, (worker, Vital::default()));
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        if let Ok(at) = self.all.binary_search_by_key(&worker, |(w, _)| *w) {
            let (_, vital) = self.all.remove(at);
            self.ailing -= u32::from(vital.ailment.is_some());
        }
    }

    pub(super) fn of(&self, worker: WorkerId) -> Option<Ailment> {
        self.get(worker)?.ailment
    }

    /// Whether anybody is unwell.
    pub(super) fn any(&self) -> bool {
        self.ailing > 0
    }

    /// Whether requests are to be kept away now.
    pub(super) fn keeps_away(&self, now: Time, worker: WorkerId) -> bool {
        let ails = |v: &Vital| v.ailment.is_some() && (v.tried || now < v.next_trial);
        self.any() && self.get(worker).is_some_and(ails)
    }

    /// A request is placed there. True: it is the one that tries a worker which is unwell.
    pub(super) fn placed(&mut self, worker: WorkerId) -> bool {
        let Some(vital) = self.known(worker) else { return false };
        let tries = vital.ailment.is_some() && !vital.tried;
        vital.tried |= tries;
        tries
    }

    /// It goes out, and its answer, or those before it, may be waited for as long.
    pub(super) fn sent(&mut self, now: Time, worker: WorkerId, patience: Duration) {
        let Some(vital) = self.known(worker) else { return };
        if vital.open == 0 {
            (vital.since, vital.patience) = (now, Duration::ZERO);
        }
        vital.patience = vital.patience.max(patience);
        vital.open += 1;
    }

    /// A byte has come. True if the worker is well again.
    pub(super) fn heard(&mut self, now: Time, worker: WorkerId) -> bool {
        let Some(vital) = self.known(worker) else { return false };
        (vital.since, vital.silent) = (now, Duration::ZERO);
        let well = vital.ailment == Some(Ailment::Stalled);
        if well {
            vital.recover();
            self.ailing -= 1;
        }
        well
    }

    /// An answer has begun that is no fault. True if the worker is well again.
    pub(super) fn answered(&mut self, now: Time, worker: WorkerId) -> bool {
        let well = self.heard(now, worker);
        let Some(vital) = self.known(worker) else { return well };
        vital.faults = 0;
        // Whoever begins every answer and ends none is unwell until it ends one.
        if vital.ailment.is_none() || vital.breaks > 0 {
            return well;
        }
        vital.recover();
        self.ailing -= 1;
        true
    }

    /// A dispatch came to nothing, or (`begun`) its stream broke off. True if the worker is unwell by that.
    pub(super) fn fault(&mut self, now: Time, worker: WorkerId, begun: bool) -> bool {
        let most = self.settings.faults;
        let Some(vital) = self.known(worker) else { return false };
        let count = if begun { &mut vital.breaks } else { &mut vital.faults };
        *count = count.saturating_add(1);
        let fails = most > 0 && (vital.faults >= most || vital.breaks >= most);
        if !fails || vital.ailment.is_some() {
            return false;
        }
        vital.fall_ill(now, Ailment::Failing);
        self.ailing += 1;
        true
    }

    /// A stream has come to its end. True if the worker is well again.
    pub(super) fn completed(&mut self, now: Time, worker: WorkerId) -> bool {
        if let Some(vital) = self.known(worker) {
            vital.breaks = 0;
        }
        self.answered(now, worker)
    }

    /// A trial has ended without an answer.
    pub(super) fn tried(&mut self, now: Time, worker: WorkerId) {
        let Some(vital) = self.known(worker) else { return };
        vital.tried = false;
        vital.next_trial = now + vital.pause;
        vital.pause = (vital.pause * 2).min(LAST_PAUSE);
    }

    /// A dispatch has ended, however.
    pub(super) fn ended(&mut self, now: Time, worker: WorkerId) {
        let Some(vital) = self.known(worker) else { return };
        vital.open = vital.open.saturating_sub(1);
        if vital.open == 0 {
            vital.silent += now.since(vital.since);
        }
    }

    /// Looks for stalls, if it is time to. Gives those that are new.
    pub(super) fn look(&mut self, now: Time) -> Vec<WorkerId> {
        if now < self.next_look || !self.settings.stalls {
            return Vec::new();
        }
        self.next_look = now + LOOK;
        let mut stalled = Vec::new();
        for (worker, vital) in &mut self.all {
            let silent = vital.silent + now.since(vital.since);
            if vital.open > 0 && vital.ailment.is_none() && silent > vital.patience {
                vital.fall_ill(now, Ailment::Stalled);
                stalled.push(*worker);
            }
        }
        self.ailing += u32::try_from(stalled.len()).unwrap_or(u32::MAX);
        stalled
    }

    /// When [`Self::look`] would find something next, if nothing is heard meanwhile.
    pub(super) fn next_look(&self) -> Option<Time> {
        let waited = self.all.iter().filter(|(_, v)| v.open > 0 && v.ailment.is_none());
        let due = waited.map(|(_, v)| v.since + v.patience.saturating_sub(v.silent)).min();
        due.filter(|_| self.settings.stalls).map(|due| (due + LOOK).max(self.next_look))
    }

    /// Counts are what they count.
    ///
    /// # Panics
    /// When they are not.
    pub(super) fn check(&self, known: impl Fn(WorkerId) -> bool) {
        assert!(self.all.is_sorted_by_key(|(w, _)| *w), "vitals out of order");
        assert!(self.all.iter().all(|(w, _)| known(*w)), "vitals of nobody");
        let ailing = self.all.iter().filter(|(_, v)| v.ailment.is_some()).count();
        assert_eq!(ailing, self.ailing as usize, "who is unwell");
    }
}

impl Vital {
    fn fall_ill(&mut self, now: Time, ailment: Ailment) {
        self.ailment = Some(ailment);
        (self.tried, self.pause) = (false, FIRST_PAUSE * 2);
        self.next_trial = now + FIRST_PAUSE;
    }

    fn recover(&mut self) {
        (self.ailment, self.tried) = (None, false);
    }
}

#[cfg(test)]
#[path = "vitals_tests.rs"]
mod tests;
