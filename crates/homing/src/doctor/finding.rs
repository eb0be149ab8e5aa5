//! What is said in the end: a finding is what is wrong, why that matters, and what mends it.

use serde_json::{Value, json};
use std::fmt;

/// How bad something is. The order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Requests fail, or what the router believes is not true.
    Broken,
    /// It works, and less well than it could.
    Missing,
    /// Nothing is wrong; something could not be looked at, or is worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Broken => "broken",
            Self::Missing => "missing",
            Self::Note => "note",
        })
    }
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Its name for scripts; each kind has one.
    pub(super) code: &'static str,
    /// Whom it is about: a worker, or the router or configuration as a whole.
    pub(super) about: String,
    pub(super) what: String,
    pub(super) why: &'static str,
    /// The exact flag or setting.
    pub(super) mend: String,
}

impl Finding {
    pub(super) fn json(&self) -> Value {
        json!({
            "severity": self.severity.to_string(), "code": self.code, "about": self.about,
            "what": self.what, "why": self.why, "mend": self.mend,
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, code, about, what, why, mend } = self;
        writeln!(f, "{severity:<8} {about}: {what} [{code}]")?;
        writeln!(f, "         why it matters: {why}")?;
        write!(f, "         mend: {mend}")
    }
}

/// Worst first; of equal ones, those of one engine together, in the order in which they were found.
pub(super) fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| finding.severity);
}

/// Whether anything is wrong.
pub(super) fn is_wrong(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity < Severity::Note)
}
