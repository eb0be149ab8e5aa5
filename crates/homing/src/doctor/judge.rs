//! From facts to findings, one function a question, each of facts alone. What an engine's flags are called is
//! `homing_wire::engine::Kind`'s to say.

mod engine;
mod events;
mod prompts;
mod router;
mod shared;

use super::facts::Facts;
use super::finding::{Finding, sort};
use std::collections::BTreeSet;

/// What follows from what, of one and the same engine: who mends the cause has mended the rest.
const FOLLOWS: [(&str, &[&str]); 6] = [
    ("worker_down", &["engine_unreachable", "events_unreachable"]),
    ("block_size_mismatch", &["events_refused", "events_silent"]),
    ("ranks_behind_one_url", &["events_refused"]),
    ("events_refused", &["events_silent"]),
    ("events_malformed", &["events_silent"]),
    ("prefix_caching_off", &["events_silent"]),
];

/// Drops what follows from something else that was found.
fn leave_causes(findings: &mut Vec<Finding>) {
    let found: BTreeSet<(String, &str)> =
        findings.iter().map(|f| (f.about.clone(), f.code)).collect();
    findings.retain(|finding| {
        let is_its_cause = |(cause, effects): &(&'static str, &[&str])| {
            effects.contains(&finding.code) && found.contains(&(finding.about.clone(), *cause))
        };
        !FOLLOWS.iter().any(is_its_cause)
    });
}

/// Everything that is to be said, worst first.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        router::QUESTIONS.iter().chain(&shared::QUESTIONS).filter_map(|ask| ask(facts)).collect();
    for engine in &facts.engines {
        findings.extend(engine::judge(engine));
        findings.extend(prompts::engine(engine));
    }
    findings.extend(prompts::models(facts));
    findings.extend(engine::block_sizes(&facts.engines));
    leave_causes(&mut findings);
    sort(&mut findings);
    findings
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "judge_events_tests.rs"]
mod events_tests;
