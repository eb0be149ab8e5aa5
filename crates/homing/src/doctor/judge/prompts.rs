//! Whether the router sees a prompt as its engine does: a tokenizer for each model, and the same tokens.

use crate::doctor::facts::{Engine, Facts, Tokenizer, Tokens};
use crate::doctor::finding::{Finding, Severity};

fn finding(about: &str, severity: Severity, code: &'static str, what: String) -> Finding {
    Finding { severity, code, about: about.to_owned(), what, why: "", mend: String::new() }
}

/// What the configuration's models are to the fleet.
pub(super) fn models(facts: &Facts) -> Vec<Finding> {
    let Some(models) = &facts.models else { return Vec::new() };
    let served: Vec<&str> =
        facts.engines.iter().flat_map(|e| &e.models).map(String::as_str).collect();
    let all_asked = facts.engines.iter().all(|engine| engine.unreachable.is_none());
    let mut findings = Vec::new();
    for model in models {
        let place = format!("models[{}]", model.at);
        if let Tokenizer::Broken(why) = &model.tokenizer {
            findings.push(Finding {
                why: "the router doesn't start with it",
                mend: format!(
                    "let `tokenizer` of `{}` be a folder with tokenizer.json, tokenizer_config.json and the \
                     chat template, as the engine was given",
                    model.name
                ),
                ..finding(
                    &place,
                    Severity::Broken,
                    "tokenizer_broken",
                    format!("its tokenizer can't be loaded: {why}"),
                )
            });
        }
        if all_asked && !served.is_empty() && !served.contains(&model.name.as_str()) {
            let mut names: Vec<&str> = served.clone();
            names.dedup();
            findings.push(Finding {
                why: "requests name what the engines serve, so this tokenizer is never used",
                mend: format!("write one of their names: {}", names.join(", ")),
                ..finding(
                    &place,
                    Severity::Missing,
                    "model_name_mismatch",
                    format!("no engine serves `{}`", model.name),
                )
            });
        }
    }
    findings
}

/// Of one engine: whether its models have a tokenizer here, and whether that gives its tokens.
pub(super) fn engine(engine: &Engine, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for model in &engine.models {
        let known = facts.models.as_ref().map(|models| models.iter().find(|m| m.name == *model));
        let unknown = match known {
            // No configuration was given: the router's own is not known.
            None => continue,
            Some(known) => known.is_none_or(|known| known.tokenizer == Tokenizer::Missing),
        };
        if unknown {
            findings.push(Finding {
                why: "its prompts can't become blocks, so they are only compared by their text, which is a guess",
                mend: format!(
                    "write [[models]] with name = \"{model}\" and tokenizer = \"FOLDER\", the folder of the \
                     model that the engine serves"
                ),
                ..finding(
                    &engine.name,
                    Severity::Missing,
                    "tokenizer_missing",
                    format!("no tokenizer is configured for `{model}`"),
                )
            });
        }
    }
    findings.extend(
        engine.tokens.iter().filter_map(|(model, tokens)| differing(engine, model, tokens)),
    );
    findings
}

/// F28: the index never hits, and nobody is told.
fn differing(engine: &Engine, model: &str, tokens: &Tokens) -> Option<Finding> {
    const WHY: &str =
        "the router looks for blocks that the engine never has: nothing is found to be cached";
    Some(match tokens {
        Tokens::Same => return None,
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
