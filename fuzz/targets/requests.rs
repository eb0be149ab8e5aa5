//! The views of a client's request: whatever it sends, each reads it or says why not, and all agree on what they
//! share.
#![no_main]

use homing_wire::request::{BodyPaths, ChatView, CommonView, CompletionView, PromptInput};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static PATHS: LazyLock<BodyPaths> = LazyLock::new(|| {
    BodyPaths::parse(&["session_id", "metadata.user_id", "a.b.c"]).expect("they are paths")
});

fuzz_target!(|data: &[u8]| {
    let common = CommonView::parse(data, &PATHS);
    if let Ok(chat) = ChatView::parse(data, &PATHS) {
        let common = common.as_ref().expect("a chat is a request");
        assert_eq!(format!("{common:?}"), format!("{:?}", chat.common));
        let mut pieces = 0usize;
        chat.opening().read(|_, piece| pieces += piece.len());
        assert!(pieces <= 2 * data.len() + 64, "an opening is no longer than what was sent");
    }
    if let Ok(completion) = CompletionView::parse(data, &PATHS) {
        let common = common.as_ref().expect("a completion is a request");
        assert_eq!(format!("{common:?}"), format!("{:?}", completion.common));
        if let Some(prompt) = completion.prompt {
            let _ = PromptInput::parse(prompt);
        }
    }
    if common.is_ok() {
        assert!(serde_json::from_slice::<serde_json::Value>(data).is_ok(), "it is JSON");
    }
});
