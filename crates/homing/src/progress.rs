//! How far long work has come: a bar on a terminal, elsewhere a line at each tenth. On stderr.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// See the module.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    total: u64,
    done: u64,
    what: &'static str,
}

impl Progress {
    /// Nothing of `total` is done. Without `shown` nothing is printed.
    pub(crate) fn new(total: u64, what: &'static str, shown: bool) -> Self {
        let terminal = stderr().is_terminal();
        let bar = (shown && terminal).then(|| {
            let bar = ProgressBar::new(total);
            let template =
                format!("{{bar:40}} {{pos}}/{{len}} {what}  {{elapsed}} of about {{duration}}");
            // The template is one that indicatif accepts.
            if let Ok(style) = ProgressStyle::with_template(&template) {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, lines: shown && !terminal, total, done: 0, what }
    }

    /// One more.
    pub(crate) fn step(&mut self) {
        self.reach(self.done + 1);
    }

    /// So many are done now.
    pub(crate) fn reach(&mut self, done: u64) {
        if done <= self.done {
            return;
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
        let tenth = |n: u64| n * 10 / self.total.max(1);
        if self.lines && tenth(done) > tenth(self.done) {
            eprintln!("{done}/{} {}", self.total, self.what);
        }
        self.done = done;
    }

    /// It is over.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
