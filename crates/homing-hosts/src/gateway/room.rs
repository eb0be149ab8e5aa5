//! Room for request bodies (`gateway.body_memory`). A body is held until its worker has begun to answer, so that it
//! can be sent to another. While others wait for room it is let go as soon as it is sent, and then can't be moved.

use super::proxy::Failed;
use super::reply::Error;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body as _, Incoming};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Room is given out in pieces of so many bytes.
const PIECE: usize = 1 << 10;
/// A body's room is made at once up to this size; a longer one grows as it comes, so that a client
/// can't reserve memory by a header alone.
const ROOM_AT_FIRST: usize = 256 << 10;
/// Room is taken in steps of so many bytes.
const GROWTH: usize = 64 << 10;

/// A client that has begun with a body may be silent for so long.
const SILENCE: Duration = Duration::from_secs(30);

/// All of it.
#[derive(Debug)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    most: usize,
    waiting: AtomicUsize,
}

/// What one body has of it; given back when dropped.
#[derive(Debug, Default)]
pub(super) struct Place {
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

/// There was none for too long.
#[derive(Debug)]
pub(super) struct NoRoom;

struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let most = (bytes / PIECE).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { free: Arc::new(Semaphore::new(most)), most, waiting: AtomicUsize::new(0) }
    }

    /// Whether somebody waits for some.
    pub(super) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Makes a place as large as `bytes`, if it isn't. Whoever is larger than all of it gets all of it.
    ///
    /// # Errors
    /// [`NoRoom`] after `patience`.
    pub(super) async fn grow(
        &self,
        place: &mut Place,
        bytes: usize,
        patience: Duration,
    ) -> Result<(), NoRoom> {
        if bytes <= place.bytes {
            return Ok(());
        }
        let has = place.bytes.div_ceil(PIECE).min(self.most);
        let pieces = bytes.div_ceil(PIECE).min(self.most).saturating_sub(has);
        let more = u32::try_from(pieces).unwrap_or(u32::MAX);
        let permit = match self.free.clone().try_acquire_many_owned(more) {
            Ok(permit) => permit,
            Err(_) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let _waits = Waits(&self.waiting);
                let wait = self.free.clone().acquire_many_owned(more);
                // Never closed, so never an error.
                timeout(patience, wait).await.map_err(|_| NoRoom)?.map_err(|_| NoRoom)?
            }
        };
        place.bytes = bytes;
        match &mut place.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

/// Reads a body, whole and once, and what is behind it.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Incoming,
    most: usize,
    (room, patience): (&Room, Duration),
) -> Result<(Bytes, Option<HeaderMap>, Place), Failed> {
    let no_room = |_| Failed::from(Error::no_room());
    let mut place = Place::default();
    let told = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|n| n > most) {
        return Err(Error::too_large(most).into());
    }
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut trailers = None;
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let slow = |_| Failed::from(Error::timeout("nothing more of the request body came"));
        let Some(frame) = timeout(SILENCE, next).await.map_err(slow)? else { break };
        let broken = |_| Error::invalid("the request body broke off".to_owned());
        let chunk = match frame.map_err(broken)?.into_data() {
            Ok(chunk) => chunk,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        if all.is_empty() && first.is_none() && told == Some(chunk.len()) {
            // All of it in one piece: no copy.
            room.grow(&mut place, chunk.len(), patience).await.map_err(no_room)?;
            first = Some(chunk);
            continue;
        }
        if all.is_empty() {
            all.reserve(told.unwrap_or(0).min(ROOM_AT_FIRST));
            all.extend_from_slice(&first.take().unwrap_or_default());
        }
        if all.len() + chunk.len() > most {
            return Err(Error::too_large(most).into());
        }
        // By what has come, not by what was promised: a promise costs nothing.
        let grown = (all.len() + chunk.len()).next_multiple_of(GROWTH);
        room.grow(&mut place, grown, patience).await.map_err(no_room)?;
        all.extend_from_slice(&chunk);
    }
    Ok((first.unwrap_or_else(|| all.freeze()), trailers, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn places_are_bounded_and_given_back() {
        let room = Room::new(10 << 10);
        let mut first = Place::default();
        room.grow(&mut first, 6_000, SOON).await.unwrap();
        room.grow(&mut first, 6_001, SOON).await.unwrap();
        assert_eq!(room.free.available_permits(), 4);
        let mut second = Place::default();
        room.grow(&mut second, 4 << 10, SOON).await.unwrap();
        assert!(!room.is_short());
        room.grow(&mut second, 5 << 10, SOON).await.unwrap_err();
        assert!(!room.is_short(), "who has given up waits no more");
        {
            let wait = room.grow(&mut second, 5 << 10, Duration::from_secs(60));
            tokio::pin!(wait);
            assert!(futures_util::poll!(wait.as_mut()).is_pending() && room.is_short());
            drop(first);
            wait.await.unwrap();
        }
        drop(second);
        assert_eq!(room.free.available_permits(), 10);
    }

    #[tokio::test]
    async fn one_that_is_larger_than_all_of_it_gets_all_of_it() {
        let room = Room::new(10 << 10);
        let mut huge = Place::default();
        room.grow(&mut huge, 1 << 30, SOON).await.unwrap();
        room.grow(&mut huge, 2 << 30, SOON).await.unwrap();
        assert_eq!(room.free.available_permits(), 0);
        drop(huge);
        assert_eq!(room.free.available_permits(), 10);
    }
}
