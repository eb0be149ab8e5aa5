//! A record as people read it: its targets put together again, and the policy asked once more what each would have
//! cost. It is shown what it was shown then, so it says what it said then, to the last bit.

use super::record::{Names, Record, Weighed, names};
use super::records::usable;
use super::stands::Rows;
use crate::select::policy::{Parts, Policy, TERMS};
use crate::select::{Candidate, Demand, Fit};

/// How the names of terms end that are milliseconds.
const IN_MS: &str = "_ms";

/// What a decision was made of.
#[derive(Debug)]
pub(crate) struct Recalled {
    /// Its targets, as far as they are kept.
    pub(crate) candidates: Vec<Weighed>,
    /// What their costs are made of.
    pub(crate) names: Names,
    /// Where these are milliseconds: when the pick's first token was to come,
    pub(crate) predicted_ttft_ms: Option<f32>,
    /// and when the first of all who could have served it and are kept.
    pub(crate) least_ttft_ms: Option<f32>,
}

/// See the module. `ineligible`: what a candidate must not be that could have served it.
pub(crate) fn recall(
    record: &Record,
    rows: &Rows<'_>,
    policy: &dyn Policy,
    ineligible: Fit,
) -> Recalled {
    let demand = demand(record, rows);
    let all = rows.candidates();
    let one = all.iter().find(|c| usable(c.fit));
    let names = one.map_or([""; TERMS], |c| names(&policy.terms(&demand, c)));
    let (mut least, mut predicted) = (f32::INFINITY, None);
    let candidates = all.iter().enumerate().map(|(i, c)| {
        let shown = as_shown(record, rows, c);
        let picked = record.pick == Some(c.target());
        // A session may be pinned where nobody else would be sent.
        if !usable(shown.fit) && !picked {
            return Weighed::of(c, Parts::default());
        }
        let weight = rows.said(i).unwrap_or_else(|| policy.weigh(&demand, &shown));
        if !c.fit.any(ineligible) {
            least = least.min(weight.first_ms);
        }
        if picked {
            predicted = Some(weight.first_ms);
        }
        Weighed::of(c, weight.parts)
    });
    let candidates = candidates.collect();
    let in_ms = names.iter().any(|name| name.ends_with(IN_MS));
    Recalled {
        candidates,
        names,
        predicted_ttft_ms: predicted.filter(|_| in_ms),
        least_ttft_ms: Some(least).filter(|ms| in_ms && ms.is_finite()),
    }
}

/// What the policy was asked.
fn demand(record: &Record, rows: &Rows<'_>) -> Demand {
    let told = rows.told();
    Demand {
        tokens: record.prompt_tokens,
        block_size: record.block_size,
        unit: if record.exact { record.block_size } else { 0 },
        now: told.now,
        answer: told.answer,
        newcomer: record.session.filter(|_| told.newcomer),
    }
}

/// A target as the policy saw it: the home of a session that may move looks otherwise to that one.
fn as_shown(record: &Record, rows: &Rows<'_>, c: &Candidate) -> Candidate {
    let weighed = rows.told().weighed;
    match record.home().filter(|home| weighed && home.admits(c.target())) {
        Some(_) => c.as_home(),
        None => *c,
    }
}
