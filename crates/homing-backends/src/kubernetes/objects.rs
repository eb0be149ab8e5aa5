//! What of the API server's objects counts here. Whatever else they have is passed over.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct List<T> {
    pub(super) metadata: ListMeta,
    /// Go's empty lists are null.
    pub(super) items: Option<Vec<T>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// What it says instead of an object.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    pub(super) code: u16,
    #[serde(default)]
    pub(super) message: String,
}

/// Of any object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) resource_version: String,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) deletion_timestamp: Option<String>,
}

/// An object of which only that counts.
#[derive(Debug, Deserialize)]
pub(super) struct Any {
    #[serde(default)]
    pub(super) metadata: Meta,
}

/// `discovery.k8s.io/v1`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointSlice {
    pub(super) metadata: Meta,
    #[serde(default)]
    pub(super) address_type: String,
    pub(super) endpoints: Option<Vec<Endpoint>>,
    pub(super) ports: Option<Vec<SlicePort>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) addresses: Option<Vec<String>>,
    #[serde(default)]
    pub(super) conditions: Conditions,
    pub(super) target_ref: Option<Target>,
    pub(super) zone: Option<String>,
}

/// Those that are not said have the meaning that the API gives them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Conditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Target {
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SlicePort {
    pub(super) name: Option<String>,
    pub(super) port: Option<u16>,
}

/// `v1`.
#[derive(Debug, Deserialize)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    #[serde(default)]
    pub(super) status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    #[serde(default)]
    pub(super) phase: String,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    pub(super) conditions: Option<Vec<PodCondition>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PodCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) status: String,
}

/// `inference.networking.k8s.io/v1`, and `inference.networking.x-k8s.io/v1alpha2` before it.
#[derive(Debug, Deserialize)]
pub(super) struct InferencePool {
    pub(super) spec: PoolSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolSpec {
    /// The labels in `matchLabels`; or the labels themselves.
    #[serde(default)]
    pub(super) selector: BTreeMap<String, serde_json::Value>,
    pub(super) target_ports: Option<Vec<PoolPort>>,
    pub(super) target_port_number: Option<u16>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PoolPort {
    pub(super) number: u16,
}

impl InferencePool {
    /// As a label selector; `None`: it selects nothing.
    pub(super) fn selector(&self) -> Option<String> {
        let labels: BTreeMap<&str, &str> = match self.spec.selector.get("matchLabels") {
            Some(serde_json::Value::Object(labels)) => {
                labels.iter().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))).collect()
            }
            _ => self
                .spec
                .selector
                .iter()
                .filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
                .collect(),
        };
        let pairs: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        (!pairs.is_empty()).then(|| pairs.join(","))
    }

    /// Where its pods listen.
    pub(super) fn ports(&self) -> Vec<u16> {
        match &self.spec.target_ports {
            Some(ports) if !ports.is_empty() => ports.iter().map(|port| port.number).collect(),
            _ => self.spec.target_port_number.into_iter().collect(),
        }
    }
}
