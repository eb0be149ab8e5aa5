//! `cargo xtask fuzz`: the libFuzzer targets of `fuzz/`, on the stable compiler and without a tool of their own.
//!
//! What cargo-fuzz would do without a sanitizer: the whole graph is built with coverage counters
//! ([`COUNTERS`]), for a named target, since build scripts must not have them. Inputs begin with what the project
//! has from real peers; what libFuzzer finds worth keeping stays in `~/.cache/homing-fuzz` from run to run.

use crate::cargo::{Profile, cache, cargo, must_run, program};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// What makes rustc count edges and comparisons as libFuzzer reads them.
const COUNTERS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// A target, and the feature of `fuzz/` that it needs.
const TARGETS: [(&str, &str); 11] = [
    ("kv_events", ""),
    ("frames", ""),
    ("zmtp", ""),
    ("requests", ""),
    ("sse", ""),
    ("engine", ""),
    ("replica", ""),
    ("chats", "prompt"),
    ("settings", "runtime"),
    ("snapshot", "runtime"),
    ("headers", "hosts"),
];

/// The longest input: a capture of a whole stream fits.
const LONGEST: &str = "-max_len=131072";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each target runs; 0: its inputs once, and no new ones
    #[arg(long, value_name = "N", default_value_t = 60)]
    secs: u32,
    /// Which ones; all by default
    #[arg(value_name = "TARGET",
          value_parser = clap::builder::PossibleValuesParser::new(TARGETS.map(|(name, _)| name)))]
    targets: Vec<String>,
}

/// Builds and runs them; fails with the first that finds something.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    let wanted = |name: &str| args.targets.is_empty() || args.targets.iter().any(|t| t == name);
    let targets: Vec<_> = TARGETS.into_iter().filter(|(name, _)| wanted(name)).collect();
    let host = host(root)?;
    let home = cache("homing-fuzz");
    let built = home.join("target");
    for (name, feature) in &targets {
        let mut build = cargo(root, Profile::Release);
        build.current_dir(root.join("fuzz")).env("RUSTFLAGS", COUNTERS);
        build.env("CARGO_TARGET_DIR", &built);
        build.args(["build", "--release", "--locked", "--target", &host, "--bin", name]);
        must_run(build.args(["--features", feature]))?;
    }
    for (name, _) in &targets {
        let (corpus, seeds) = (home.join("corpus").join(name), home.join("seeds").join(name));
        let found = home.join("found").join(name);
        for folder in [&corpus, &found] {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let count = write_seeds(root, name, &seeds).with_context(|| format!("seeds of {name}"))?;
        ensure!(count > 0, "{name} has no seeds");
        let binary = built.join(&host).join("release").join(name);
        let mut fuzzer = program(root, &binary);
        fuzzer.args([LONGEST, "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
        fuzzer.arg(if args.secs == 0 { "-runs=0".into() } else { time(args.secs) });
        fuzzer.arg(format!("-artifact_prefix={}/", found.display())).arg(corpus).arg(seeds);
        if must_run(&mut fuzzer).is_err() {
            bail!(
                "{name} found something: `{} INPUT` shows it again; make a test of it first",
                binary.display()
            );
        }
    }
    println!("{} targets found nothing", targets.len());
    Ok(true)
}

fn time(secs: u32) -> String {
    format!("-max_total_time={secs}")
}

/// The platform that we are on, as rustc calls it.
fn host(root: &Path) -> Result<String> {
    let output = program(root, "rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("rustc -vV names no host")
}

/// Writes what the project has for a target into a folder of its own; how many there are.
fn write_seeds(root: &Path, target: &str, folder: &Path) -> Result<usize> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let seeds = match target {
        "kv_events" | "frames" => captures(root)?,
        "requests" | "chats" => bodies(root)?,
        "headers" => heads(root)?,
        "settings" => examples(root)?,
        "engine" => read(&files(&root.join("testdata"), ".metrics.prom")?)?,
        _ => vec![],
    };
    let own = root.join("fuzz/seeds").join(target);
    let own = if own.exists() { read(&files(&own, "")?)? } else { vec![] };
    let all = seeds.into_iter().chain(own);
    let mut count = 0;
    for seed in all {
        fs::write(folder.join(format!("{count:04}")), seed)?;
        count += 1;
    }
    Ok(count)
}

/// Streams of real publishers, each payload alone, and what replay sockets answered.
fn captures(root: &Path) -> Result<Vec<Vec<u8>>> {
    let folder = root.join("testdata/kv-events");
    let mut seeds = read(&files(&folder, ".frames.bin")?)?;
    for text in read(&files(&folder, ".json")?)? {
        let golden: Value = serde_json::from_slice(&text)?;
        for message in ["live", "frames"].iter().filter_map(|key| golden[key].as_array()).flatten()
        {
            seeds.extend(message["frames_hex"][2].as_str().and_then(unhex));
        }
        for replies in golden["replay"].as_object().into_iter().flat_map(|all| all.values()) {
            let replies = replies.as_array().into_iter().flatten().filter_map(Value::as_array);
            seeds.push(replies.flat_map(|frames| packed(frames)).collect());
        }
    }
    Ok(seeds)
}

/// A message in the form of the `.frames.bin` files.
fn packed(frames: &[Value]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(frames.len()).unwrap_or(u8::MAX)];
    for frame in frames.iter().filter_map(|frame| unhex(frame.as_str()?)) {
        bytes.extend(u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let byte = |i| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Bodies that real clients sent.
fn bodies(root: &Path) -> Result<Vec<Vec<u8>>> {
    let requests = read(&files(&root.join("testdata/client-requests"), ".http")?)?;
    let end = |request: &[u8]| request.windows(4).position(|four| four == b"\r\n\r\n");
    let body = |request: Vec<u8>| Some(request[end(&request)? + 4..].to_vec());
    Ok(requests.into_iter().filter_map(body).filter(|body| !body.is_empty()).collect())
}

/// The heads of their requests, behind what says who sends it and how.
fn heads(root: &Path) -> Result<Vec<Vec<u8>>> {
    let requests = read(&files(&root.join("testdata/client-requests"), ".http")?)?;
    let head = |request: &Vec<u8>| {
        let lines = request.windows(2).position(|two| two == b"\r\n")? + 2;
        let end = request.windows(4).position(|four| four == b"\r\n\r\n")? + 2;
        Some([&[0], request.get(lines..end)?].concat())
    };
    Ok(requests.iter().filter_map(head).collect())
}

/// The configuration files that the documentation shows.
fn examples(root: &Path) -> Result<Vec<Vec<u8>>> {
    let mut shown = vec![];
    for page in read(&files(&root.join("docs"), ".md")?)? {
        let page = String::from_utf8(page)?;
        let blocks = page.split("```toml\n").skip(1);
        shown.extend(blocks.filter_map(|rest| Some(rest.split_once("```")?.0.as_bytes().to_vec())));
    }
    Ok(shown)
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let one =
        |path: &PathBuf| fs::read(path).with_context(|| format!("reading {}", path.display()));
    paths.iter().map(one).collect()
}

/// The files below a folder whose names end so, in the order of their names.
fn files(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, end)?);
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds_and_its_source() {
        let root = crate::root().unwrap();
        let folder = std::env::temp_dir().join(format!("homing-seeds-{}", std::process::id()));
        for (name, _) in TARGETS {
            assert!(root.join(format!("fuzz/targets/{name}.rs")).exists(), "{name}");
            assert!(write_seeds(&root, name, &folder).unwrap() > 0, "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn frames_are_packed_as_the_captures_are() {
        let frames = [Value::from(""), Value::from("0aff")];
        assert_eq!(packed(&frames), [2, 0, 0, 0, 0, 0, 0, 0, 2, 0x0a, 0xff]);
        assert_eq!((unhex("0g"), unhex("0")), (None, None));
    }
}
