//! `cargo xtask dist`: what is handed to users, made of the release binary and the files in `dist/`.
//!
//! A Debian package, an archive for everybody else, and the checksums of both. The packages are staged as a folder and
//! packed by the system's own `dpkg-deb` and `tar`; file times are the commit's, so that the same commit and the
//! same binary make the same bytes.

use crate::cargo::{Profile, binary, build, must_run, program, succeeds};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A binary that is built already, instead of a release build.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Where the packages go.
    #[arg(long, value_name = "FOLDER", default_value = "target/dist")]
    out: PathBuf,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What of the checkout goes where: into the Debian package, and into the archive. A folder brings its files.
const FILES: [(&str, &str, &str); 10] = [
    ("dist/systemd/homing.service", "usr/lib/systemd/system/homing.service", "homing.service"),
    ("dist/systemd/homing.socket", "usr/lib/systemd/system/homing.socket", "homing.socket"),
    ("dist/homing.toml", "etc/homing/homing.toml", "homing.toml"),
    ("dist/grafana", "usr/share/homing/grafana", "grafana"),
    ("dist/prometheus", "usr/share/homing/prometheus", "prometheus"),
    ("docs", "usr/share/doc/homing", "docs"),
    ("NOTICE", "usr/share/doc/homing/NOTICE", "NOTICE"),
    ("CHANGELOG.md", "usr/share/doc/homing/CHANGELOG.md", "CHANGELOG.md"),
    ("README.md", "usr/share/doc/homing/README.project.md", "README.md"),
    ("LICENSE", "", "LICENSE"),
];
/// The package's own scripts and lists.
const CONTROL: [&str; 4] = ["conffiles", "postinst", "prerm", "postrm"];

/// Builds the binary if need be, and the packages.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let binary = match &args.binary {
        Some(given) => given.canonicalize().context("--binary")?,
        None => {
            build(root, Profile::Release)?;
            binary(root, Profile::Release)
        }
    };
    make(root, &binary, &root.join(&args.out))
}

/// Whether this machine can make the packages.
pub(crate) fn possible(root: &Path) -> bool {
    succeeds(program(root, "dpkg-deb").arg("--version"))
}

/// Makes every package of a binary in the folder `out`, which is emptied first.
pub(crate) fn make(root: &Path, binary: &Path, out: &Path) -> Result<()> {
    ensure!(binary.exists(), "{} is not built", binary.display());
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    let staged = out.join("staged");
    let packed = [deb(root, binary, &staged, out)?, archive(root, binary, &staged, out)?];
    fs::remove_dir_all(&staged)?;
    let sums = output(program(out, "sha256sum").args(&packed))?;
    write(&out.join("SHA256SUMS"), &sums, 0o644)?;
    print!("in {}:\n{sums}", out.display());
    Ok(())
}

/// The Debian package; its name.
fn deb(root: &Path, binary: &Path, staged: &Path, out: &Path) -> Result<String> {
    let arch = output(program(root, "dpkg-deb").arg("--version"))
        .and_then(|_| output(program(root, "dpkg").arg("--print-architecture")))?;
    let (tree, arch) = (staged.join("deb"), arch.trim());
    copy(binary, &tree.join("usr/bin/homing"), 0o755)?;
    for (from, to, _) in FILES.iter().filter(|(_, to, _)| !to.is_empty()) {
        copy_all(&root.join(from), &tree.join(to))?;
    }
    copy_all(&root.join("dist/debian/copyright"), &tree.join("usr/share/doc/homing/copyright"))?;
    let man = tree.join("usr/share/man/man1/homing.1");
    write(&man, &filled(root, "dist/homing.1", &[("VERSION", VERSION)])?, 0o644)?;
    must_run(program(root, "gzip").arg("-9n").arg(&man))?;

    let size = output(program(&tree, "du").args(["-sk", "."]))?;
    let size = size.split_whitespace().next().unwrap_or("0");
    let glibc = oldest_glibc(&fs::read(binary)?).context("the binary names no glibc")?;
    let known = [("VERSION", VERSION), ("ARCH", arch), ("SIZE", size), ("GLIBC", glibc.as_str())];
    let control = filled(root, "dist/debian/control", &known)?;
    let sums = output(
        program(&tree, "sh")
            .args(["-c", "find etc usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum"]),
    )?;
    write(&tree.join("DEBIAN/control"), &control, 0o644)?;
    write(&tree.join("DEBIAN/md5sums"), &sums, 0o644)?;
    for name in CONTROL {
        let mode = if name == "conffiles" { 0o644 } else { 0o755 };
        copy(&root.join("dist/debian").join(name), &tree.join("DEBIAN").join(name), mode)?;
    }
    let name = format!("homing_{VERSION}_{arch}.deb");
    must_run(
        program(root, "dpkg-deb")
            .args(["--root-owner-group", "--build", "-Zxz"])
            .arg(&tree)
            .arg(out.join(&name))
            .env("SOURCE_DATE_EPOCH", epoch(root)),
    )?;
    Ok(name)
}

/// The archive; its name.
fn archive(root: &Path, binary: &Path, staged: &Path, out: &Path) -> Result<String> {
    let folder = format!("homing-{VERSION}");
    let tree = staged.join(&folder);
    copy(binary, &tree.join("homing"), 0o755)?;
    for (from, _, to) in FILES {
        copy_all(&root.join(from), &tree.join(to))?;
    }
    let man = filled(root, "dist/homing.1", &[("VERSION", VERSION)])?;
    write(&tree.join("homing.1"), &man, 0o644)?;
    let name = format!("{folder}-linux-{}.tar.gz", std::env::consts::ARCH);
    must_run(
        program(staged, "tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", epoch(root)))
            .args(["-I", "gzip -9n", "-cf"])
            .arg(out.join(&name))
            .arg(&folder),
    )?;
    Ok(name)
}

/// A template's text with each `@NAME@` filled in.
fn filled(root: &Path, template: &str, values: &[(&str, &str)]) -> Result<String> {
    let path = root.join(template);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(values.iter().fold(text, |text, (name, value)| text.replace(&format!("@{name}@"), value)))
}

/// When the commit was made, in Unix seconds: the time of every file in a package. 0 outside a checkout.
fn epoch(root: &Path) -> String {
    let time = output(program(root, "git").args(["log", "-1", "--format=%ct"]));
    time.map_or_else(|_| "0".to_owned(), |time| time.trim().to_owned())
}

/// The oldest glibc that a binary runs with: the highest version that it names of a symbol (`GLIBC_2.34`).
fn oldest_glibc(binary: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"GLIBC_2.";
    let minor = binary.windows(NAME.len() + 2).filter(|bytes| bytes.starts_with(NAME));
    let numbers = minor.filter_map(|bytes| {
        let digits: String = bytes[NAME.len()..]
            .iter()
            .map(|b| char::from(*b))
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse::<u32>().ok()
    });
    numbers.max().map(|minor| format!("2.{minor}"))
}

/// A file, or the files of a folder, readable by everybody.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        return copy(from, to, 0o644);
    }
    let entries = fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        copy_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    set_mode(to, mode)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    make_parent(path)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    set_mode(path, mode)
}

/// Folders too have the modes that the package gives them, whatever this user's umask is.
fn make_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    if !parent.exists() {
        make_parent(parent)?;
        fs::create_dir(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        set_mode(parent, 0o755)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

/// What a program prints, which must succeed.
fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?} failed: {}", error.trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_glibc_that_is_named_is_the_oldest_that_will_do() {
        let binary = b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0GLIBCXX_3.4.99\0GLIBC_PRIVATE\0";
        assert_eq!(oldest_glibc(binary).as_deref(), Some("2.34"));
        assert_eq!(oldest_glibc(b"nothing"), None);
    }

    #[test]
    fn everything_that_is_packed_is_in_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let control = CONTROL.map(|name| format!("dist/debian/{name}"));
        let files = FILES.iter().map(|(from, ..)| *from).chain(control.iter().map(String::as_str));
        for file in files {
            assert!(root.join(file).exists(), "{file}");
        }
    }
}
