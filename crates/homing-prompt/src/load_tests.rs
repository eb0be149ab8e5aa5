//! Loading: what each file may hold, and errors that name the file.

use std::path::PathBuf;

use serde_json::json;

use super::*;

/// A temporary model folder that removes itself.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("homing-load-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (name, content) in files {
            std::fs::write(path.join(name), content).unwrap();
        }
        Self(path)
    }

    fn load(&self) -> Result<ModelPrompt, LoadError> {
        ModelPrompt::load(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TOKENIZER: &str = include_str!("../../../assets/tokenizer/tokenizer.json");

fn chat(model: &ModelPrompt) -> Result<String, PromptError> {
    let messages = json!([{ "role": "user", "content": "x" }]);
    model.render_chat(&ChatInput::new(&messages))
}

#[test]
fn the_assets_as_a_folder_equal_the_built_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tokenizer");
    let (loaded, builtin) = (ModelPrompt::load(&folder).unwrap(), ModelPrompt::builtin());
    assert_eq!(chat(&loaded).unwrap(), chat(&builtin).unwrap());
    assert_eq!(loaded.vocab_size(), builtin.vocab_size());
    assert!(loaded.eos_id().is_some() && loaded.has_template());
}

#[test]
fn a_tokenizer_alone_encodes_but_has_no_chats() {
    let model = Folder::new("alone", &[("tokenizer.json", TOKENIZER)]).load().unwrap();
    assert!(!model.has_template());
    assert!(matches!(chat(&model), Err(PromptError::NoTemplate)));
    assert!(model.encode_completion(&json!("x"), crate::Specials::Add).is_ok());
}

#[test]
fn templates_come_from_the_file_then_the_configuration() {
    let string = r#"{"chat_template": "config {{ bos_token }} {{ eos_token }}", "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": true}, "unk_token": null}"#;
    let folder =
        Folder::new("string", &[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", string)]);
    assert_eq!(chat(&folder.load().unwrap()).unwrap(), "config <s> </s>");
    std::fs::write(folder.0.join("chat_template.jinja"), "file {{ bos_token }}").unwrap();
    assert_eq!(chat(&folder.load().unwrap()).unwrap(), "file <s>");
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
    let folder =
        Folder::new("named", &[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", named)]);
    assert_eq!(chat(&folder.load().unwrap()).unwrap(), "d");
}

#[test]
fn truncation_and_padding_of_the_file_do_not_apply() {
    let mut json: Value = serde_json::from_str(TOKENIZER).unwrap();
    json["truncation"] =
        json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
    json["padding"] = json!({ "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!" });
    let folder = Folder::new("settings", &[("tokenizer.json", &json.to_string())]);
    let ids = folder.load().unwrap().encode_text("a\nb\nc\n", crate::Specials::Omit).unwrap();
    assert_eq!(ids.len(), 6);
}

#[test]
fn errors_name_the_file() {
    /// Name, files, the file that is to blame, and a word about it.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a str);
    let cases: [Case<'_>; 9] = [
        ("none", &[], "tokenizer.json", "cannot read"),
        ("bad", &[("tokenizer.json", "{}")], "tokenizer.json", "not a usable tokenizer"),
        ("text", &[("tokenizer.json", "hello")], "tokenizer.json", "not a usable tokenizer"),
        (
            "config",
            &[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", "[]")],
            "tokenizer_config.json",
            "invalid type",
        ),
        (
            "token",
            &[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", r#"{"bos_token": 3}"#)],
            "tokenizer_config.json",
            "bos_token",
        ),
        (
            "template",
            &[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", r#"{"chat_template": 3}"#)],
            "tokenizer_config.json",
            "neither a string nor a list",
        ),
        (
            "item",
            &[
                ("tokenizer.json", TOKENIZER),
                ("tokenizer_config.json", r#"{"chat_template": [{"name": "x"}]}"#),
            ],
            "tokenizer_config.json",
            "chat_template[0]",
        ),
        (
            "parse",
            &[("tokenizer.json", TOKENIZER), ("chat_template.jinja", "\n{% for %}")],
            "chat_template.jinja",
            "(in default:2)",
        ),
        (
            "parse-config",
            &[
                ("tokenizer.json", TOKENIZER),
                ("tokenizer_config.json", r#"{"chat_template": "{{"}"#),
            ],
            "tokenizer_config.json",
            "does not parse",
        ),
    ];
    for (name, files, file, what) in cases {
        let error = Folder::new(name, files).load().unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(what), "{name}: {error}");
    }
}

#[test]
fn files_over_the_limit_are_not_read_whole() {
    let folder = Folder::new("large", &[("tokenizer.json", TOKENIZER)]);
    let file = File::create(folder.0.join("chat_template.jinja")).unwrap();
    file.set_len(CONFIG_LIMIT + 1).unwrap();
    let error = folder.load().unwrap_err();
    assert!(matches!(error, LoadError::TooLarge { limit: CONFIG_LIMIT, .. }), "{error}");
}
