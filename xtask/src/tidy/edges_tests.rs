//! Shows that each rule about the crate graph can fail, on packages as `cargo metadata` prints them.

use super::*;
use serde_json::{Value, json};

fn dependency(name: &str, kind: Option<&str>, optional: bool) -> Value {
    json!({"name": name, "source": null, "req": "*", "kind": kind, "rename": null,
           "optional": optional, "uses_default_features": true, "features": [], "target": null,
           "registry": null, "path": null})
}

fn package(name: &str, dependencies: &[Value], features: Value) -> Package {
    serde_json::from_value(json!({
        "name": name, "version": "0.1.0", "id": format!("path+file:///x/{name}#0.1.0"),
        "license": null, "license_file": null, "description": null, "source": null,
        "dependencies": dependencies, "targets": [], "features": features,
        "manifest_path": format!("/x/{name}/Cargo.toml"), "categories": [], "keywords": [],
        "readme": null, "repository": null, "homepage": null, "documentation": null,
        "edition": "2024", "links": null, "publish": [], "authors": [], "metadata": null,
        "default_run": null, "rust_version": null
    }))
    .unwrap()
}

fn uses(name: &str, used: &[&str]) -> Package {
    let edges: Vec<_> = used.iter().map(|used| dependency(used, None, false)).collect();
    package(name, &edges, json!({}))
}

/// The complaints about one package in a workspace that has every crate.
fn complaints(subject: Package) -> Vec<Complaint> {
    let mut packages: Vec<Package> = ALLOWED
        .iter()
        .filter(|(name, _)| *name != subject.name.as_str())
        .map(|(name, _)| uses(name, &[]))
        .collect();
    packages.push(subject);
    check(&packages)
}

#[test]
fn every_allowed_edge_is_allowed() {
    for (name, used) in ALLOWED {
        assert_eq!(complaints(uses(name, used)), Vec::<String>::new());
    }
}

#[test]
fn every_other_edge_is_not() {
    for (from, used) in ALLOWED {
        for (to, _) in ALLOWED {
            if from != to && !used.contains(&to) {
                let found = complaints(uses(from, &[to]));
                assert_eq!(found.len(), 1, "{from} -> {to}: {found:?}");
                assert!(found[0].contains(from) && found[0].contains(to), "{found:?}");
            }
        }
    }
}

#[test]
fn tests_of_e2e_may_use_what_its_code_may_not() {
    let in_tests = [dependency("homing-sim", Some("dev"), false)];
    assert!(complaints(package("homing-e2e", &in_tests, json!({}))).is_empty());
    assert_eq!(complaints(uses("homing-e2e", &["homing-sim"])).len(), 1);
    let upwards = [dependency("homing-sim", Some("dev"), false)];
    assert_eq!(complaints(package("homing-core", &upwards, json!({}))).len(), 1);
}

#[test]
fn sim_may_use_prompt_with_serve_alone() {
    let optional = [dependency("homing-prompt", None, true)];
    let serve = json!({"serve": ["dep:homing-prompt"]});
    assert!(complaints(package("homing-sim", &optional, serve.clone())).is_empty());
    let always = [dependency("homing-prompt", None, false)];
    assert_eq!(complaints(package("homing-sim", &always, serve)).len(), 1);
    for other in [
        json!({"serve": ["dep:homing-prompt"], "extra": ["dep:homing-prompt"]}),
        json!({"serve": ["dep:homing-prompt"], "default": ["serve"]}),
        json!({"serve": ["dep:homing-prompt"], "extra": ["homing-prompt/fast"]}),
        json!({"extra": ["dep:homing-prompt"]}),
    ] {
        let found = complaints(package("homing-sim", &optional, other.clone()));
        assert_eq!(found.len(), 1, "{other}: {found:?}");
    }
}

#[test]
fn a_crate_that_the_architecture_does_not_know_is_named() {
    let found = complaints(uses("homing-extra", &[]));
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("homing-extra"), "{found:?}");
}

#[test]
fn the_core_takes_no_crate_that_does_io() {
    assert_eq!(complaints(uses("homing-core", &["tokio"])).len(), 1);
    assert!(complaints(uses("homing-core", &["slab"])).is_empty());
    assert!(complaints(uses("homing-runtime", &["tokio"])).is_empty());
    let in_tests = [dependency("rand", Some("dev"), false)];
    assert!(complaints(package("homing-core", &in_tests, json!({}))).is_empty());
}
