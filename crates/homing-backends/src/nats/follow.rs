//! Following a bucket: all that is there, then what changes, over outages until nobody wants it.
//!
//! An ordered consumer of JetStream sees to holes by itself while the connection stands. After an outage everything is
//! said anew: the bucket may be another one, and how far we were in it means nothing then. That a value's time is over
//! the server doesn't say, and nor do we: to count along would take more memory than what the values tell of.

use super::bucket;
use super::store::{Inner, OPERATION};
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy};
use bytes::Bytes;
use futures_util::StreamExt as _;
use homing_runtime::replication::port::Seen;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Between two beginnings.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Before it is in step: so long without a message, and the last ones have ended in the meantime.
const SILENCE: Duration = Duration::from_secs(2);

/// Why following ended.
enum Ended {
    /// Nobody wants it.
    Over,
    /// It begins anew.
    Failed(String),
}

/// See the module.
pub(super) async fn follow(inner: Arc<Inner>, out: mpsc::Sender<Seen>) {
    let mut pause = PAUSE_MIN;
    let mut complained = false;
    loop {
        let mut follower = Follower { inner: &inner, out: &out, spoke: false, in_step: false };
        match follower.run().await {
            Ended::Over => return,
            Ended::Failed(why) => {
                if !std::mem::replace(&mut complained, true) || follower.in_step {
                    tracing::warn!(why, "bindings can't be followed: tried again until they can");
                }
            }
        }
        if follower.in_step {
            (pause, complained) = (PAUSE_MIN, false);
        }
        if follower.spoke && out.send(Seen::Lost).await.is_err() {
            return;
        }
        // The bucket itself may be what is gone.
        inner.doubt().await;
        let mut state = inner.line.state.clone();
        tokio::select! {
            () = out.closed() => return,
            // There is nothing to try before.
            _ = state.wait_for(|state| state.up) => {}
        }
        tokio::select! {
            () = out.closed() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// One time of following.
struct Follower<'a> {
    inner: &'a Arc<Inner>,
    out: &'a mpsc::Sender<Seen>,
    /// Something was said.
    spoke: bool,
    /// All that was there was said.
    in_step: bool,
}

impl Follower<'_> {
    async fn run(&mut self) -> Ended {
        match self.try_run().await {
            Err(ended) => ended,
            Ok(never) => match never {},
        }
    }

    async fn try_run(&mut self) -> Result<std::convert::Infallible, Ended> {
        let failed = |why: String| Ended::Failed(why);
        let mut state = self.inner.line.state.clone();
        let losses = state.borrow_and_update().losses;
        let mut gone = self.inner.gone.subscribe();
        self.inner.ensure().await.map_err(|error| failed(error.to_string()))?;
        let (mut messages, pending) = self.consume().await.map_err(failed)?;
        if pending == 0 {
            self.step().await?;
        }
        loop {
            tokio::select! {
                biased;
                () = self.out.closed() => return Err(Ended::Over),
                changed = state.changed() => {
                    if changed.is_err() || state.borrow_and_update().losses != losses {
                        return Err(failed("the connection was lost".to_owned()));
                    }
                }
                _ = gone.changed() => return Err(failed("the bucket is gone".to_owned())),
                message = messages.next() => match message {
                    Some(Ok(message)) => self.take(message).await?,
                    Some(Err(error)) => return Err(failed(error.to_string())),
                    None => return Err(failed("the server ended it".to_owned())),
                },
                () = sleep(SILENCE), if !self.in_step => {
                    return Err(failed("what was there ended while it was said".to_owned()));
                }
            }
        }
    }

    /// Begins to; with how many messages there are.
    async fn consume(&self) -> Result<(Ordered, u64), String> {
        let client = &self.inner.line.client;
        let stream = self.inner.jetstream.get_stream_no_info(bucket::stream(&self.inner.bucket));
        let stream = stream.await.map_err(|error| error.to_string())?;
        let config = OrderedConfig {
            deliver_subject: client.new_inbox(),
            description: Some("a router follows".to_owned()),
            // All that a bucket holds is the last of each key. To ask for just that, or for its subjects, makes NATS 2.9
            // look for each: two minutes for 300,000 keys, and five seconds so.
            deliver_policy: DeliverPolicy::All,
            replay_policy: ReplayPolicy::Instant,
            ..OrderedConfig::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| error.to_string())?;
        let pending = consumer.cached_info().num_pending;
        let messages = consumer.messages().await.map_err(|error| error.to_string())?;
        Ok((messages, pending))
    }

    async fn take(&mut self, message: Message) -> Result<(), Ended> {
        let info = message.info().map_err(|error| Ended::Failed(error.to_string()))?;
        let (revision, last) = (info.stream_sequence, info.pending == 0);
        // Others may write what they like into our bucket; it is passed over.
        if let Some(key) = self.inner.key(&message.subject) {
            let is_marker = message.headers.as_ref().is_some_and(|h| h.get(OPERATION).is_some());
            let value = Bytes::clone(&message.payload);
            self.say(match is_marker {
                false => Seen::Put { key, value, revision },
                true => Seen::Gone { key },
            })
            .await?;
        }
        if last && !self.in_step {
            self.step().await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Ended> {
        self.in_step = true;
        self.say(Seen::InStep).await
    }

    async fn say(&mut self, seen: Seen) -> Result<(), Ended> {
        self.spoke = true;
        self.out.send(seen).await.map_err(|_| Ended::Over)
    }
}
