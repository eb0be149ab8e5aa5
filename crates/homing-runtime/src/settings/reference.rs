//! The reference page of the configuration, made from the key table.

use super::keys::{Key, Kind, Section, Shape, Status, find};
use super::raw::env_name;
use super::{KEYS, SECTIONS, value};

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the key table in crates/homing-runtime/src/settings/table.rs; a test holds it equal. -->

Every setting can come from four places; an earlier one beats a later one:

1. a flag (the common ones: `homing serve --help`);
2. the environment: `HOMING_<SECTION>__<KEY>`, e.g. `HOMING_AFFINITY__TTL=30m`; lists are comma
   separated; `HOMING_WORKERS` takes the URLs of workers;
3. the file, TOML (`--config FILE`);
4. the default.

Durations are numbers with units (`30s`, `1h 30m`), sizes likewise (`32MiB`). `homing check` checks a
configuration and prints it with the origin of each value. All problems are reported at once, and an
unknown key is an error that names the nearest known one.

**Planned** keys and values are known, and refused with exit 2 until they are built. *Today* says what
this build does instead; where that is a value of the key, this one value is accepted.
";

/// The page `docs/configuration.md`.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for section in SECTIONS {
        page.push_str(&heading(section));
        let inside = |key: &&Key| key.path.rsplit_once('.').is_some_and(|(s, _)| s == section.name);
        let rows: Vec<String> =
            KEYS.iter().filter(inside).filter(|key| !is_inherited(key.path)).map(row).collect();
        if !rows.is_empty() {
            page.push_str("\n| key | default | values | meaning |\n|---|---|---|---|\n");
            page.push_str(&rows.concat());
        }
        if KEYS.iter().filter(inside).any(|key| is_inherited(key.path)) {
            page.push_str(
                "\nAnd each key of `[upstream]`, for this worker alone; without it, or empty, the value of \
                 `[upstream]` holds.\n",
            );
        }
    }
    page.push_str(&format!(
        "\nThe environment variable of a key, for example of `gateway.tls.cert`, is `{}`.\n",
        env_name("gateway.tls.cert")
    ));
    page
}

/// Whether a key is a worker's own value of one of `[upstream]`: told in one sentence.
pub(super) fn is_inherited(path: &str) -> bool {
    let name = path.strip_prefix("workers.");
    name.is_some_and(|name| find(&format!("upstream.{name}")).is_some())
}

fn heading(section: &Section) -> String {
    let (title, note) = match section.shape {
        Shape::One => (format!("[{}]", section.name), String::new()),
        Shape::Many(max) => (format!("[[{}]]", section.name), format!(" At most {max}.")),
        Shape::Later(step) => {
            (format!("[{}]", section.name), format!(" **Planned: {}.**", step.short()))
        }
    };
    format!("\n## `{title}`\n\n{}{note}\n", section.doc)
}

fn row(key: &Key) -> String {
    let name = key.path.rsplit_once('.').map_or(key.path, |(_, name)| name);
    let status = match key.status {
        Status::Built => String::new(),
        Status::Only { value, step } => {
            format!(" **Planned: {}.** Today {}.", step.short(), code(&literal(key, value)))
        }
        Status::Refused { step, today } => {
            format!(" **Planned: {}.** Today {today}.", step.short())
        }
    };
    format!(
        "| `{name}` | {} | {} | {}{status} |\n",
        code(&literal(key, key.default)),
        values(&key.kind),
        key.doc
    )
}

/// A default as TOML.
fn literal(key: &Key, text: &str) -> String {
    value::from_text(&key.kind, text).map_or_else(|_| text.to_owned(), |value| value.to_toml())
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn values(kind: &Kind) -> String {
    let text = value::describe(kind);
    match kind {
        Kind::Choice { later, .. } if !later.is_empty() => {
            let planned: Vec<String> =
                later.iter().map(|(word, step)| format!("\"{word}\" ({})", step.short())).collect();
            format!("{text}; planned: {}", planned.join(", "))
        }
        _ => text,
    }
}
