//! What a row of the key table says, and how keys are looked up, the nearest one included.

use super::table::{KEYS, SECTIONS};
use std::fmt;
use std::time::Duration;

/// Longer names are cut before they are compared: the distance is quadratic in the length.
const COMPARED_MAX: usize = 64;

/// A configuration key: one row of [`KEYS`].
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Section and name, dotted: `affinity.ttl`. Keys of a list of tables have no index here.
    pub path: &'static str,
    /// The type and its bounds.
    pub kind: Kind,
    /// The documented default, written as in the environment.
    pub default: &'static str,
    /// Whether this build has it.
    pub status: Status,
    /// What it does, for the reference page.
    pub doc: &'static str,
}

/// The type of a key's value, with its bounds (both ends allowed).
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A number.
    Float {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// A duration with its unit, such as `30m` or `1h 30m`.
    Duration {
        /// Shortest.
        min: Duration,
        /// Longest.
        max: Duration,
        /// Whether the word `off` is allowed as well.
        off: bool,
        /// Whether empty text is allowed as well: the value of another key.
        empty: bool,
    },
    /// A number of bytes, such as `32MiB`.
    Size {
        /// Smallest, in bytes.
        min: u64,
        /// Largest, in bytes.
        max: u64,
    },
    /// An IP address and a port to listen on.
    Listen {
        /// Whether `unix:/path` is allowed as well.
        unix: bool,
    },
    /// Text without control characters.
    Text {
        /// Longest, in bytes.
        max: usize,
    },
    /// The number of a port, or a name that stands for one somewhere else; kept as text.
    Port,
    /// A list of texts of 1 to 256 bytes.
    List {
        /// Most items.
        max: usize,
    },
    /// One of some words.
    Choice {
        /// The words that this build does.
        built: &'static [&'static str],
        /// The words that are documented and not built yet.
        later: &'static [(&'static str, Step)],
    },
    /// A table of text to text.
    Labels,
    /// A table of anything, kept as JSON.
    Json,
}

/// Whether a key is built.
#[derive(Clone, Copy, Debug)]
pub enum Status {
    /// It is.
    Built,
    /// Not yet. One value is accepted all the same, because it says what this build does.
    Only {
        /// That value, written as in the environment.
        value: &'static str,
        /// When the key is planned.
        step: Step,
    },
    /// Not yet, and no value says what this build does.
    Refused {
        /// When the key is planned.
        step: Step,
        /// What this build does instead.
        today: &'static str,
    },
}

/// When something is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Step 3: knowing what every engine has cached.
    Knowing,
    /// Step 4: choosing well.
    Choosing,
    /// Step 5: a gateway that operators trust.
    Gateway,
    /// Step 6: many routers.
    Replicas,
    /// After the six steps.
    After,
}

impl Step {
    /// Its name without what it is about.
    #[must_use]
    pub fn short(self) -> &'static str {
        match self {
            Self::Knowing => "step 3",
            Self::Choosing => "step 4",
            Self::Gateway => "step 5",
            Self::Replicas => "step 6",
            Self::After => "after step 6",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Knowing => "step 3 of 6, knowing what every engine has cached",
            Self::Choosing => "step 4 of 6, choosing well",
            Self::Gateway => "step 5 of 6, a gateway for operators",
            Self::Replicas => "step 6 of 6, many routers",
            Self::After => "after step 6",
        })
    }
}

/// A section of the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its name, dotted where it is nested: `gateway.tls`.
    pub name: &'static str,
    /// How often it may appear.
    pub shape: Shape,
    /// What it is about, for the reference page.
    pub doc: &'static str,
}

/// How a section appears in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[name]`, once.
    One,
    /// `[[name]]`, at most so often.
    Many(usize),
    /// Known, and refused whole.
    Later(Step),
}

/// The row of a dotted key.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The section of a dotted name.
pub(super) fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

/// The known name that an unknown one most likely means: first a near spelling of the whole name,
/// then the same key in another section, then whatever is least far.
pub(super) fn nearest(unknown: &str, known: impl Iterator<Item = &'static str>) -> &'static str {
    let cut = |s: &str| s.chars().take(COMPARED_MAX).collect::<String>().to_lowercase();
    let unknown = cut(unknown);
    let leaf = |s: &str| s.rsplit('.').next().unwrap_or_default().to_owned();
    let unknown_leaf = leaf(&unknown);
    // One slip in four letters is a slip; more is another word.
    let slips = (unknown.len() / 4).clamp(1, 3);
    known
        .min_by_key(|candidate| {
            let distance = strsim::damerau_levenshtein(&unknown, candidate);
            match () {
                () if distance <= slips => (0, distance),
                // Any of these is as good; the table begins with what is wanted most.
                () if leaf(candidate) == unknown_leaf => (1, 0),
                () => (2, distance),
            }
        })
        .unwrap_or_default()
}

/// [`nearest`] among all keys that can be set one by one, and all sections.
pub(super) fn nearest_key(unknown: &str) -> &'static str {
    let keys = KEYS.iter().map(|key| key.path);
    let sections = SECTIONS.iter().map(|section| section.name);
    if unknown.contains('.') {
        nearest(unknown, keys)
    } else {
        // A top-level name is most likely a section; but `listen = ...` outside of one is a key.
        nearest(unknown, sections.chain(keys))
    }
}
