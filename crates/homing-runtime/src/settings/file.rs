//! The TOML file: a walk over its tables that knows the line of everything.
//!
//! It uses the parser's own tree with spans instead of serde, for two reasons: serde stops at the
//! first error, and its messages don't know the neighbouring keys.

use super::keys::{self, Key, Kind, Section, Shape};
use super::problem::{Fault, Origin, Problem, Problems, echo};
use super::raw::{Group, Raw, unknown};
use super::{KEYS, value};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Largest file, in bytes. 4,096 workers with labels take about a third of it.
const FILE_BYTES_MAX: usize = 4 << 20;

/// Most syntax errors that are reported: one slip tends to give several.
const SYNTAX_ERRORS_MAX: usize = 3;

/// Reads the text of a file into `raw`.
pub(super) fn read(raw: &mut Raw, path: &Path, text: &str, problems: &mut Problems) {
    let place = Place { path, lines: line_starts(text), text };
    if text.len() > FILE_BYTES_MAX {
        let what = format!("the file has more than {FILE_BYTES_MAX} bytes");
        problems.push(place.syntax(0, what, "shorten it"));
        return;
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(SYNTAX_ERRORS_MAX) {
        let at = error.span().map_or(0, |span| span.start);
        let what = format!("not TOML: {}", echo(error.message()));
        problems.push(place.syntax(at, what, "mend the line"));
    }
    if !errors.is_empty() {
        return; // what recovery made of the rest would only give misleading messages
    }
    for (name, value) in document.get_ref() {
        Walk { raw, place: &place, problems }.entry("", name, value);
    }
}

/// The problem of a list of tables with too many entries.
pub(super) fn too_many(name: &str, max: usize, origin: Origin) -> Problem {
    Problem {
        fault: Fault::Invalid,
        key: name.to_owned(),
        origin,
        what: format!("`{name}` has more than {max} entries"),
        mend: "remove some".to_owned(),
    }
}

/// Offsets to lines.
struct Place<'a> {
    path: &'a Path,
    text: &'a str,
    lines: Vec<usize>,
}

fn line_starts(text: &str) -> Vec<usize> {
    text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1).collect()
}

impl Place<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let line = self.lines.partition_point(|start| *start <= offset) + 1;
        Origin::File(self.path.to_owned(), line)
    }

    /// A span's text, for messages.
    fn shown(&self, value: &Spanned<DeValue<'_>>) -> String {
        self.text.get(value.span()).unwrap_or_default().to_owned()
    }

    fn syntax(&self, offset: usize, what: String, mend: &str) -> Problem {
        let (key, mend) = (String::new(), mend.to_owned());
        Problem { fault: Fault::Syntax, key, origin: self.origin(offset), what, mend }
    }
}

type Name<'i> = Spanned<std::borrow::Cow<'i, str>>;

struct Walk<'a> {
    raw: &'a mut Raw,
    place: &'a Place<'a>,
    problems: &'a mut Problems,
}

impl Walk<'_> {
    /// One entry of the table of section `parent`.
    fn entry(&mut self, parent: &str, name: &Name<'_>, value: &Spanned<DeValue<'_>>) {
        let path = match parent {
            "" => name.get_ref().to_string(),
            parent => format!("{parent}.{}", name.get_ref()),
        };
        let origin = self.place.origin(name.span().start);
        if let Some(section) = keys::section(&path) {
            self.section(section, value, origin);
        } else if let Some(key) = keys::find(&path) {
            let read = value::from_toml(&key.kind, value.get_ref());
            let shown = self.place.shown(value);
            self.raw.top.set(key, read, &shown, origin, self.problems);
        } else {
            self.problems.push(unknown(&path, keys::nearest_key(&path), &path, origin));
        }
    }

    fn section(&mut self, section: &Section, value: &Spanned<DeValue<'_>>, origin: Origin) {
        let name = section.name;
        match (section.shape, value.get_ref()) {
            // No entries: as if it were not there.
            (Shape::Later(_) | Shape::Many(_), DeValue::Array(items)) if items.is_empty() => {}
            (Shape::Later(step), _) => self.problems.push(Problem {
                fault: Fault::NotBuilt,
                key: name.to_owned(),
                origin,
                what: format!("section `{name}` is not built yet (planned: {step})"),
                mend: "remove it".to_owned(),
            }),
            (Shape::One, DeValue::Table(table)) => {
                for (key, value) in table {
                    self.entry(name, key, value);
                }
            }
            (Shape::Many(max), DeValue::Array(items)) => self.many(name, max, items, &origin),
            (Shape::One, other) => {
                let mend = format!("write [{name}] and its keys below");
                self.misshapen(name, other, &mend, origin);
            }
            (Shape::Many(_), other) => {
                let mend = format!("write [[{name}]] and the keys of one entry below");
                self.misshapen(name, other, &mend, origin);
            }
        }
    }

    fn misshapen(&mut self, name: &str, value: &DeValue<'_>, mend: &str, origin: Origin) {
        self.problems.push(Problem {
            fault: Fault::Invalid,
            key: name.to_owned(),
            origin,
            what: format!("`{name}` is a section, not a value of type {}", value.type_str()),
            mend: mend.to_owned(),
        });
    }

    fn many(&mut self, name: &'static str, max: usize, items: &DeArray<'_>, origin: &Origin) {
        if items.len() > max {
            self.problems.push(too_many(name, max, origin.clone()));
            return;
        }
        for (at, item) in items.iter().enumerate() {
            let origin = self.place.origin(item.span().start);
            let DeValue::Table(table) = item.get_ref() else {
                let mend = format!("write [[{name}]] and the keys of one entry below");
                self.misshapen(name, item.get_ref(), &mend, origin);
                continue;
            };
            let mut group = Group::new(format!("{name}[{at}]"), origin);
            for (key, value) in table {
                self.entry_of_many(name, &mut group, key, value);
            }
            match name {
                "models" => self.raw.models.push(group),
                "tenants" => self.raw.tenants.push(group),
                _ => self.raw.workers.push(group),
            }
        }
    }

    fn entry_of_many(
        &mut self,
        section: &str,
        group: &mut Group,
        name: &Name<'_>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let path = format!("{section}.{}", name.get_ref());
        let origin = self.place.origin(name.span().start);
        let shown = self.place.shown(value);
        if let Some(key) = keys::find(&path) {
            let read = value::from_toml(&key.kind, value.get_ref());
            group.set(key, read, &shown, origin, self.problems);
            return;
        }
        let own = |key: &&Key| key.path.starts_with(section) && !matches!(key.kind, Kind::Json);
        let nearest = keys::nearest(&path, KEYS.iter().filter(own).map(|key| key.path));
        let path = group.shown(&path);
        self.problems.push(unknown(&path, nearest, &path, origin));
    }
}
