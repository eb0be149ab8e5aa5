//! How the routines call programs, cargo above all.
//!
//! One profile and one target folder for every step, so that a step finds what the one before it has
//! built. A nested cargo must not see the variables that `cargo run` has set for xtask itself: they
//! would count as changes of the environment and rebuild things.

use anyhow::{Context as _, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which build of the binary.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// `[profile.ci]` of the root manifest, used by every test.
    Ci,
    /// What users run.
    Release,
}

impl Profile {
    /// The profile's name, which is also its folder's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ci => "ci",
            Self::Release => "release",
        }
    }
}

/// A folder under the user's home where tools and builds outlive a checkout.
pub(crate) fn cache(name: &str) -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    home.join(".cache").join(name)
}

/// Where the build of a profile goes. The tests' own builds stay out of the checkout, so that a fresh
/// clone finds the dependencies of the last one; a release build is where a user would look for it.
pub(crate) fn target_dir(root: &Path, profile: Profile) -> PathBuf {
    match (std::env::var_os("CARGO_TARGET_DIR"), profile) {
        (Some(dir), _) => root.join(dir),
        (None, Profile::Ci) => cache("homing-target"),
        (None, Profile::Release) => root.join("target"),
    }
}

/// The `homing` binary of a profile.
pub(crate) fn binary(root: &Path, profile: Profile) -> PathBuf {
    target_dir(root, profile).join(profile.name()).join("homing")
}

/// A program to be run in `dir`, free of the variables that cargo set for xtask.
pub(crate) fn program(dir: &Path, name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(dir);
    for (key, _) in std::env::vars_os() {
        let text = key.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

/// Cargo in the workspace, with the target folder of the tests.
pub(crate) fn cargo(root: &Path, profile: Profile) -> Command {
    let mut command = program(root, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.env("CARGO_TARGET_DIR", target_dir(root, profile));
    command
}

/// Builds every binary of the workspace. The whole workspace, because building the one package alone
/// would choose other features for shared dependencies and build them twice.
pub(crate) fn build(root: &Path, profile: Profile) -> Result<()> {
    let mut command = cargo(root, profile);
    command.args(["build", "--workspace", "--bins", "--profile", profile.name()]);
    must_run(&mut command)
}

/// Runs a program to its end, its output going where ours goes; not succeeding is an error.
pub(crate) fn must_run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status})");
    Ok(())
}

/// True if the program starts and says that it succeeded; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The command as one would type it, without its variables.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    if let Some(first) = words.first_mut()
        && let Some(name) = Path::new(first.as_str()).file_name()
    {
        *first = name.to_string_lossy().into_owned();
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_an_error_that_names_it() {
        let root = std::env::temp_dir();
        let error = must_run(program(&root, "sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("sh -c exit 3"), "{error}");
        assert!(must_run(program(&root, "sh").args(["-c", "exit 0"])).is_ok());
        let error = must_run(&mut program(&root, "homing-no-such-program")).unwrap_err();
        assert!(error.to_string().contains("cannot start"), "{error}");
    }

    #[test]
    fn a_nested_program_does_not_see_the_variables_of_this_package() {
        // cargo sets CARGO_MANIFEST_DIR for tests as it does for `cargo run`
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let root = std::env::temp_dir();
        let output =
            program(&root, "sh").args(["-c", "echo \"$CARGO_MANIFEST_DIR\""]).output().unwrap();
        assert_eq!(output.stdout, b"\n");
    }
}
