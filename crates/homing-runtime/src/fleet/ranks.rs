//! How many data-parallel ranks a worker has: by its `dp_size`, or where the file leaves that open (0), by the
//! first word of its engine in each life (F68). A rank is where sessions live and what loads are booked on, so
//! within a life nothing changes it: another word is told, and not followed.

use homing_core::ids::WorkerId;

/// What an engine says of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It has so many, from 0 on.
    Exactly(u16),
    /// Nothing that is certain: at least so many (0: nothing at all).
    AtLeast(u32),
    /// It could not be asked.
    Unheard,
}

impl Said {
    /// As a number, at least; 0: it doesn't say.
    #[must_use]
    pub fn at_least(self) -> u32 {
        match self {
            Self::Exactly(ranks) => ranks.into(),
            Self::AtLeast(ranks) => ranks,
            Self::Unheard => 0,
        }
    }
}

/// What is known of one worker.
#[derive(Debug)]
pub(super) struct Ranks {
    /// By the file.
    given: Option<u16>,
    /// Whether the engine may be believed.
    learns: bool,
    known: u16,
    /// The life whose word `known` is.
    of: Option<WorkerId>,
}

impl Ranks {
    /// `listens`: the engine connects to ports of ours, one a rank. Those are checked against others' when the file is
    /// read, so that nobody's events are taken for another's; and so they can't be learned.
    pub(super) fn new(given: Option<u16>, listens: bool) -> Self {
        let learns = given.is_none() && !listens;
        Self { given, learns, known: given.unwrap_or(1).max(1), of: None }
    }

    /// How many there are.
    pub(super) const fn count(&self) -> u16 {
        self.known
    }

    /// Whether the engine is to be asked.
    pub(super) const fn are_asked_for(&self) -> bool {
        self.given.is_none()
    }

    /// Takes in what the engine says in this life; `Some` where there are others now than before.
    pub(super) fn hear(&mut self, life: WorkerId, said: Said) -> Option<u16> {
        if !self.learns || self.of == Some(life) {
            return None;
        }
        let ranks = match said {
            Said::Exactly(ranks) => {
                self.of = Some(life);
                ranks.max(1)
            }
            // Those of its last life may not be there any more, and a request can't be sent to one that isn't.
            Said::AtLeast(_) => 1,
            Said::Unheard => return None,
        };
        (std::mem::replace(&mut self.known, ranks) != ranks).then_some(ranks)
    }

    /// What is wrong between what is known and what the engine says, and how to mend it.
    pub(super) fn complaint(&self, said: Said) -> Option<String> {
        let known = u32::from(self.known);
        match said {
            Said::Exactly(now) if self.learns && self.of.is_some() && u32::from(now) != known => {
                Some(format!(
                    "it says {now} now, and said {known} when this life of it began, which stands; restart it, or \
                     write `dp_size` in its [[workers]]"
                ))
            }
            _ if said.at_least() > known => {
                Some(format!("write `dp_size = {}` in its [[workers]]", said.at_least()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);

    #[test]
    fn f68_the_first_word_of_a_life_stands() {
        let mut ranks = Ranks::new(None, false);
        assert_eq!((ranks.count(), ranks.are_asked_for()), (1, true));
        assert_eq!(ranks.hear(A, Said::Unheard), None);
        assert_eq!(ranks.hear(A, Said::AtLeast(0)), None);
        assert_eq!(ranks.hear(A, Said::Exactly(4)), Some(4), "late is as good");
        assert_eq!(ranks.complaint(Said::Exactly(4)), None);
        for other in [Said::Exactly(2), Said::Exactly(8), Said::AtLeast(0), Said::Unheard] {
            assert_eq!((ranks.hear(A, other), ranks.count()), (None, 4), "{other:?}");
        }
        assert!(ranks.complaint(Said::Exactly(2)).unwrap().contains("says 2 now, and said 4"));
        assert!(ranks.complaint(Said::Exactly(8)).unwrap().contains("says 8 now"));
        assert_eq!(ranks.complaint(Said::Unheard), None);
    }

    #[test]
    fn f21_another_life_has_its_own_word() {
        let mut ranks = Ranks::new(None, false);
        assert_eq!(ranks.hear(A, Said::Exactly(4)), Some(4));
        assert_eq!((ranks.hear(B, Said::Unheard), ranks.count()), (None, 4), "not asked yet");
        assert_eq!(ranks.hear(B, Said::Exactly(2)), Some(2));
        assert_eq!(ranks.hear(A, Said::AtLeast(0)), Some(1), "it doesn't say any more");
        assert_eq!(ranks.hear(A, Said::Exactly(0)), None, "never none");
    }

    #[test]
    fn the_files_word_goes_first() {
        let mut ranks = Ranks::new(Some(2), false);
        assert_eq!((ranks.hear(A, Said::Exactly(4)), ranks.count()), (None, 2));
        assert!(!ranks.are_asked_for());
        assert!(ranks.complaint(Said::Exactly(4)).unwrap().contains("`dp_size = 4`"));
        assert_eq!(ranks.complaint(Said::Exactly(1)), None);
        assert_eq!(ranks.complaint(Said::Exactly(2)), None);
    }

    #[test]
    fn ports_of_ours_are_not_opened_on_an_engines_word() {
        let mut ranks = Ranks::new(None, true);
        assert_eq!((ranks.hear(A, Said::Exactly(4)), ranks.count()), (None, 1));
        assert!(ranks.complaint(Said::Exactly(4)).unwrap().contains("`dp_size = 4`"));
        // Nor is what only some ranks say.
        let mut some = Ranks::new(None, false);
        assert_eq!((some.hear(A, Said::AtLeast(4)), some.count()), (None, 1));
        assert!(some.complaint(Said::AtLeast(4)).unwrap().contains("`dp_size = 4`"));
    }
}
