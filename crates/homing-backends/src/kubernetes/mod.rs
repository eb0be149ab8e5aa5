//! Workers as a Kubernetes cluster lists them: the endpoints of a Service, pods by label, or those of an InferencePool.
//!
//! * [`discovery()`]: what is asked for; `access`: the cluster's own word on that, inside a pod;
//! * `api`: the few calls, over the client that is here;
//! * `objects`: what of their answers counts;
//! * `members`: objects to workers, and what has changed;
//! * `follow`: list and watch, over outages.
//!
//! The crate `kube` would bring sixty others for three GETs and a stream of lines.

mod access;
mod api;
mod discovery;
mod follow;
mod members;
mod objects;

pub use discovery::{AccessError, discovery};
