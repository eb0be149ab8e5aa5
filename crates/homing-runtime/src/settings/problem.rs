//! What can be wrong with a configuration, and where a value came from.
//!
//! Unlike the crate's other errors these are collected, not returned at the first one: somebody
//! who mends a file wants the whole list. The list is bounded, the rest is counted.

use std::fmt;
use std::path::PathBuf;

/// How many problems are kept for the report; more are only counted.
const PROBLEMS_MAX: usize = 64;

/// How much of an offending value a message repeats, in characters.
const ECHO_MAX: usize = 80;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The configuration file, and the line (from 1).
    File(PathBuf, usize),
    /// An environment variable's name.
    Env(String),
    /// A flag's name, with its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The kind of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is not TOML, or is too large to be read.
    Syntax,
    /// A key or section that nobody knows.
    UnknownKey,
    /// A key or value that is documented, and that this build does not do yet.
    NotBuilt,
    /// A value of the wrong type, form or size, or a value that is missing.
    Invalid,
    /// Two settings that don't go together.
    Conflict,
    /// The key table and the conversion disagree: a bug of Homing, not of the configuration.
    Internal,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {what}; {mend}")]
pub struct Problem {
    /// What kind of problem.
    pub fault: Fault,
    /// The dotted key, empty where the file as a whole is meant.
    pub key: String,
    /// Where the offending value came from.
    pub origin: Origin,
    /// What is wrong; names the key.
    pub what: String,
    /// What to do about it.
    pub mend: String,
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsErrors {
    /// The problems, in the order: file, environment, flags, then what is wrong between values.
    pub problems: Vec<Problem>,
    /// How many more there are than `problems` holds.
    pub more: usize,
}

impl fmt::Display for SettingsErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len() + self.more;
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(f, "the configuration has {count} {noun}")?;
        for problem in &self.problems {
            write!(f, "\n  - {problem}")?;
        }
        if self.more > 0 {
            write!(f, "\n  - and {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsErrors {}

impl From<Problem> for SettingsErrors {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem], more: 0 }
    }
}

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct Problems {
    kept: Vec<Problem>,
    more: usize,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        if self.kept.len() < PROBLEMS_MAX {
            self.kept.push(problem);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn into_errors(self) -> Option<SettingsErrors> {
        if self.kept.is_empty() {
            return None;
        }
        Some(SettingsErrors { problems: self.kept, more: self.more })
    }
}

/// A piece of input for a message: quoted, without control characters, cut to a bearable length.
pub(super) fn echo(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(ECHO_MAX)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(ECHO_MAX).is_some() {
        out.push_str("...");
    }
    out
}
