//! Following the keys below a prefix: what is there, in pages of one revision, and from that on what changes.
//!
//! A watch that breaks is begun again where it was, and for a moment nothing is said of it. What can't be gone on with
//! (etcd stays away, has dropped that part of its history, or isn't the one that it was) is said, and the list read anew.

use super::generated::event::EventType;
use super::generated::kv_client::KvClient;
use super::generated::watch_client::WatchClient;
use super::generated::watch_request::RequestUnion;
use super::generated::{
    KeyValue, RangeRequest, RangeResponse, ResponseHeader, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use super::pages::{Page, Pages};
use super::wire::{Fault, Wire, judge, unreachable};
use bytes::Bytes;
use homing_runtime::replication::port::{MESSAGE_MAX, STORE_PATIENCE};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Code;
use tonic::codegen::tokio_stream::{self, StreamExt as _};

/// Keys of a page, where they are small.
const PAGE: i64 = 16_384;
/// Where etcd is too slow for such a one.
const SMALL_PAGE: i64 = 2_048;
/// Largest answer: any one value fits, and what comes of many in one step.
const ANSWER_MAX: usize = 32 * MESSAGE_MAX;
/// So long a broken watch may take to go on before it is said.
const QUIET: Duration = Duration::from_secs(2);
/// Between two tries: from, to.
const TRIES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What is heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// A key has a value.
    Put(KeyValue),
    /// It is gone.
    Gone(Vec<u8>),
    /// All that was there has been said.
    InStep,
    /// What was said may not hold any more, and all of it is said anew, some time. `away`: etcd can't be reached, or is
    /// another; otherwise it has only forgotten where we were.
    Lost {
        /// See above.
        away: bool,
        /// Its reason.
        why: String,
    },
}

/// Nobody listens any more.
struct Unheard;

/// What ends a watch.
enum Ended {
    Unheard,
    /// It may go on where it was.
    Broken(Fault),
    /// It can't; whether that is since etcd is not the one that it was.
    Over {
        another: bool,
        why: &'static str,
    },
}

impl From<Unheard> for Ended {
    fn from(_: Unheard) -> Self {
        Self::Unheard
    }
}

/// How far has been read.
#[derive(Default)]
struct Mark {
    cluster: u64,
    revision: i64,
}

/// What comes behind all keys that begin with this.
pub(super) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys there are.
    vec![0]
}

async fn say(heard: &mpsc::Sender<Heard>, what: Heard) -> Result<(), Unheard> {
    heard.send(what).await.map_err(|_| Unheard)
}

/// Follows a prefix until nobody listens.
pub(super) async fn follow(wire: &Wire, prefix: &[u8], heard: mpsc::Sender<Heard>) {
    // Either way nobody is there to be told.
    let _ = tokio::select! {
        done = run(wire, prefix, &heard) => done,
        () = heard.closed() => Unheard,
    };
}

async fn run(wire: &Wire, prefix: &[u8], heard: &mpsc::Sender<Heard>) -> Unheard {
    let mut said = false;
    let mut pause = TRIES.0;
    loop {
        let mark = match list(wire, prefix, heard).await {
            Ok(mark) => mark,
            Err(Ended::Unheard) => return Unheard,
            Err(Ended::Over { .. }) => continue,
            Err(Ended::Broken(fault)) => {
                let why = fault.error.to_string();
                if !said && say(heard, Heard::Lost { away: true, why }).await.is_err() {
                    return Unheard;
                }
                said = true;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(TRIES.1);
                continue;
            }
        };
        if say(heard, Heard::InStep).await.is_err() {
            return Unheard;
        }
        pause = TRIES.0;
        let (away, why) = match keep_watching(wire, prefix, heard, mark).await {
            Ended::Unheard => return Unheard,
            Ended::Broken(fault) => (true, fault.error.to_string()),
            Ended::Over { another, why } => (another, why.to_owned()),
        };
        if say(heard, Heard::Lost { away, why }).await.is_err() {
            return Unheard;
        }
        said = true;
    }
}

/// All that is there. While a page is handed on the next one is on its way.
async fn list(wire: &Wire, prefix: &[u8], heard: &mpsc::Sender<Heard>) -> Result<Mark, Ended> {
    let mut pages = Pages::new(prefix.to_vec(), behind(prefix));
    let mut limit = PAGE;
    let mut page = read(wire, &pages, 0, &mut limit).await?;
    let ResponseHeader { cluster_id: cluster, revision } = page.header.unwrap_or_default();
    loop {
        let ends = page.kvs.first().zip(page.kvs.last()).map(|(a, b)| (&*a.key, &*b.key));
        let (more, all) = (page.more, page.count.unsigned_abs());
        let came = Page { ends, more, all, limit: limit.unsigned_abs() };
        if !pages.came(&came) {
            hand_on(page, heard).await?;
            return Ok(Mark { cluster, revision });
        }
        let next = read(wire, &pages, revision, &mut limit);
        let (handed, next) = tokio::join!(hand_on(page, heard), next);
        handed?;
        page = next?;
    }
}

async fn hand_on(page: RangeResponse, heard: &mpsc::Sender<Heard>) -> Result<(), Unheard> {
    for kv in page.kvs {
        say(heard, Heard::Put(kv)).await?;
    }
    Ok(())
}

/// One page as of a revision, the latest one at first; `limit`: as many keys as it can be.
async fn read(
    wire: &Wire,
    pages: &Pages,
    revision: i64,
    limit: &mut i64,
) -> Result<RangeResponse, Ended> {
    let (key, range_end) = pages.window();
    let (key, range_end) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
    loop {
        let request = || RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: *limit,
            revision,
        };
        let page = wire.ask(|channel| {
            let request = request();
            async move {
                let client = KvClient::with_origin(channel.clone(), channel.origin.clone());
                client.max_decoding_message_size(ANSWER_MAX).range(request).await
            }
        });
        let fault = match page.await {
            Ok(page) => return Ok(page),
            Err(fault) => fault,
        };
        if fault.code == Code::OutOfRange {
            if fault.error.to_string().contains("compacted") {
                return Err(Ended::Over { another: false, why: "compacted while it was read" });
            }
            // Large values: fewer at a time.
            if *limit > 1 {
                *limit = (*limit / 8).max(1);
                continue;
            }
        } else if *limit > SMALL_PAGE {
            *limit = SMALL_PAGE;
            continue;
        }
        return Err(Ended::Broken(fault));
    }
}

/// What changes, over connections that break, until it can't be gone on.
async fn keep_watching(
    wire: &Wire,
    prefix: &[u8],
    heard: &mpsc::Sender<Heard>,
    mut mark: Mark,
) -> Ended {
    let mut broken: Option<Instant> = None;
    loop {
        let ended = watch(wire, prefix, heard, &mut mark, &mut broken).await;
        let Ended::Broken(fault) = ended else { return ended };
        tracing::debug!(error = %fault.error, "a watch of etcd has broken");
        if broken.get_or_insert_with(Instant::now).elapsed() >= QUIET {
            return Ended::Broken(fault);
        }
        tokio::time::sleep(TRIES.0).await;
    }
}

async fn watch(
    wire: &Wire,
    prefix: &[u8],
    heard: &mpsc::Sender<Heard>,
    mark: &mut Mark,
    broken: &mut Option<Instant>,
) -> Ended {
    let channel = match wire.channel().await {
        Ok(channel) => channel,
        Err(error) => return Ended::Broken(error.into()),
    };
    let (at, number) = (channel.at.clone(), channel.number);
    let create = WatchCreateRequest {
        key: prefix.to_vec().into(),
        range_end: behind(prefix).into(),
        start_revision: mark.revision + 1,
        progress_notify: true,
        fragment: true,
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let origin = channel.origin.clone();
    let mut client =
        WatchClient::with_origin(channel, origin).max_decoding_message_size(ANSWER_MAX);
    let broke = |fault| {
        wire.lost(number);
        Ended::Broken(fault)
    };
    let late = || Fault::from(unreachable(&at, "it begins no watch in time"));
    let begun = tokio::time::timeout(STORE_PATIENCE, client.watch(requests));
    let mut stream = match begun.await {
        Ok(Ok(stream)) => stream.into_inner(),
        Ok(Err(status)) => return broke(judge(&at, &status)),
        Err(_) => return broke(late()),
    };
    let mut begun = false;
    loop {
        let next = stream.message();
        let next = if begun {
            next.await
        } else {
            match tokio::time::timeout(STORE_PATIENCE, next).await {
                Ok(next) => next,
                Err(_) => return broke(late()),
            }
        };
        let answer = match next {
            Ok(Some(answer)) => answer,
            Ok(None) => return broke(unreachable(&at, "it has ended the watch").into()),
            Err(status) => return broke(judge(&at, &status)),
        };
        if answer.compact_revision > 0 {
            let why = "etcd has dropped the history since what was heard last";
            return Ended::Over { another: false, why };
        }
        if answer.canceled {
            return broke(unreachable(&at, &answer.cancel_reason).into());
        }
        let head = answer.header.unwrap_or_default();
        if answer.created {
            if head.cluster_id != mark.cluster || head.revision < mark.revision {
                let why = "etcd is not the one that it was: its history is another";
                return Ended::Over { another: true, why };
            }
            (begun, *broken) = (true, None);
        }
        if let Err(unheard) = changed(answer, head.revision, heard, mark).await {
            return unheard.into();
        }
    }
}

/// Says what an answer tells, and moves the mark behind it.
async fn changed(
    answer: WatchResponse,
    revision: i64,
    heard: &mpsc::Sender<Heard>,
    mark: &mut Mark,
) -> Result<(), Unheard> {
    let (is_part, is_begin) = (answer.fragment, answer.created);
    let mut last = 0;
    let is_progress = answer.events.is_empty();
    for event in answer.events {
        let kind = event.r#type();
        let Some(kv) = event.kv else { continue };
        last = kv.mod_revision.max(last);
        let what = match kind {
            EventType::Put => Heard::Put(kv),
            EventType::Delete => Heard::Gone(kv.key.to_vec()),
        };
        say(heard, what).await?;
    }
    // A part of one step is not the step; and what a new watch says of the revision is not what it has said of changes.
    if !is_part && !is_begin {
        let reached = if is_progress { revision } else { last };
        mark.revision = mark.revision.max(reached);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_prefix_is_the_next_one() {
        assert_eq!(behind(b"/a/"), b"/a0");
        assert_eq!(behind(&[b'a', 0xff, 0xff]), b"b");
        assert_eq!(behind(&[0xff]), [0]);
        assert_eq!(behind(b""), [0]);
    }
}
