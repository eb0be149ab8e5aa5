//! A configuration file: it is taken, or each of its problems is told.
#![no_main]

use homing_runtime::settings::{Settings, Sources};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = Some(("fuzz.toml".into(), text.to_owned()));
    if let Err(problems) = Settings::load(Sources { file, ..Sources::default() }) {
        assert!(!problems.to_string().is_empty());
    }
});
