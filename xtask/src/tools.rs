//! Installs what the tests need and a fresh machine lacks.
//!
//! Nothing is installed twice: each tool is looked for first. System packages come by apt (a C and a
//! C++ compiler, Python with venv, Node.js, etcd), Python packages by pip into a venv of the project's own, Node's by
//! npm and cargo-deny from crates.io into folders of the project's own, so that nothing of the user's changes.

use crate::cargo::{cache, must_run, program, succeeds};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};

/// The cargo-deny that `deny.toml` is written for.
const CARGO_DENY: &str = "0.20.2";

/// A thing that must be there, how to see it, and the Debian package that brings it.
const SYSTEM: [(&str, &[&str], &str); 9] = [
    ("cc", &["--version"], "gcc"),
    ("c++", &["--version"], "g++"),
    ("python3", &["--version"], "python3"),
    ("python3", &["-c", "import venv, ensurepip"], "python3-venv"),
    ("node", &["--version"], "nodejs"),
    ("npm", &["--version"], "npm"),
    ("nats-server", &["--version"], "nats-server"),
    ("etcd", &["--version"], "etcd-server"),
    ("etcdctl", &["version"], "etcd-client"),
];

/// The oldest Node.js that the SDKs in `e2e/node/package.json` run on.
const NODE: u32 = 20;

/// Brings the system packages; `apt-get` runs only when one is missing.
pub(crate) fn system(root: &Path) -> Result<()> {
    let missing: Vec<&str> = SYSTEM
        .iter()
        .filter(|(name, args, _)| !succeeds(program(root, name).args(*args)))
        .map(|(_, _, package)| *package)
        .collect();
    if missing.is_empty() {
        println!("system packages: all here");
        return Ok(());
    }
    let packages = missing.join(" ");
    apt(root, &missing).with_context(|| {
        format!(
            "could not install {packages}; as root: apt-get update && apt-get install {packages}"
        )
    })
}

fn apt(root: &Path, packages: &[&str]) -> Result<()> {
    must_run(program(root, "apt-get").args(["update", "-q"]))?;
    must_run(
        program(root, "apt-get")
            .args(["install", "-y", "-q", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// The Python of the project's venv, made and filled first if need be. The requirements that it was
/// filled from are kept inside it, so that a change of them installs anew.
pub(crate) fn venv(root: &Path) -> Result<PathBuf> {
    let dir = cache("homing-venv");
    let python = dir.join("bin/python");
    let wanted_path = root.join("e2e/python/requirements.txt");
    let wanted = std::fs::read_to_string(&wanted_path)
        .with_context(|| format!("cannot read {}", wanted_path.display()))?;
    let stamp = dir.join("homing-requirements.txt");
    let filled = std::fs::read_to_string(&stamp).is_ok_and(|had| had == wanted);
    if filled && succeeds(program(root, &python).args(["-c", "import openai, msgspec, zmq"])) {
        println!("Python packages: all here, in {}", dir.display());
        return Ok(python);
    }
    must_run(program(root, "python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    must_run(
        program(root, &python)
            .args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"])
            .arg(&wanted_path),
    )?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

/// A folder whose `node_modules` has the packages of `e2e/node/package-lock.json`, filled first if need be;
/// `None` where Node.js is too old for them, as some distributions' is.
pub(crate) fn node_modules(root: &Path) -> Result<Option<PathBuf>> {
    let version = program(root, "node").arg("--version").output().context("cannot start `node`")?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    if node_major(&version).is_none_or(|major| major < NODE) {
        println!("Node.js is `{version}`, and the SDKs need {NODE}");
        return Ok(None);
    }
    let (dir, from) = (cache("homing-node"), root.join("e2e/node"));
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let lock = "package-lock.json";
    let wanted = read(from.join(lock))?;
    // npm writes this one itself, last of all: it tells what is there, not what was to be
    let filled = dir.join("node_modules/.package-lock.json").exists();
    if filled && read(dir.join(lock)).is_ok_and(|had| had == wanted) {
        println!("Node packages: all here, in {}", dir.display());
        return Ok(Some(dir));
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for name in ["package.json", lock] {
        let copied = std::fs::copy(from.join(name), dir.join(name));
        copied.with_context(|| format!("cannot copy {name} into {}", dir.display()))?;
    }
    // no package's own script runs: none of these needs one
    must_run(program(&dir, "npm").args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--silent",
    ]))?;
    Ok(Some(dir))
}

/// The first number of `v20.1.2`.
fn node_major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The cargo-deny of the version that `deny.toml` is written for, built first if need be.
pub(crate) fn cargo_deny(root: &Path) -> Result<PathBuf> {
    let dir = cache("homing-tools");
    let binary = dir.join("bin/cargo-deny");
    let version = program(root, &binary).arg("--version").output();
    if version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).trim().ends_with(CARGO_DENY)) {
        println!("cargo-deny {CARGO_DENY}: here, in {}", dir.display());
        return Ok(binary);
    }
    // A light build: it runs for seconds, so minutes of optimizing would be wasted. Its own target
    // folder, removed at the end, keeps it from mixing with (and waiting for) the project's builds.
    let scratch = dir.join("build");
    must_run(
        program(root, "cargo")
            .args(["install", "--locked", "--debug", "--force", "--quiet"])
            .arg(format!("cargo-deny@{CARGO_DENY}"))
            .arg("--root")
            .arg(&dir)
            .env("CARGO_TARGET_DIR", &scratch)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
    )?;
    // best effort: what stays behind costs disk space only
    let _ = std::fs::remove_dir_all(&scratch);
    ensure!(binary.exists(), "cargo install left no {}", binary.display());
    Ok(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_of_node_is_read() {
        assert_eq!(node_major("v20.20.2"), Some(20));
        assert_eq!(node_major("v9"), Some(9));
        assert_eq!(node_major(""), None);
        assert_eq!(node_major("node: not found"), None);
    }
}
