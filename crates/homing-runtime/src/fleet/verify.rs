//! Whether an engine makes of prompts what we make of them, and reuses what we think: asked of its `/tokenize`
//! once a life, and of its counters where its answers don't say what they reused.
//!
//! Neither is ever needed: an engine without these paths is unknown, and stays as trusted as it is.

use crate::ask::Ask;
use crate::settings::Worker;
use crate::shell::Shell;
use bytes::Bytes;
use homing_core::ids::WorkerId;
use homing_core::time::Time;
use homing_core::trust::{Counters, Shape};
use homing_wire::engine::metrics::Exposition;
use homing_wire::engine::parse_tokens;
use std::fmt;
use std::sync::Arc;

/// What an engine may answer to a question: the tokens of a few lines.
const MAX_TOKENS: usize = 64 << 10;

/// What is said where the tokens differ.
const OTHER_TOKENS: &str = "the engine makes other tokens of a prompt than this router: what it has cached can't be \
     predicted. Give `[[models]]` the tokenizer and the chat template that the engine was started with \
     (`tokenizer`, `chat_template_kwargs`)";

/// A fixed prompt, and what we make of it.
#[derive(Clone, Debug)]
pub struct Question {
    /// The form in which requests like it come.
    pub shape: Shape,
    /// The body for the engine's `/tokenize`.
    pub body: Bytes,
    /// The tokens that it should answer with.
    pub tokens: Vec<u32>,
}

/// Makes the questions for a served name, as of a time (templates may print the date); none where prompts
/// of that name are not tokenized here.
#[derive(Clone)]
pub struct Questions(Arc<Make>);

type Make = dyn Fn(&str, Time) -> Vec<Question> + Send + Sync;

impl Questions {
    /// From what makes them: quickly, it runs between probes.
    pub fn new(make: impl Fn(&str, Time) -> Vec<Question> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Nothing is asked.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|_, _| Vec::new())
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Questions(..)")
    }
}

/// What is known of one worker. See the module.
#[derive(Debug)]
pub(super) struct Verify {
    shell: Arc<Shell>,
    ask: Ask,
    questions: Questions,
    worker: String,
    /// The life that has answered, or can't.
    asked: Option<WorkerId>,
}

/// How an answer compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Same,
    /// The first token that differs, and how many there are of ours and theirs.
    Differs {
        at: usize,
        ours: usize,
        theirs: usize,
    },
}

fn compared(ours: &[u32], theirs: &[u32]) -> Compared {
    if ours == theirs {
        return Compared::Same;
    }
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    Compared::Differs { at: same, ours: ours.len(), theirs: theirs.len() }
}

/// Why there is no answer.
enum No {
    /// It will never answer: there is no such path, or it takes no such question.
    Never,
    /// Not now.
    NotNow,
}

impl Verify {
    pub(super) fn new(
        shell: &Arc<Shell>,
        ask: &Ask,
        questions: Questions,
        worker: &Worker,
    ) -> Self {
        let (shell, ask, worker) = (shell.clone(), ask.clone(), worker.id.clone());
        Self { shell, ask, questions, worker, asked: None }
    }

    /// Compares our tokens with the engine's, once in its life.
    pub(super) async fn compare(&mut self, id: WorkerId, models: &[String]) {
        if !self.shell.verifies() || self.asked == Some(id) {
            return;
        }
        let mut verdicts: [Option<bool>; Shape::COUNT] = Default::default();
        for model in models {
            for question in (self.questions.0)(model, self.shell.now()) {
                let theirs = match self.tokens(question.body.clone()).await {
                    Ok(theirs) => theirs,
                    Err(No::Never) => continue,
                    // The rest is asked, too, when it is asked what it serves the next time.
                    Err(No::NotNow) => return,
                };
                let verdict = &mut verdicts[question.shape as usize];
                match compared(&question.tokens, &theirs) {
                    Compared::Same => _ = verdict.get_or_insert(true),
                    Compared::Differs { at, ours, theirs } => {
                        // One line a shape: where one prompt differs the others do.
                        if verdict.replace(false) != Some(false) {
                            self.warn(model, question.shape, at, ours, theirs);
                        }
                    }
                }
            }
        }
        self.asked = Some(id);
        // Once they are messages, these two go through the chat's template.
        for made_into_chat in [Shape::Responses, Shape::Messages] {
            verdicts[made_into_chat as usize] = verdicts[Shape::Chat as usize];
        }
        for (shape, verdict) in Shape::ALL.into_iter().zip(verdicts) {
            if let Some(same) = verdict {
                self.shell.core().tokenized(id, shape, same);
            }
        }
    }

    fn warn(&self, model: &str, shape: Shape, at: usize, ours: usize, theirs: usize) {
        tracing::warn!(
            worker = self.worker,
            model,
            shape = shape.word(),
            first_difference = at,
            our_tokens = ours,
            engine_tokens = theirs,
            "{OTHER_TOKENS}"
        );
    }

    /// What the engine makes of a question.
    async fn tokens(&self, body: Bytes) -> Result<Vec<u32>, No> {
        let answer = self.ask.post("/tokenize", body, MAX_TOKENS).await;
        let (status, answer) = answer.map_err(|_| No::NotNow)?;
        match status {
            200 => parse_tokens(&answer).ok_or(No::Never),
            // Its own template may refuse what ours takes: that is no token of it.
            400..500 => Err(No::Never),
            _ => Err(No::NotNow),
        }
    }

    /// Tells the core what the engine counts, by its page of metrics, where that says more than its answers do.
    pub(super) fn count(&self, id: WorkerId, page: &Exposition<'_>) {
        let core = self.shell.core();
        if !self.shell.verifies() || !core.wants_counters(id) {
            return;
        }
        let Some((hits, queries)) = page.prefix_cache() else { return };
        for turn in core.counted(id, Counters { hits, queries }) {
            self.shell.note_trust(turn);
        }
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
