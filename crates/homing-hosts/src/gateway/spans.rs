//! A request's part in a distributed trace: three spans, made when it has ended.
//!
//! | span | from, to |
//! |---|---|
//! | `homing.request` | its head, its end |
//! | `homing.select` | its head, the place that it got (R26: what became of its session) |
//! | `homing.worker` | its dispatch, its end; this one is the parent of whatever its worker records |

use homing_core::time::Time;
use homing_runtime::traces::{Context, Fact, Kind, Span, Traces};
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::time::Duration;

/// What a request carries of its trace.
#[derive(Debug)]
pub(super) struct Spans {
    traces: Arc<Traces>,
    request: Context,
    parent: Option<[u8; 8]>,
    worker: [u8; 8],
    /// When it got its last place, since its head.
    placed: Option<Duration>,
}

impl Spans {
    /// Of a request that comes; `None` where it is not recorded.
    pub(super) fn begin(traces: Option<&Arc<Traces>>, headers: &HeaderMap) -> Option<Self> {
        let traces = traces?;
        let (request, parent) = traces.begin(Context::of(headers))?;
        let worker = traces.span();
        Some(Self { traces: traces.clone(), request, parent, worker, placed: None })
    }

    /// `traceparent` for its worker.
    pub(super) fn header(&self) -> HeaderValue {
        Context { span: self.worker, ..self.request }.header()
    }

    /// It has got a place, so long after its head.
    pub(super) fn placed(&mut self, after: Duration) {
        self.placed = Some(after);
    }

    /// It has ended.
    pub(super) fn finish(
        self,
        came: Time,
        took: Duration,
        facts: Vec<(&'static str, Fact)>,
        error: Option<String>,
    ) {
        let Self { traces, request, parent, worker, placed } = self;
        let ended = came + took;
        let of = |name: &'static str| facts.iter().filter(move |(key, _)| *key == name).cloned();
        let mut spans = Vec::with_capacity(3);
        if let Some(placed) = placed {
            let at = came + placed;
            let inner = |name, span, kind, began, ended, facts| Span {
                name,
                context: Context { span, ..request },
                parent: Some(request.span),
                kind,
                began,
                ended,
                facts,
                error: None,
            };
            let chosen = of("homing.worker").chain(of("homing.affinity")).collect();
            spans.push(inner("homing.select", traces.span(), Kind::Internal, came, at, chosen));
            let whose = of("homing.worker").chain(of("homing.attempts")).collect();
            let mut called = inner("homing.worker", worker, Kind::Client, at, ended, whose);
            called.error.clone_from(&error);
            spans.push(called);
        }
        let (name, kind, context) = ("homing.request", Kind::Server, request);
        spans.push(Span { name, context, parent, kind, began: came, ended, facts, error });
        traces.finish(spans);
    }
}
