//! Makes the Rust of our `.proto` files, and commits it: nobody who builds Homing needs a compiler of protocol
//! buffers, not even the one that is used here (`protox`, which is Rust).
//!
//! That compiler and what it brings are behind the feature `codegen`, so that the other routines don't wait for
//! them: without it this calls xtask once more, with it.

use anyhow::Result;
use std::path::Path;

/// Writes what the compiler makes; with `check` it fails where something else is in the tree.
#[cfg(not(feature = "codegen"))]
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    use crate::cargo::{Profile, cargo, must_run};
    let mut again = cargo(root, Profile::Ci);
    // It runs for a moment: minutes of optimizing would be wasted.
    again.args(["run", "--quiet", "--package", "xtask", "--features", "codegen"]);
    again.env("CARGO_PROFILE_DEV_DEBUG", "0");
    must_run(again.args(["--", "codegen"]).args(check.then_some("--check")))
}

/// Writes what the compiler makes; with `check` it fails where something else is in the tree.
#[cfg(feature = "codegen")]
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    use anyhow::Context as _;
    for (proto, target) in FILES {
        let made = made(&root.join(proto)).with_context(|| format!("{proto} can't be used"))?;
        let path = root.join(target);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == made) {
            continue;
        }
        anyhow::ensure!(
            !check,
            "{target} is not what {proto} makes; run `cargo xtask codegen` and commit the result"
        );
        std::fs::write(&path, made).with_context(|| format!("can't write {target}"))?;
        println!("wrote {target}");
    }
    Ok(())
}

/// Sources, and what is made of them.
#[cfg(feature = "codegen")]
const FILES: [(&str, &str); 1] =
    [("crates/homing-backends/proto/etcd.proto", "crates/homing-backends/src/etcd/generated.rs")];

/// The Rust of one file: its messages, and the clients of its services.
#[cfg(feature = "codegen")]
fn made(proto: &Path) -> Result<String> {
    use anyhow::Context as _;
    let folder = proto.parent().context("it has no folder")?;
    let set = protox::compile([proto], [folder])?;
    let package = set.file.first().context("it is empty")?.package().to_owned();
    let out = std::env::temp_dir().join(format!("homing-codegen-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let build = || -> Result<String> {
        tonic_prost_build::configure()
            .build_server(false)
            .build_transport(false)
            .emit_rerun_if_changed(false)
            .bytes(".")
            .out_dir(&out)
            .compile_fds(set)?;
        Ok(std::fs::read_to_string(out.join(format!("{package}.rs")))?)
    };
    let text = build();
    // best effort: what stays behind is in the folder for that
    let _ = std::fs::remove_dir_all(&out);
    Ok(format!(
        "//! Messages and clients of `proto/etcd.proto`. Made by `cargo xtask codegen`: change that file, not this one.\n\n{}",
        text?
    ))
}
