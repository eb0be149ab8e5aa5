//! Whom the gateway lets in, and what they may do: by their API key, or by the word of a gateway in front that has
//! looked at them already. Where neither is configured everybody is one caller with all rights.
//!
//! All of it belongs to one version of the settings, and is replaced as a whole when they are read anew: a request
//! is judged by one version from its beginning to its end.

use super::reply::Error;
use homing_core::ids::tenant_number;
use homing_runtime::keys::{Keys, KeysError, bearer};
use homing_runtime::settings::{
    Limits, ResponseHeaders, Settings, Steering, Tenant, is_tenant_name,
};
use homing_runtime::tenants::may_use;
use http::header::{HeaderMap, HeaderName};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Where Anthropic's clients put a key.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Who has asked, by the word of proxies, the first on the left.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// One version of the settings, and what they refer to.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) settings: Arc<Settings>,
    /// `None`: nobody needs one.
    keys: Option<Keys>,
    /// Names that clients may use in a model's place.
    aliases: HashMap<String, Arc<str>>,
    /// Tenants by name.
    tenants: HashMap<String, usize>,
    /// Where there are no tenants all are this one.
    nobody: Arc<str>,
}

impl Access {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// [`KeysError`] of `gateway.api_keys_file`.
    pub(super) fn load(settings: Arc<Settings>) -> Result<Self, KeysError> {
        let keys = settings.gateway.api_keys_file.as_deref().map(Keys::read).transpose()?;
        let aliases = settings.models.iter().flat_map(|model| {
            let name: Arc<str> = Arc::from(model.name.as_str());
            model.aliases.iter().map(move |alias| (alias.clone(), name.clone()))
        });
        let names = settings.tenants.iter().enumerate().map(|(i, t)| (t.name.clone(), i));
        Ok(Self {
            keys,
            aliases: aliases.collect(),
            tenants: names.collect(),
            nobody: Arc::from(""),
            settings,
        })
    }

    /// The name that a model's alias stands for.
    pub(super) fn alias(&self, model: &str) -> Option<&Arc<str>> {
        self.aliases.get(model)
    }

    pub(super) fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// All aliases, each with what it stands for.
    pub(super) fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().map(|(alias, name)| (alias.as_str(), &**name))
    }

    /// Whether callers are told apart.
    pub(super) fn has_tenants(&self) -> bool {
        self.keys.is_some() || self.settings.gateway.tenant_header.is_some()
    }

    /// Whether clients' keys are ours, and no worker's business.
    pub(super) fn takes_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Whether answers tell the worker and what it had cached.
    pub(super) fn tells_workers(&self) -> bool {
        match self.settings.gateway.response_headers {
            ResponseHeaders::Full => true,
            ResponseHeaders::Minimal => false,
            ResponseHeaders::Auto => !self.has_tenants(),
        }
    }

    fn trusts(&self, peer: Option<IpAddr>) -> bool {
        let nets = &self.settings.gateway.trusted_proxies;
        // A mapped address is an IPv4 one in the files of all who write them.
        let peer = peer.map(|ip| ip.to_canonical());
        peer.is_some_and(|ip| nets.iter().any(|net| net.contains(&ip)))
    }

    /// Who asks; `peer` is at the other end of the connection, `None` where that has no address.
    ///
    /// # Errors
    /// 401 `invalid_api_key`.
    pub(super) fn caller(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<Caller, Error> {
        let trusted = self.trusts(peer);
        let client = if trusted { forwarded(self, headers).or(peer) } else { peer };
        let tenant = match self.tenant(trusted, headers)? {
            Some(tenant) => tenant,
            None => self.nobody.clone(),
        };
        let at = self.tenants.get(&*tenant).copied();
        Ok(Caller { access: self.clone(), tenant, at, client })
    }

    /// Nobody in particular, for a look at what would be.
    pub(super) fn anybody(self: &Arc<Self>) -> Caller {
        Caller { access: self.clone(), tenant: self.nobody.clone(), at: None, client: None }
    }

    fn tenant(&self, trusted: bool, headers: &HeaderMap) -> Result<Option<Arc<str>>, Error> {
        if !self.has_tenants() {
            return Ok(None);
        }
        let header = self.settings.gateway.tenant_header.as_ref().filter(|_| trusted);
        let mut said = header.into_iter().flat_map(|name| headers.get_all(name));
        if let Some(first) = said.next() {
            let name = first.to_str().ok().filter(|name| is_tenant_name(name));
            return match name.filter(|_| said.all(|other| other == first)) {
                Some(name) => Ok(Some(Arc::from(name))),
                None => Err(Error::unauthorized("the tenant's header names no tenant")),
            };
        }
        let Some(keys) = &self.keys else {
            return Err(Error::unauthorized("this router takes requests from its gateway only"));
        };
        let Some(key) = key(headers) else {
            let text =
                "an API key is needed: send it as `Authorization: Bearer KEY`, or as `x-api-key`";
            return Err(Error::unauthorized(text));
        };
        let owner = keys.owner(key).cloned();
        owner.map(Some).ok_or_else(|| Error::unauthorized("the API key is not known here"))
    }
}

/// The key that a request shows.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    bearer(headers).or_else(|| headers.get(API_KEY).map(|v| v.as_bytes().trim_ascii()))
}

/// The client by the word of the proxies that are believed: the last address that is none of theirs.
fn forwarded(access: &Access, headers: &HeaderMap) -> Option<IpAddr> {
    // By bytes: a value that is no text counts, too, or one that a client has sent before it would be believed.
    let values = headers.get_all(FORWARDED_FOR).iter().map(|v| v.as_bytes());
    let hops: Vec<&[u8]> = values.flat_map(|v| v.split(|b| *b == b',')).collect();
    let mut found = None;
    for hop in hops.iter().rev() {
        let ip: IpAddr = std::str::from_utf8(hop).ok()?.trim().parse().ok()?;
        found = Some(ip);
        if !access.trusts(found) {
            break;
        }
    }
    found
}

/// Who sends a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) access: Arc<Access>,
    /// Whose requests its own are counted with; empty where there are no tenants.
    pub(super) tenant: Arc<str>,
    at: Option<usize>,
    /// Where it sits, where that has an address.
    pub(super) client: Option<IpAddr>,
}

impl Caller {
    fn own(&self) -> Option<&Tenant> {
        self.at.map(|at| &self.access.settings.tenants[at])
    }

    /// Who stands in a queue, as a number.
    pub(super) fn number(&self) -> u64 {
        tenant_number(&self.tenant)
    }

    pub(super) fn limits(&self) -> Limits {
        self.own().map_or(self.access.settings.limits, |tenant| tenant.limits)
    }

    /// Whether it may name workers, labels and a priority.
    pub(super) fn may_steer(&self) -> bool {
        match self.access.settings.gateway.steering {
            Steering::All => true,
            Steering::Trusted => self.own().is_some_and(|tenant| tenant.steer),
            Steering::Off => false,
        }
    }

    /// What a priority that it asks for counts as.
    pub(super) fn priority(&self, asked: i32) -> i32 {
        match self.access.has_tenants() {
            true => asked.min(self.own().map_or(0, |tenant| tenant.max_priority)),
            false => asked,
        }
    }

    pub(super) fn may_use_all(&self) -> bool {
        self.own().is_none_or(|tenant| tenant.models.iter().any(|model| model == "*"))
    }

    pub(super) fn may_use(&self, model: &str) -> bool {
        self.own().is_none_or(|tenant| may_use(tenant, model))
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
