//! A client's chat, in each API's form, through template and tokenizer: it is rendered or refused, and from the
//! cache it has the same tokens as without.
#![no_main]

use homing_core::hash::{HashSpace, Prompt};
use homing_prompt::{ChatBody, ModelPrompt};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static MODEL: LazyLock<ModelPrompt> = LazyLock::new(ModelPrompt::builtin);

fuzz_target!(|data: &[u8]| {
    let from = [
        ChatBody::parse(data),
        ChatBody::from_responses(data),
        ChatBody::from_messages(data, MODEL.habits()),
    ];
    from.into_iter().flatten().for_each(|body| alike(&body));
});

fn alike(body: &ChatBody) {
    let Ok(input) = body.input(None) else { return };
    let space = HashSpace::default();
    match (MODEL.encode_chat(&input), MODEL.chat_prompt(&input, 4, space)) {
        (Ok(plain), Ok(cached)) => assert_eq!(Prompt::from_tokens(&plain, 4, space), cached),
        (Err(_), Err(_)) => {}
        (plain, cached) => panic!("{plain:?} and {cached:?}"),
    }
}
