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
