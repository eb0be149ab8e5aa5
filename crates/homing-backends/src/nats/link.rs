//! Messages among routers over NATS: to all on `homing.<group>.all`, to one on `homing.<group>.to.<number>`.
//!
//! Each subject is a queue of its own here: what one router sends to all is in order, and what it sends to one; not
//! one against the other. While the connection is down nothing is taken; the few messages that were on their way to
//! the socket when it broke may still go out afterwards, which is late, but in order.

use super::dial::{Line, State, dial};
use super::{BACKEND, check_group};
use async_nats::{PublishErrorKind, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use homing_runtime::replication::port::{
    Bus, Call, Deliveries, Delivery, MESSAGE_MAX, PortError, Reach, STORE_PATIENCE, To,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Messages that a subscription holds, while the router takes others.
const QUEUE: usize = 1024;
/// That messages came in too fast is said so often at most.
const SAID_EVERY: Duration = Duration::from_secs(10);
/// Messages that wait for the router.
const DELIVERIES: usize = 256;

/// Sends to the routers of one group. See the module.
#[derive(Clone, Debug)]
pub struct Link {
    line: Line,
    all: Subject,
    /// What a router's number is appended to.
    to: String,
}

/// Joins a group as the router of this number.
///
/// # Errors
/// [`PortError::Setting`] and [`PortError::Refused`]; a server that isn't there is no error: the first
/// [`Delivery::Back`] says when it is.
pub async fn connect(reach: Reach, group: &str, me: u32) -> Result<(Link, Deliveries), PortError> {
    check_group(group)?;
    let line = dial(&reach, "messages", &format!("homing {group} {me}"), QUEUE).await?;
    let all = Subject::from(format!("homing.{group}.all"));
    let to = format!("homing.{group}.to.");
    let failed = |error: async_nats::SubscribeError| line.unreachable(error);
    let mine = line.client.subscribe(format!("{to}{me}")).await.map_err(failed)?;
    let common = line.client.subscribe(all.clone()).await.map_err(failed)?;
    let (out, deliveries) = mpsc::channel(DELIVERIES);
    tokio::spawn(
        Inbox { line: line.clone(), common, mine, out, too_fast: TooFast::default() }.deliver(),
    );
    Ok((Link { line, all, to }, deliveries))
}

impl Bus for Link {
    fn send(&self, to: To, message: Bytes) -> Call<'_, ()> {
        Box::pin(async move {
            let size = message.len();
            if size > MESSAGE_MAX {
                return Err(PortError::TooLarge(size));
            }
            self.line.check()?;
            let subject = match to {
                To::All => self.all.clone(),
                To::One(number) => Subject::from(format!("{}{number}", self.to)),
            };
            // It waits for room only where the server takes nothing; what is given up then was not sent.
            let publish = self.line.client.publish(subject, message);
            match tokio::time::timeout(STORE_PATIENCE, publish).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    Err(PortError::TooLarge(size))
                }
                Ok(Err(error)) => Err(self.line.unreachable(error)),
                Err(_) => Err(self.line.unreachable("it takes nothing")),
            }
        })
    }
}

/// What comes in, until nobody wants it.
struct Inbox {
    line: Line,
    common: Subscriber,
    mine: Subscriber,
    out: mpsc::Sender<Delivery>,
    too_fast: TooFast,
}

/// What was too fast, and is said now and then.
#[derive(Debug, Default)]
struct TooFast {
    lost: u64,
    said: Option<Instant>,
}

impl TooFast {
    /// How much, if it is to be said now.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.said.is_some_and(|said| now < said + SAID_EVERY) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.lost))
    }
}

/// Nobody takes deliveries any more.
struct Over;

impl Inbox {
    async fn deliver(mut self) {
        let mut state = self.line.state.clone();
        // Nothing is known, so that a connection that is there already is news.
        let mut seen = State::default();
        state.mark_changed();
        loop {
            let done = tokio::select! {
                biased;
                () = self.out.closed() => return,
                changed = state.changed() => match changed {
                    Ok(()) => {
                        let before = std::mem::replace(&mut seen, *state.borrow_and_update());
                        self.turn(before, seen).await
                    }
                    // Connections that end by themselves don't exist: this is the runtime's end.
                    Err(_) => return,
                },
                Some(message) = self.mine.next() => self.say(Delivery::Message(message.payload)).await,
                Some(message) = self.common.next() => self.say(Delivery::Message(message.payload)).await,
                else => {
                    tracing::error!(backend = BACKEND, "subscriptions ended");
                    let _ = self.out.send(Delivery::Lost).await;
                    return;
                }
            };
            if let Err(Over) = done {
                return;
            }
        }
    }

    /// The connection has changed.
    async fn turn(&mut self, before: State, now: State) -> Result<(), Over> {
        let fell_behind = now.dropped > before.dropped;
        if fell_behind {
            // The hole is behind all that waits here. What waits is given up too: who has missed something asks
            // anyway, and is in step sooner so.
            let mut given_up = 0;
            while self.waiting().is_some() && given_up < 2 * QUEUE {
                given_up += 1;
            }
            let dropped = now.dropped - before.dropped;
            self.too_fast.lost += dropped + given_up as u64;
            if let Some(lost) = self.too_fast.due(Instant::now()) {
                tracing::warn!(lost, "messages of other routers came in too fast");
            }
        }
        let was_lost = now.losses > before.losses;
        if was_lost {
            // What came before the loss is whole.
            for _ in 0..2 * QUEUE {
                let Some(message) = self.waiting() else { break };
                self.say(Delivery::Message(message)).await?;
            }
        }
        if before.up && (was_lost || fell_behind) {
            self.say(Delivery::Lost).await?;
        }
        if now.up && (!before.up || was_lost || fell_behind) {
            self.say(Delivery::Back).await?;
        }
        Ok(())
    }

    /// One that is here already.
    fn waiting(&mut self) -> Option<Bytes> {
        let mine = self.mine.next().now_or_never().flatten();
        let message = mine.or_else(|| self.common.next().now_or_never().flatten());
        message.map(|message| message.payload)
    }

    async fn say(&self, delivery: Delivery) -> Result<(), Over> {
        self.out.send(delivery).await.map_err(|_| Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_flood_it_is_said_now_and_then_how_much_was_lost() {
        let (mut fast, start) = (TooFast::default(), Instant::now());
        let mut said = Vec::new();
        for tenth in 0..250 {
            fast.lost += 3;
            said.extend(fast.due(start + tenth * Duration::from_millis(100)));
        }
        assert_eq!(said, [3, 300, 300]);
    }
}
