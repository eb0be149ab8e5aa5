//! Whether the router sees a prompt as its engine does: a tokenizer for each model, and the same tokens.

use crate::doctor::facts::{Engine, Events, Facts, Model, Tokenizer, Tokens};
use crate::doctor::finding::{Finding, Severity};
use std::collections::BTreeMap;

/// Engines of a model that are named; the rest are counted.
const NAMED: usize = 4;

fn finding(about: &str, severity: Severity, code: &'static str, what: String) -> Finding {
    Finding { severity, code, about: about.to_owned(), what, why: "", mend: String::new() }
}

/// What the configuration's models are to the fleet. Where none was given, the router's own are not known.
pub(super) fn models(facts: &Facts) -> Vec<Finding> {
    let Some(models) = &facts.models else { return Vec::new() };
    let mut served: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for engine in &facts.engines {
        for model in &engine.models {
            served.entry(model).or_default().push(&engine.name);
        }
    }
    let all_asked = facts.engines.iter().all(|engine| engine.unreachable.is_none());
    let is_written = |name: &str| models.iter().any(|m| m.name == name);
    // Those that lack a name here, and names that nobody has who answers.
    let nameless: Vec<&str> = served.keys().copied().filter(|name| !is_written(name)).collect();
    let unserved: Vec<&Model> = match served.is_empty() {
        true => Vec::new(),
        false => models.iter().filter(|m| !served.contains_key(&*m.name)).collect(),
    };
    let mut findings: Vec<Finding> = models.iter().filter_map(broken).collect();
    if all_asked {
        let names: Vec<&str> = match nameless.is_empty() {
            true => served.keys().copied().collect(),
            false => nameless.clone(),
        };
        findings.extend(unserved.iter().map(|model| mismatch(model, &names)));
    }
    // A name that is to be corrected is the tokenizer that is missing.
    let corrected = if all_asked { unserved.len() } else { 0 };
    for (name, engines) in &served {
        let known = models.iter().find(|m| m.name == *name);
        let missing = match known {
            Some(known) => known.tokenizer == Tokenizer::Missing,
            None => nameless.len() > corrected,
        };
        if missing {
            let mut found = missing_tokenizer(name, known, engines, &unserved);
            let serves = |engine: &&Engine| engine.models.iter().any(|m| m == name);
            if facts.engines.iter().filter(serves).all(can_be_asked) {
                found.mend.push_str(OR_ENGINE);
            }
            findings.push(found);
        }
    }
    findings
}

/// Behind what is to be written where the engines could be asked instead.
const OR_ENGINE: &str =
    "; without that folder, tokenizer = \"engine\" asks the engines themselves about each prompt";

/// It tells of its cache, and what tokens a prompt has.
fn can_be_asked(engine: &Engine) -> bool {
    engine.tokenizes && matches!(engine.events, Events::Streams { .. } | Events::Polled)
}

fn place(model: &Model) -> String {
    format!("models[{}]", model.at)
}

fn broken(model: &Model) -> Option<Finding> {
    let Tokenizer::Broken(why) = &model.tokenizer else { return None };
    Some(Finding {
        why: "the router doesn't start with it",
        mend: format!(
            "let `tokenizer` of `{}` be a folder with tokenizer.json, tokenizer_config.json and the \
             chat template, as the engine was given",
            model.name
        ),
        ..finding(
            &place(model),
            Severity::Broken,
            "tokenizer_broken",
            format!("its tokenizer can't be loaded: {why}"),
        )
    })
}

fn mismatch(model: &Model, names: &[&str]) -> Finding {
    Finding {
        why: "requests name what the engines serve, so this tokenizer is never used",
        mend: format!("write one of their names: {}", names.join(", ")),
        ..finding(
            &place(model),
            Severity::Missing,
            "model_name_mismatch",
            format!("no engine serves `{}`", model.name),
        )
    }
}

/// Of a model that these engines serve. `unserved`: names of the configuration that may be meant to be its.
fn missing_tokenizer(
    name: &str,
    known: Option<&Model>,
    engines: &[&str],
    unserved: &[&Model],
) -> Finding {
    let more = engines.len().saturating_sub(NAMED);
    let by = engines[..engines.len() - more].join(", ");
    let by =
        if more > 0 { format!("{by} and {more} more serve") } else { format!("{by} serve(s)") };
    let write = "tokenizer = \"FOLDER\", the folder of the model that the engine serves";
    let mend = match (known, unserved.first()) {
        (Some(known), _) => format!("write in {} of `{name}` {write}", place(known)),
        (None, Some(other)) => format!(
            "write [[models]] with name = \"{name}\" and {write}; or, if {} is to be that, name = \"{name}\" there: no \
             engine that answers serves its `{}`",
            place(other),
            other.name
        ),
        (None, None) => format!("write [[models]] with name = \"{name}\" and {write}"),
    };
    Finding {
        why: "its prompts can't become blocks, so they are only compared by their text, which is a guess",
        mend,
        ..finding(
            &known.map_or_else(|| "[[models]]".to_owned(), place),
            Severity::Missing,
            "tokenizer_missing",
            format!("no tokenizer is configured for `{name}`, which {by}"),
        )
    }
}

/// Of one engine: whether the configured tokenizers give its tokens.
pub(super) fn engine(engine: &Engine) -> Vec<Finding> {
    let differing = |(model, tokens): &(String, Tokens)| differing(engine, model, tokens);
    engine.tokens.iter().filter_map(differing).collect()
}

/// F28: the index never hits, and nobody is told.
fn differing(engine: &Engine, model: &str, tokens: &Tokens) -> Option<Finding> {
    const WHY: &str =
        "the router looks for blocks that the engine never has: nothing is found to be cached";
    Some(match tokens {
        Tokens::Same | Tokens::Theirs => return None,
        Tokens::NotTheirs(why) => Finding {
            why: "its prompts can't become blocks, so they are only compared by their text, which is a guess",
            mend: format!(
                "let `tokenizer` of `{model}` be the folder that the engine was started with: not every engine answers \
                 `/tokenize` about texts and chats"
            ),
            ..finding(
                &engine.name,
                Severity::Missing,
                "tokenize_unanswered",
                format!("it is to be asked for the tokens of `{model}`, and doesn't tell: {why}"),
            )
        },
        Tokens::TextDiffers => Finding {
            why: WHY,
            mend: format!("let `tokenizer` of `{model}` be the folder that the engine was started with"),
            ..finding(
                &engine.name,
                Severity::Broken,
                "tokenizer_differs",
                format!("its tokens of plain text for `{model}` are not the configured tokenizer's"),
            )
        },
        Tokens::ChatDiffers { at, ours, theirs } => Finding {
            why: WHY,
            mend: format!(
                "let chat_template.jinja in the `tokenizer` folder of `{model}` be the one that the engine uses \
                 (its --chat-template, if it has that), and `chat_template_kwargs` what it was started with"
            ),
            ..finding(
                &engine.name,
                Severity::Broken,
                "template_differs",
                format!(
                    "its chat of `{model}` differs from token {at} on ({theirs} tokens, and {ours} here)"
                ),
            )
        },
        Tokens::Unknown(why) => Finding {
            why: "whether the router sees prompts as the engine does could not be looked at",
            mend: "nothing, unless cached tokens are predicted wrongly: compare `predicted` with `cached_tokens` \
                   in the access log"
                .to_owned(),
            ..finding(
                &engine.name,
                Severity::Note,
                "tokens_unknown",
                format!("its tokens for `{model}` can't be asked for: {why}"),
            )
        },
    })
}
