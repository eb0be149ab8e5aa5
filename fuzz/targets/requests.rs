//! The views of a client's request: whatever it sends, each reads it or says why not, and all agree on what they
//! share.
#![no_main]

use homing_wire::request::{
    BodyPaths, ChatView, CommonView, CompletionView, MessagesView, PromptInput, RequestError,
    ResponsesView,
};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use std::collections::HashMap;
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
    if let Ok(view) = ResponsesView::parse(data, &PATHS) {
        let parts: usize = view.text_parts().iter().map(|part| part.len()).sum();
        assert!(parts <= data.len(), "a text is made of what was sent");
        view.opening().map(|opening| opening.read(|_, _| {}));
    }
    if let Ok(view) = MessagesView::parse(data, &PATHS) {
        let parts: usize = view.text_parts().iter().map(|part| part.len()).sum();
        assert!(parts <= data.len(), "a text is made of what was sent");
        view.opening().read(|_, _| {});
    }
    // What is skipped is judged as serde_json would.
    let theirs = serde_json::from_slice::<HashMap<String, &RawValue>>(data);
    let is_object = !matches!(common, Err(RequestError::NotJson(_) | RequestError::NotAnObject));
    assert_eq!(is_object, theirs.is_ok(), "{theirs:?}");
});
