//! Registers in a bucket of JetStream: an update names the sequence that it expects its subject to be at.
//!
//! One round trip where that holds. Where not, what is there is asked of the stream's leader. A key that was removed
//! has left a marker with a sequence of its own: who creates it again expects that one. NATS has no leases, and the age
//! of values is the bucket's.

use super::dial::{Line, dial};
use super::{bucket, check_group, follow};
use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;
use homing_runtime::replication::port::{
    BindingStore, Call, Following, MESSAGE_MAX, PortError, Reach, STORE_PATIENCE, Set, Stay,
};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, watch};

/// What says that a message is a marker, and of which kind.
pub(super) const OPERATION: &str = "KV-Operation";
const REMOVED: &str = "DEL";
/// Messages that a follower's subscription holds; the server waits long before, by its flow control.
const QUEUE: usize = 64 << 10;
/// What waits for who follows.
const FOLLOWING: usize = 1024;
/// Longest key, in characters.
const KEY_MAX: usize = 128;
/// The shortest age that NATS keeps exactly.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// How often a call begins anew, as others write the same key at the same time.
const TURNS: usize = 8;
/// What newer servers say besides [`ErrorCode::STREAM_WRONG_LAST_SEQUENCE`].
const WRONG_LAST_SEQUENCE: u64 = 10164;

/// Bindings in the bucket `homing_<group>_bindings`. Clones are one.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

/// What calls and followers share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) line: Line,
    pub(super) jetstream: Context,
    pub(super) bucket: String,
    pub(super) prefix: String,
    pub(super) idle: Duration,
    /// After which loss of the connection the bucket was last seen.
    seen: Mutex<Option<u64>>,
    /// How often it was found to be gone.
    pub(super) gone: watch::Sender<u64>,
}

/// Opens a group's bindings, which are forgotten after `idle` without a write.
///
/// # Errors
/// [`PortError::Setting`] and [`PortError::Refused`], that the server has no JetStream among them. A server that isn't
/// there is waited for: until then calls say that it can't be reached.
pub async fn open(reach: Reach, group: &str, idle: Duration) -> Result<Store, PortError> {
    check_group(group)?;
    let line =
        dial(&reach, "the bindings' store", &format!("homing {group} bindings"), QUEUE).await?;
    let mut jetstream = jetstream::new(line.client.clone());
    jetstream.set_timeout(STORE_PATIENCE);
    let bucket = format!("homing_{group}_bindings");
    let prefix = bucket::prefix(&bucket);
    let idle = idle.max(IDLE_MIN);
    let (seen, gone) = (Mutex::default(), watch::Sender::new(0));
    let inner = Arc::new(Inner { line, jetstream, bucket, prefix, idle, seen, gone });
    match inner.within(inner.ensure()).await {
        Ok(()) => {}
        Err(error @ PortError::Unreachable { .. }) => {
            tracing::warn!(%error, "bindings can't be shared yet");
        }
        Err(error) => return Err(error),
    }
    Ok(Store { inner })
}

impl BindingStore for Store {
    fn compare_and_set<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: Option<u64>,
        _: Stay,
    ) -> Call<'a, Set> {
        Box::pin(self.inner.within(self.inner.set(key, value, expected)))
    }

    fn compare_and_remove<'a>(&'a self, key: &'a str, expected: u64) -> Call<'a, bool> {
        Box::pin(self.inner.within(self.inner.remove(key, expected)))
    }

    fn follow(&self) -> Following {
        let (out, following) = mpsc::channel(FOLLOWING);
        tokio::spawn(follow::follow(self.inner.clone(), out));
        following
    }

    fn leases(&self) -> bool {
        false
    }
}

/// What became of a write.
enum Written {
    At(u64),
    /// The subject is at another sequence.
    Otherwise,
    /// There is no bucket.
    Nowhere,
}

impl Inner {
    /// As long as a call may take.
    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, PortError>>,
    ) -> Result<T, PortError> {
        match tokio::time::timeout(STORE_PATIENCE, call).await {
            Ok(result) => result,
            Err(_) => Err(self.line.unreachable("no answer in time")),
        }
    }

    /// Makes sure of the bucket, once for each connection.
    pub(super) async fn ensure(&self) -> Result<(), PortError> {
        self.line.check()?;
        let losses = self.line.state.borrow().losses;
        let mut seen = self.seen.lock().await;
        if *seen == Some(losses) {
            return Ok(());
        }
        bucket::ensure(&self.line, &self.jetstream, &self.bucket, self.idle).await?;
        *seen = Some(losses);
        Ok(())
    }

    /// It is not to be taken for granted.
    pub(super) async fn doubt(&self) {
        *self.seen.lock().await = None;
    }

    async fn set(&self, key: &str, value: Bytes, expected: Option<u64>) -> Result<Set, PortError> {
        if value.len() > MESSAGE_MAX {
            return Err(PortError::TooLarge(value.len()));
        }
        let subject = self.subject(key)?;
        let mut at = expected.unwrap_or(0);
        for _ in 0..TURNS {
            self.ensure().await?;
            match self.write(&subject, HeaderMap::new(), value.clone(), at).await? {
                Written::At(revision) => return Ok(Set::Done(revision)),
                Written::Nowhere => continue,
                Written::Otherwise => {}
            }
            match (self.last(&subject).await?, expected) {
                (Last::Value(revision, value), _) => {
                    return Ok(Set::Was(Some((revision, value))));
                }
                (_, Some(_)) => return Ok(Set::Was(None)),
                // It was there when we wrote, and is not any more.
                (Last::Marker(revision), None) => at = revision,
                (Last::Nothing, None) => at = 0,
            }
        }
        Err(self.line.unreachable("others write the same key all the time"))
    }

    async fn remove(&self, key: &str, expected: u64) -> Result<bool, PortError> {
        let subject = self.subject(key)?;
        for _ in 0..TURNS {
            self.ensure().await?;
            let mut headers = HeaderMap::new();
            headers.insert(OPERATION, REMOVED);
            match self.write(&subject, headers, Bytes::new(), expected).await? {
                Written::At(_) => return Ok(true),
                Written::Otherwise => return Ok(false),
                // No bucket, or nothing that would hold one: it is looked for.
                Written::Nowhere => {}
            }
        }
        Err(self.line.unreachable("the bucket goes all the time"))
    }

    async fn write(
        &self,
        subject: &str,
        mut headers: HeaderMap,
        value: Bytes,
        expected: u64,
    ) -> Result<Written, PortError> {
        let size = value.len();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string().as_str());
        let sent = self.jetstream.publish_with_headers(subject.to_owned(), headers, value).await;
        let done = match sent {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        let error = match done {
            Ok(acknowledged) => return Ok(Written::At(acknowledged.sequence)),
            Err(error) => error,
        };
        match error.kind() {
            PublishErrorKind::WrongLastSequence => Ok(Written::Otherwise),
            PublishErrorKind::MaxPayloadExceeded => Err(PortError::TooLarge(size)),
            // Nobody takes what is for this subject: no bucket, or no JetStream, and `ensure` tells which.
            PublishErrorKind::StreamNotFound => {
                self.doubt().await;
                self.gone.send_modify(|times| *times += 1);
                Ok(Written::Nowhere)
            }
            _ => match of_jetstream(&error) {
                Some(e) if e.error_code().0 == WRONG_LAST_SEQUENCE => Ok(Written::Otherwise),
                Some(e) => Err(bucket::of_server(&self.line, e)),
                None => Err(self.line.unreachable(error)),
            },
        }
    }

    async fn last(&self, subject: &str) -> Result<Last, PortError> {
        let stream = self.jetstream.get_stream_no_info(bucket::stream(&self.bucket)).await;
        let stream = stream.map_err(|error| self.line.unreachable(error))?;
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(match message.headers.get(OPERATION) {
                Some(_) => Last::Marker(message.sequence),
                None => Last::Value(message.sequence, message.payload),
            }),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(Last::Nothing),
                LastRawMessageErrorKind::JetStream(e)
                    if e.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    self.doubt().await;
                    Ok(Last::Nothing)
                }
                LastRawMessageErrorKind::JetStream(e) => Err(bucket::of_server(&self.line, &e)),
                _ => Err(self.line.unreachable(error)),
            },
        }
    }

    /// Where a key is written. One token: a dot would be a border, and two of them beside each other none of NATS'.
    fn subject(&self, key: &str) -> Result<String, PortError> {
        let fits =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_');
        if key.is_empty() || key.len() > KEY_MAX || !key.bytes().all(fits) {
            let shown: String = key.escape_debug().take(KEY_MAX).collect();
            return Err(PortError::Setting(format!("`{shown}` is no key of a binding")));
        }
        Ok(format!("{}{}", self.prefix, key.replace('.', "/")))
    }

    /// The key that is written there; `None`: it is none of ours.
    pub(super) fn key(&self, subject: &str) -> Option<String> {
        let key = subject.strip_prefix(&self.prefix)?;
        let fits = !key.contains('.') && key.len() <= KEY_MAX;
        fits.then(|| key.replace('/', "."))
    }
}

/// The last message of a subject.
enum Last {
    Value(u64, Bytes),
    Marker(u64),
    Nothing,
}

/// The server's own words, where there are some.
fn of_jetstream(error: &PublishError) -> Option<&jetstream::Error> {
    error.source()?.downcast_ref()
}
