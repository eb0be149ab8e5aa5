//! The graph of the workspace's crates, as ARCHITECTURE.md draws it.
//!
//! Only edges between crates of the workspace are judged here, dev and build dependencies too; what
//! comes from outside is cargo-deny's, but for the core, which must stay free of I/O altogether.

use super::Complaint;
use cargo_metadata::{Dependency, DependencyKind, Package};

/// What each crate may use. A crate that is not listed may not exist.
const ALLOWED: [(&str, &[&str]); 12] = [
    ("homing-core", &[]),
    ("homing-wire", &["homing-core"]),
    ("homing-prompt", &["homing-core"]),
    ("homing-runtime", &["homing-core", "homing-wire"]),
    ("homing-backends", &["homing-core", "homing-wire", "homing-runtime"]),
    ("homing-hosts", &["homing-core", "homing-wire", "homing-prompt", "homing-runtime"]),
    ("homing-sim", &["homing-core", "homing-wire"]),
    ("homing-py", &["homing-core", "homing-prompt"]),
    (
        "homing",
        &[
            "homing-core",
            "homing-wire",
            "homing-prompt",
            "homing-runtime",
            "homing-backends",
            "homing-hosts",
            "homing-sim",
        ],
    ),
    ("custom-policy", &["homing", "homing-core"]),
    ("homing-e2e", &[]),
    ("xtask", &[]),
];

/// What a crate may use in its tests beyond `ALLOWED`.
const ALLOWED_IN_TESTS: [(&str, &[&str]); 1] =
    [("homing-e2e", &["homing-core", "homing-wire", "homing-sim"])];

/// What a crate may use if only this feature of it brings the edge.
const ALLOWED_WITH_FEATURE: [(&str, &str, &str); 1] = [("homing-sim", "serve", "homing-prompt")];

/// Crates that would bring I/O, a clock, tasks or chance into the core.
const NOT_IN_CORE: [&str; 12] = [
    "anyhow",
    "axum",
    "chrono",
    "getrandom",
    "hyper",
    "mio",
    "rand",
    "reqwest",
    "socket2",
    "tokio",
    "tracing",
    "zmq",
];

/// Judges every edge of the workspace's packages.
pub(super) fn check(packages: &[Package]) -> Vec<Complaint> {
    let ours = |name: &str| packages.iter().any(|package| package.name.as_str() == name);
    packages
        .iter()
        .flat_map(|package| {
            let unknown =
                (!ALLOWED.iter().any(|(name, _)| *name == package.name.as_str())).then(|| {
                    format!(
                        "crate {}: not in the list of xtask/src/tidy/edges.rs; say there and in \
                     ARCHITECTURE.md what it may use",
                        package.name
                    )
                });
            let edges = package
                .dependencies
                .iter()
                .filter_map(|dependency| judge(package, dependency, ours(&dependency.name)));
            unknown.into_iter().chain(edges).collect::<Vec<_>>()
        })
        .collect()
}

fn judge(package: &Package, dependency: &Dependency, ours: bool) -> Option<Complaint> {
    let (from, to) = (package.name.as_str(), dependency.name.as_str());
    if !ours {
        let barred = from == "homing-core"
            && dependency.kind != DependencyKind::Development
            && NOT_IN_CORE.contains(&to);
        return barred.then(|| format!("crate {from}: {to} has no place in the sans-I/O core"));
    }
    if list(&ALLOWED, from).contains(&to) {
        return None;
    }
    if dependency.kind == DependencyKind::Development && list(&ALLOWED_IN_TESTS, from).contains(&to)
    {
        return None;
    }
    let feature = ALLOWED_WITH_FEATURE.iter().find(|(name, _, used)| *name == from && *used == to);
    match feature {
        Some((_, feature, _)) if brought_only_by(package, dependency, feature) => None,
        Some((_, feature, _)) => Some(format!(
            "crate {from}: {to} must be optional and come with the feature `{feature}` alone, which \
             is not a default one"
        )),
        None => {
            Some(format!("crate {from}: must not use {to}; see the directions in ARCHITECTURE.md"))
        }
    }
}

/// True if the dependency is optional and `feature`, which no other feature implies, is what enables it.
fn brought_only_by(package: &Package, dependency: &Dependency, feature: &str) -> bool {
    let enables = |item: &String| {
        let name = item.strip_prefix("dep:").unwrap_or(item);
        name.split(['/', '?']).next() == Some(dependency.name.as_str())
    };
    dependency.optional
        && dependency.kind == DependencyKind::Normal
        && package.features.get(feature).is_some_and(|items| items.iter().any(enables))
        && package
            .features
            .iter()
            .filter(|(name, _)| *name != feature)
            .all(|(_, items)| !items.iter().any(|item| enables(item) || item == feature))
}

fn list(table: &[(&str, &'static [&'static str])], name: &str) -> &'static [&'static str] {
    table.iter().find(|(crate_name, _)| *crate_name == name).map_or(&[], |(_, list)| list)
}

#[cfg(test)]
#[path = "edges_tests.rs"]
mod tests;
