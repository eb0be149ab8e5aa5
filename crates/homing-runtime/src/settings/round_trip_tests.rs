//! The printout loads again, the page is the table's, and no input makes loading panic.

use super::tests::{flag, load, sources};
use super::*;
use proptest::prelude::*;

/// The values without their origins.
fn values(settings: &Settings) -> Vec<(String, String)> {
    settings.effective().iter().map(|line| (line.key.clone(), line.value.clone())).collect()
}

fn loads_again(settings: &Settings) {
    let page = settings.effective_toml();
    let again = Settings::load(sources(&page)).unwrap_or_else(|e| panic!("{e}\n{page}"));
    assert_eq!(values(&again), values(settings));
    let plain = |s: &Settings| {
        let mut s = s.clone();
        s.effective.clear();
        format!("{s:?}")
    };
    assert_eq!(plain(&again), plain(settings));
}

#[test]
fn the_effective_configuration_loads_again() {
    loads_again(&Settings::load(Sources::default()).unwrap());
    loads_again(&load(
        "[gateway]\nrecord = \"\"\n[gateway.tls]\ncert = \"\"\n[affinity]\nttl = \"off\"\n\
         [[models]]\nname = \"a \\\"b\\\"\"\nchat_template_kwargs = { a = { b = [1.0, {}] } }\n\
         [[models]]\nname = \"c\"\n\
         [[workers]]\nid = \"x\"\nurl = \"http://h:1/b\"\nweight = 1.0\nlabels = { \"z.z\" = \"1\" }\n\
         [[workers]]\nurl = \"http://h:2\"\n",
    ));
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = reference_markdown();
    if std::env::var_os("HOMING_UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written == page,
        "docs/configuration.md differs from the key table; run the tests of homing-runtime once \
         with HOMING_UPDATE_DOCS=1"
    );
}

/// A key's name, a slip of one, or anything.
fn some_key() -> impl Strategy<Value = String> {
    let known = || (0..KEYS.len()).prop_map(|at| KEYS[at].path.to_owned());
    prop_oneof![
        6 => known(),
        1 => known().prop_map(|key| key[1..].to_owned()),
        1 => "[a-z_.\"]{0,12}",
        1 => any::<String>(),
    ]
}

/// A value that some key takes, or anything.
fn some_value() -> impl Strategy<Value = String> {
    let default = (0..KEYS.len()).prop_map(|at| KEYS[at].default.to_owned());
    prop_oneof![
        3 => default.clone(),
        3 => default.prop_map(|text| value::quote(&text)),
        2 => any::<i64>().prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_map(|n| n.to_string()),
        1 => any::<String>().prop_map(|text| value::quote(&text)),
        1 => any::<String>(),
        1 => Just("{ a = \"b\", c = [1, 2.5, true] }".to_owned()),
        1 => Just("[\"a\", \"b\"]".to_owned()),
        1 => "[0-9]{1,12} ?(ns|us|ms|s|m|h|d|y|KiB|MB|GiB|B)".prop_map(|text| value::quote(&text)),
    ]
}

fn some_file() -> impl Strategy<Value = String> {
    let line = (some_key(), some_value()).prop_map(|(key, value)| match key.rsplit_once('.') {
        Some((section @ ("workers" | "models"), name)) => {
            format!("[[{section}]]\nurl = \"http://h:1\"\nname = \"m\"\n{name} = {value}\n")
        }
        Some((section, name)) => format!("[{section}]\n{name} = {value}\n"),
        None => format!("{key} = {value}\n"),
    });
    prop_oneof![
        4 => proptest::collection::vec(line, 0..4).prop_map(|lines| lines.concat()),
        1 => any::<String>(),
        1 => "[\\[\\]{}=\"'a-z0-9.,# \\n]{0,60}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_what_loads_loads_again(
        file in some_file(),
        env in proptest::collection::vec((some_key(), some_value()), 0..3),
        flags in proptest::collection::vec((some_key(), some_value()), 0..3),
    ) {
        let loaded = Settings::load(Sources {
            file: Some((PathBuf::from("f"), file)),
            env: env.into_iter().map(|(key, value)| (raw::env_name(&key), value)),
            overrides: flags.iter().map(|(key, value)| flag(key, value, "--flag")).collect(),
        });
        match loaded {
            Ok(settings) => loads_again(&settings),
            Err(errors) => {
                prop_assert!(errors.problems.iter().all(|p| p.fault != Fault::Internal));
                let raw_controls = errors.to_string().contains(['\u{7}', '\r', '\u{1b}']);
                prop_assert!(!raw_controls);
            }
        }
    }
}
