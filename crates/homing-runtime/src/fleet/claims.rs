//! Whose an id is: all discoveries meet here. The first one that names a worker's id has it for as long as it names it. Another
//! one that claims it for the same URL means the same worker, and waits in silence; for another URL it would take that
//! worker's sessions over, and is refused. Once the holder lets go, whoever waited longest has the id.
//!
//! A plain structure; [`super::Fleet`] acts on what it answers, and says it.

use crate::settings::Worker;
use std::collections::BTreeMap;

/// Most claims that wait for ids of others; what is beyond has to be said again.
const WAITING_MAX: usize = 4096;

/// The number of a discovery.
pub(super) type Source = usize;

/// What becomes of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The id is this discovery's.
    Held,
    /// Another one names the same worker.
    Shared,
    /// The id is that of a worker at this URL.
    Stolen {
        /// Where the holder is.
        url: String,
        /// It was not claimed for this other URL before.
        news: bool,
    },
}

/// What an id is after a claim has gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The same as before.
    Same,
    /// Nobody's.
    Nobody,
    /// That of whoever waited for it.
    Next(Worker),
}

#[derive(Debug)]
struct Claim {
    source: Source,
    worker: Worker,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By id, the holder first, and then in the order in which they came.
    of: BTreeMap<String, Vec<Claim>>,
    waiting: usize,
}

impl Claims {
    /// A discovery names a worker. `replace`: it has the id whoever had it.
    pub(super) fn claim(&mut self, source: Source, worker: &Worker, replace: bool) -> Verdict {
        let new = Claim { source, worker: worker.clone() };
        let claims = self.of.entry(worker.id.clone()).or_default();
        let at = claims.iter().position(|claim| claim.source == source);
        if replace && let Some(at) = at.filter(|at| *at > 0) {
            claims.remove(at);
            claims.insert(0, new);
            return Verdict::Held;
        }
        let before = at.map(|at| std::mem::replace(&mut claims[at].worker, worker.clone()));
        match (at, claims.first()) {
            (Some(0), _) => return Verdict::Held,
            (None, None) => {
                claims.push(new);
                return Verdict::Held;
            }
            (None, Some(_)) if replace => {
                claims.insert(0, new);
                self.waiting += 1;
                return Verdict::Held;
            }
            (None, Some(_)) if self.waiting < WAITING_MAX => {
                claims.push(new);
                self.waiting += 1;
            }
            _ => {}
        }
        let holder = &claims[0].worker.url;
        if *holder == worker.url {
            return Verdict::Shared;
        }
        let news = before.is_none_or(|before| before.url != worker.url);
        Verdict::Stolen { url: holder.to_string(), news }
    }

    /// A discovery names it no more.
    pub(super) fn release(&mut self, source: Source, id: &str) -> After {
        let Some(claims) = self.of.get_mut(id) else { return After::Same };
        let Some(at) = claims.iter().position(|claim| claim.source == source) else {
            return After::Same;
        };
        claims.remove(at);
        if let Some(next) = claims.first() {
            self.waiting = self.waiting.saturating_sub(1);
            return if at == 0 { After::Next(next.worker.clone()) } else { After::Same };
        }
        self.of.remove(id);
        After::Nobody
    }

    /// The id is free, whoever claimed it.
    pub(super) fn forget(&mut self, id: &str) {
        let gone = self.of.remove(id).map_or(0, |claims| claims.len());
        self.waiting = self.waiting.saturating_sub(gone.saturating_sub(1));
    }

    /// The ids that a discovery names.
    pub(super) fn named_by(&self, source: Source) -> impl Iterator<Item = &String> {
        let names = move |claims: &[Claim]| claims.iter().any(|claim| claim.source == source);
        self.of.iter().filter(move |(_, claims)| names(claims)).map(|(id, _)| id)
    }

    /// What a discovery has said of an id last.
    pub(super) fn said(&self, source: Source, id: &str) -> Option<&Worker> {
        let claims = self.of.get(id)?;
        claims.iter().find(|claim| claim.source == source).map(|claim| &claim.worker)
    }

    /// Who has it.
    pub(super) fn holder(&self, id: &str) -> Option<&Worker> {
        self.of.get(id)?.first().map(|claim| &claim.worker)
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
