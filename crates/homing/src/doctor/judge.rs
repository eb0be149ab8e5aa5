//! From facts to findings, one function a question, each of facts alone. What an engine's flags are called is
//! `homing_wire::engine::Kind`'s to say.

mod engine;
mod prompts;
mod router;

use super::facts::Facts;
use super::finding::{Finding, sort};

/// Everything that is to be said, worst first.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        router::QUESTIONS.iter().filter_map(|ask| ask(facts)).collect();
    for engine in &facts.engines {
        findings.extend(engine::judge(engine));
        findings.extend(prompts::engine(engine, facts));
    }
    findings.extend(prompts::models(facts));
    findings.extend(engine::block_sizes(&facts.engines));
    sort(&mut findings);
    findings
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
