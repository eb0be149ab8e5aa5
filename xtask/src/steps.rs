//! Runs named steps one after the other and tells the outcome in a form that people and CI read.
//!
//! Each step has a header, its time, and a line in the table at the end. The very last line counts
//! the steps as `N passed, N failed, N skipped`, which CI reads; a step that was not reached because
//! an earlier one failed is in no count, but in the table.

use anyhow::Result;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How a step ended that did not fail.
pub(crate) enum Outcome {
    /// It ran and found nothing wrong.
    Passed,
    /// It could not run here, and why that is no failure.
    Skipped(String),
}

enum State {
    Passed,
    Skipped(String),
    Failed(String),
    NotReached,
}

/// A list of steps in progress.
pub(crate) struct Steps {
    keep_going: bool,
    only: Vec<String>,
    done: Vec<(&'static str, State, Duration)>,
}

impl Steps {
    /// No steps yet. With `keep_going` a failure does not stop the later ones; `only`, if not empty,
    /// names the steps to run, and the others are left out of everything.
    pub(crate) fn new(keep_going: bool, only: Vec<String>) -> Self {
        Self { keep_going, only, done: Vec::new() }
    }

    /// Runs one step, unless an earlier failure stops the list or `only` leaves it out.
    pub(crate) fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<Outcome>) {
        if !self.only.is_empty() && !self.only.iter().any(|wanted| wanted == name) {
            return;
        }
        if self.failed() > 0 && !self.keep_going {
            self.done.push((name, State::NotReached, Duration::ZERO));
            return;
        }
        println!("\n== {name}");
        let began = Instant::now();
        let state = match work() {
            Ok(Outcome::Passed) => State::Passed,
            Ok(Outcome::Skipped(why)) => State::Skipped(why),
            Err(error) => State::Failed(format!("{error:#}")),
        };
        let took = began.elapsed();
        println!("-- {}", line(name, &state, took));
        self.done.push((name, state, took));
    }

    /// The table and the closing line. Nothing run at all is told as such, never as a success.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::from("\n== summary\n");
        for (name, state, took) in &self.done {
            // writing to a String cannot fail
            let _ = writeln!(text, "{}", line(name, state, *took));
        }
        let total = self.done.iter().map(|(_, _, took)| *took).sum::<Duration>();
        let skipped = self.count(|state| matches!(state, State::Skipped(_)));
        let _ = writeln!(text, "      {:<10} {:>6.1} s", "in all", total.as_secs_f64());
        let _ =
            write!(text, "{} passed, {} failed, {skipped} skipped", self.passed(), self.failed());
        text
    }

    /// True if something ran and nothing failed.
    pub(crate) fn all_well(&self) -> bool {
        self.failed() == 0 && self.passed() > 0
    }

    fn passed(&self) -> usize {
        self.count(|state| matches!(state, State::Passed))
    }

    fn failed(&self) -> usize {
        self.count(|state| matches!(state, State::Failed(_)))
    }

    fn count(&self, wanted: impl Fn(&State) -> bool) -> usize {
        self.done.iter().filter(|(_, state, _)| wanted(state)).count()
    }
}

fn line(name: &str, state: &State, took: Duration) -> String {
    let (word, why) = match state {
        State::Passed => ("ok", ""),
        State::Skipped(why) => ("skip", why.as_str()),
        State::Failed(why) => ("FAIL", why.as_str()),
        State::NotReached => ("-", "not reached"),
    };
    let text = format!("{word:<5} {name:<10} {:>6.1} s  {why}", took.as_secs_f64());
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(steps: &Steps) -> String {
        steps.summary().lines().last().unwrap().to_owned()
    }

    #[test]
    fn the_last_line_counts_the_steps() {
        let mut steps = Steps::new(false, Vec::new());
        steps.step("a", || Ok(Outcome::Passed));
        steps.step("b", || Ok(Outcome::Skipped("no network".into())));
        assert_eq!(last_line(&steps), "1 passed, 0 failed, 1 skipped");
        assert!(steps.all_well());
        assert!(steps.summary().contains("no network"));
    }

    #[test]
    fn the_first_failure_stops_the_list() {
        let mut steps = Steps::new(false, Vec::new());
        steps.step("a", || anyhow::bail!("broken"));
        steps.step("b", || panic!("must not be reached"));
        assert_eq!(last_line(&steps), "0 passed, 1 failed, 0 skipped");
        assert!(!steps.all_well());
        assert!(steps.summary().contains("not reached"));
    }

    #[test]
    fn keep_going_runs_the_rest_and_still_fails() {
        let mut steps = Steps::new(true, Vec::new());
        steps.step("a", || anyhow::bail!("broken"));
        steps.step("b", || Ok(Outcome::Passed));
        assert_eq!(last_line(&steps), "1 passed, 1 failed, 0 skipped");
        assert!(!steps.all_well());
    }

    #[test]
    fn only_leaves_the_others_out_and_running_nothing_is_no_success() {
        let mut steps = Steps::new(false, vec!["b".to_owned()]);
        steps.step("a", || panic!("left out"));
        assert!(!steps.all_well());
        steps.step("b", || Ok(Outcome::Passed));
        assert_eq!(last_line(&steps), "1 passed, 0 failed, 0 skipped");
        assert!(steps.all_well());
    }
}
