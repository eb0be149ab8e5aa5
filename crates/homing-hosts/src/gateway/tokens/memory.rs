//! What engines have answered, by the whole question: every option of a prompt is part of it (F30), and no hash
//! stands for it, so that no two questions have one answer.
//!
//! Two generations of half the room each: what was asked since the last change of generation is in the young one,
//! and what nobody asks for goes with the old one. An answer ends with the life that gave it: after a restart the
//! engine may have another template.

use bytes::Bytes;
use homing_core::fleet::WorkerInfo;
use homing_core::ids::PartitionId;
use std::collections::HashMap;
use std::sync::Arc;

/// Room for questions and answers, in bytes: some hundreds of long conversations.
const ROOM: usize = 64 << 20;
/// What an entry takes besides.
const EACH: usize = 160;

/// An answer, and who gave it.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) tokens: Arc<[u32]>,
    pub(super) by: Arc<WorkerInfo>,
}

type Generation = HashMap<(PartitionId, Bytes), Answer>;

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    room: usize,
    young: Generation,
    old: Generation,
    /// Of the young one.
    bytes: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl Memory {
    fn with_room(room: usize) -> Self {
        Self { room, young: Generation::new(), old: Generation::new(), bytes: 0 }
    }

    /// The answer to a question, if whoever gave it `lives`.
    pub(super) fn get(
        &mut self,
        partition: PartitionId,
        question: &Bytes,
        lives: impl Fn(&WorkerInfo) -> bool,
    ) -> Option<Arc<[u32]>> {
        let key = (partition, question.clone());
        if let Some(answer) = self.young.get(&key) {
            return lives(&answer.by).then(|| answer.tokens.clone());
        }
        let answer = self.old.remove(&key).filter(|answer| lives(&answer.by))?;
        let tokens = answer.tokens.clone();
        self.put(partition, question.clone(), answer);
        Some(tokens)
    }

    /// Remembers an answer.
    pub(super) fn put(&mut self, partition: PartitionId, question: Bytes, answer: Answer) {
        let weight = |question: &Bytes, answer: &Answer| {
            question.len() + size_of_val(&*answer.tokens) + EACH
        };
        let more = weight(&question, &answer);
        if more > self.room / 2 {
            return;
        }
        if self.bytes + more > self.room / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += more;
        let key = (partition, question);
        if let Some(before) = self.young.get(&key) {
            self.bytes -= weight(&key.1, before);
        }
        self.young.insert(key, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homing_core::fleet::{Ranks, WorkerSpec};
    use homing_core::ids::{Role, WorkerId};

    const P: PartitionId = PartitionId(0);

    fn answer(tokens: &[u32], life: u32) -> Answer {
        let spec = WorkerSpec {
            name: "w".into(),
            url: "http://h:1".into(),
            labels: Default::default(),
            role: Role::Aggregated,
            ranks: Ranks::new(0, 1),
            generation: 0,
        };
        Answer { tokens: tokens.into(), by: Arc::new(WorkerInfo { id: WorkerId(life), spec }) }
    }

    fn get(memory: &mut Memory, question: &'static str) -> Option<Arc<[u32]>> {
        memory.get(P, &Bytes::from_static(question.as_bytes()), |_| true)
    }

    #[test]
    fn f30_another_question_has_another_answer() {
        let mut memory = Memory::default();
        memory.put(P, Bytes::from_static(b"a"), answer(&[1], 1));
        assert_eq!(get(&mut memory, "a").as_deref(), Some(&[1][..]));
        assert_eq!(get(&mut memory, "b"), None);
        assert_eq!(memory.get(PartitionId(1), &Bytes::from_static(b"a"), |_| true), None);
    }

    #[test]
    fn an_answer_ends_with_the_life_that_gave_it() {
        let mut memory = Memory::default();
        let question = Bytes::from_static(b"a");
        memory.put(P, question.clone(), answer(&[1], 1));
        assert_eq!(memory.get(P, &question, |by| by.id != WorkerId(1)), None);
        memory.put(P, question.clone(), answer(&[2], 2));
        let found = memory.get(P, &question, |by| by.id == WorkerId(2));
        assert_eq!(found.as_deref(), Some(&[2][..]));
        assert_eq!(memory.bytes, 1 + 4 + EACH, "the first one's place is counted no more");
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut memory = Memory::with_room(10 * (EACH + 6));
        memory.put(P, Bytes::from_static(b"aa"), answer(&[1], 1));
        for n in 0..100u32 {
            memory.put(P, Bytes::from(format!("{n:02}")), answer(&[n], 1));
            assert!(get(&mut memory, "aa").is_some(), "{n}");
            let held: usize = memory.young.len() + memory.old.len();
            assert!(held <= 10 && memory.bytes <= memory.room / 2, "{held}");
        }
        assert_eq!(get(&mut memory, "00"), None);
        assert_eq!(get(&mut memory, "99").as_deref(), Some(&[99][..]));
        let huge = answer(&[0; 1000], 1);
        memory.put(P, Bytes::from_static(b"huge"), huge);
        assert_eq!(get(&mut memory, "huge"), None, "no one takes all of it");
    }
}
