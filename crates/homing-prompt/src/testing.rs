//! For tests: real models of `shared/data`, which the project may not carry.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ModelPrompt;

/// A path under `shared/data`.
pub(crate) fn shared(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(path)
}

/// A real tokenizer by its folder's name; says so and is `None` where the data (or python3) is
/// absent. Its `tokenizer.json` is gzipped: we have no gzip among our dependencies, but Python
/// does.
pub(crate) fn real_model(name: &str) -> Option<ModelPrompt> {
    let folder = shared(&format!("tokenizers/{name}"));
    if !folder.is_dir() {
        eprintln!("SKIPPED: {} is absent", folder.display());
        return None;
    }
    // Tests run as threads of one process, so the process alone would not make the name unique.
    let thread = std::thread::current().id();
    let pid = std::process::id();
    let out = std::env::temp_dir().join(format!("homing-prompt-{name}-{pid}-{thread:?}"));
    std::fs::create_dir_all(&out).unwrap();
    std::fs::copy(folder.join("tokenizer_config.json"), out.join("tokenizer_config.json")).unwrap();
    let script = "import gzip, shutil, sys\n\
        with gzip.open(sys.argv[1]) as a, open(sys.argv[2], 'wb') as b: shutil.copyfileobj(a, b)";
    let unpacked = Command::new("python3")
        .args(["-c", script])
        .arg(folder.join("tokenizer.json.gz"))
        .arg(out.join("tokenizer.json"))
        .status();
    if !unpacked.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no python3 to unpack {}", folder.display());
        return None;
    }
    let model = ModelPrompt::load(&out).unwrap();
    std::fs::remove_dir_all(&out).unwrap();
    Some(model)
}

/// The bodies of the recorded requests to a path (with any query), by file: those of `testdata`, and of `shared` where
/// it is there.
pub(crate) fn recordings(path: &str) -> Vec<(String, Vec<u8>)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/client-requests");
    let mut found = std::collections::BTreeMap::new();
    for file in [own, shared("client-requests")].iter().filter_map(|d| d.read_dir().ok()).flatten()
    {
        let file = file.unwrap().path();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = if name.ends_with(".http") { std::fs::read(&file).unwrap() } else { continue };
        let split = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let target = String::from_utf8_lossy(&bytes[..split]).split(' ').nth(1).unwrap().to_owned();
        if target.split('?').next() == Some(path) {
            found.insert(name, bytes[split + 4..].to_vec());
        }
    }
    found.into_iter().collect()
}
