//! Rules of the service. Pure: a call and the state give an answer and its changes, or an error.
//!
//! Sources of behaviour: hnslib, the hcn schema page, and what clients rely on; docs/fidelity.md has the evidence for each.

use std::net::{Ipv4Addr, Ipv6Addr};

use hcn::document::{EndpointStats, Query, to_text, v1};
use hcn::{Args, Event, Guid, HResult, Kind, NetworkType, RawError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::state::{Change, Object, State};
use crate::switches::Switches;

mod acls;
mod balancers;
mod endpoints;
mod hnscall;
mod namespaces;
mod networks;
mod policies;
mod subnets;
mod tampering;
mod v1_schema;

pub(crate) use namespaces::HOST_COMPARTMENT;
pub use tampering::Tampering;

/// Host facts that rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The uplink's address: the ManagementIP of external networks.
    pub management: Option<Ipv4Addr>,
    /// The uplink's IPv6 address.
    pub management_ipv6: Option<Ipv6Addr>,
}

/// Effects of a call that succeeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Staged {
    /// Changes, in order.
    pub changes: Vec<Change>,
    /// Events that clients get before it is known whether the call succeeds.
    pub announced: Vec<Event>,
    /// Events that clients get afterwards.
    pub events: Vec<Event>,
    /// The object that the caller gets a handle of.
    pub opened: Option<(Kind, Guid)>,
    /// The text that the caller gets.
    pub text: Option<String>,
}

fn event(event_type: u32, id: Guid, flags: u32, data: Value) -> Event {
    let data = serde_json::json!({"ID": id, "Flags": flags, "Data": data});
    Event { event_type, status: HResult::OK, data: Some(data.to_string()) }
}

impl Staged {
    fn change(change: Change) -> Self {
        Self { changes: vec![change], ..Self::default() }
    }

    fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// Clients get this event when the call is done.
    fn event(mut self, event_type: u32, id: Guid, flags: u32, data: Value) -> Self {
        self.events.push(event(event_type, id, flags, data));
        self
    }

    /// Clients get this event before the call is done, and also when it then fails.
    fn announce(mut self, event_type: u32, id: Guid, flags: u32) -> Self {
        self.announced.push(event(event_type, id, flags, Value::Null));
        self
    }
}

/// Input of every rule.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The state before the call.
    pub state: &'a State,
    /// How Windows behaves where that is not sure.
    pub switches: &'a Switches,
    pub host: &'a Host,
    /// Reads an endpoint's counters, where it has an adapter.
    pub stats: &'a dyn Fn(&Guid) -> Option<EndpointStats>,
}

type Result<T> = std::result::Result<T, RawError>;

/// An error with HNS's own text for the code.
pub(crate) fn failure(hresult: HResult) -> RawError {
    // FormatMessage ends its texts with a blank.
    RawError::with_record(hresult, &format!("{} ", hresult.message().unwrap_or("Unknown error.")))
}

/// An error whose record has an explanation.
fn explained(hresult: HResult, explanation: &str) -> RawError {
    RawError::with_record(hresult, explanation)
}

/// The error for text that is not the document it should be.
fn unreadable(cause: &serde_json::Error) -> RawError {
    let text = cause.to_string();
    if text.contains("is not a GUID") {
        return explained(HResult::GUID_CONVERSION_FAILURE, &format!("Failed to interpret a parameter as a GUID. {text}"));
    }
    explained(HResult::INVALID_JSON, &format!("Invalid JSON document string. {text}"))
}

/// How deep a document may be nested: what is read must also be read back from where it is kept, a few levels down.
const DEEPEST: usize = 64;

/// How deep a text is nested, whether it is JSON or not.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Reads a document; no text is an empty one.
fn read<T: DeserializeOwned>(settings: Option<&str>) -> Result<T> {
    read_by(settings, |text| serde_json::from_str(text))
}

fn read_by<T>(settings: Option<&str>, reader: impl FnOnce(&str) -> serde_json::Result<T>) -> Result<T> {
    let text = settings.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
    if depth(text) > DEEPEST {
        return Err(explained(HResult::INVALID_JSON, "Invalid JSON document string. It is nested too deeply."));
    }
    reader(text).map_err(|cause| unreadable(&cause))
}

/// Reads a document that may be of the older shape. What that shape does not know, the newer one may: it is read once more.
fn read_either<T: DeserializeOwned + serde::Serialize>(settings: Option<&str>, older: impl FnOnce(&str) -> serde_json::Result<T>) -> Result<T> {
    let members: serde_json::Map<String, Value> = read(settings)?;
    if v1::is_v1(&members) { read(Some(&to_text(&read_by(settings, older)?))) } else { read(settings) }
}

/// Reads the settings of a request.
fn read_value<T: DeserializeOwned>(settings: &Value) -> Result<T> {
    serde_json::from_value(settings.clone()).map_err(|cause| unreadable(&cause))
}

/// The id of a new object: the caller's, else the document's, else a random one.
fn new_id(args: &Args<'_>, document: Guid) -> Guid {
    [args.id.unwrap_or_default(), document].into_iter().find(|id| !id.is_nil()).unwrap_or_else(Guid::random)
}

/// Whether networks of that type are on the host's adapter, and so have its address as their ManagementIP.
pub(crate) fn is_external(network_type: &NetworkType) -> bool {
    has_vfp(network_type) || *network_type == NetworkType::Transparent
}

/// Whether the switch of networks of that type has the Virtual Filtering Platform on.
pub(crate) fn has_vfp(network_type: &NetworkType) -> bool {
    matches!(network_type, NetworkType::L2Bridge | NetworkType::L2Tunnel | NetworkType::Overlay)
}

/// Whether networks of that type hide behind the host's address.
pub(crate) fn is_nat(network_type: &NetworkType) -> bool {
    matches!(network_type, NetworkType::Nat | NetworkType::Ics | NetworkType::ConstrainedIcs)
}

impl Context<'_> {
    /// The error for "no such object" of a kind.
    fn not_found(&self, kind: Kind) -> RawError {
        failure(match kind {
            Kind::Network if !self.switches.missing_is_element_not_found => HResult::NETWORK_NOT_FOUND,
            Kind::Endpoint if !self.switches.missing_is_element_not_found => HResult::ENDPOINT_NOT_FOUND,
            _ => HResult::ELEMENT_NOT_FOUND,
        })
    }

    fn get(&self, kind: Kind, id: &Guid) -> Result<Object> {
        if kind == Kind::GuestNetworkService {
            return Err(failure(HResult::NOT_SUPPORTED));
        }
        self.state.get(kind, id).ok_or_else(|| self.not_found(kind))
    }

    /// `HcnCreateX`; `network` is the open network of a new endpoint.
    pub fn create(&self, kind: Kind, args: &Args<'_>, network: Option<Guid>) -> Result<Staged> {
        match kind {
            Kind::Network => self.create_network(args),
            Kind::Endpoint => self.create_endpoint(args, network),
            Kind::Namespace => self.create_namespace(args),
            Kind::LoadBalancer => self.create_balancer(args),
            Kind::SdnRoute => self.create_route(args),
            Kind::GuestNetworkService => Err(failure(HResult::NOT_SUPPORTED)),
        }
    }

    /// `HcnOpenX`.
    pub fn open(&self, kind: Kind, args: &Args<'_>) -> Result<Staged> {
        let id = args.id.unwrap_or_default();
        if kind == Kind::GuestNetworkService {
            return Err(failure(HResult::NOT_SUPPORTED));
        }
        if !self.state.has(kind, &id) {
            return Err(self.not_found(kind));
        }
        Ok(Staged { opened: Some((kind, id)), ..Staged::default() })
    }

    /// `HcnModifyX` of an open object.
    pub fn modify(&self, kind: Kind, id: Guid, settings: Option<&str>) -> Result<Staged> {
        match self.get(kind, &id)? {
            Object::Network(network) => self.modify_network(id, network, &read(settings)?),
            Object::Endpoint(endpoint) => self.modify_endpoint(id, endpoint, &read(settings)?),
            Object::Namespace(namespace) => self.modify_namespace(id, namespace, &read(settings)?),
            Object::Balancer(_) => self.modify_balancer(id, settings),
            Object::Route(_) => Err(failure(HResult::NOT_IMPLEMENTED)),
        }
    }

    /// `HcnDeleteX`.
    pub fn delete(&self, kind: Kind, args: &Args<'_>) -> Result<Staged> {
        let id = args.id.unwrap_or_default();
        match self.get(kind, &id)? {
            Object::Network(network) => Ok(self.delete_network(id, &network)),
            Object::Endpoint(endpoint) => Ok(self.delete_endpoint(id, &endpoint)),
            Object::Namespace(namespace) => self.delete_namespace(id, &namespace),
            Object::Balancer(balancer) => self.delete_balancer(id, &balancer),
            Object::Route(_) => Ok(Staged::change(Change::delete(kind, id))),
        }
    }

    /// `HcnQueryXProperties` of an open object: the older shape unless the query is of schema 2.
    pub fn query(&self, kind: Kind, id: Guid, query: Option<&str>) -> Result<Staged> {
        read::<Query>(query)?;
        if Query::asks_for_v1(query) {
            let object = self.get(kind, &id)?;
            return Ok(Staged::text(self.older(id, &object).to_string()));
        }
        // The rows hold what is asked for: no need to read and write it again.
        let row = match kind {
            Kind::Endpoint => self.state.endpoints.get(&id).map(|row| row.text()),
            Kind::LoadBalancer => self.state.balancers.get(&id).map(|row| row.text()),
            _ => None,
        };
        if let Some(text) = row {
            return Ok(Staged::text(text));
        }
        match self.get(kind, &id)? {
            Object::Network(network) => Ok(Staged::text(to_text(&network))),
            Object::Endpoint(endpoint) => Ok(Staged::text(to_text(&endpoint.document))),
            Object::Namespace(namespace) => Ok(Staged::text(to_text(&namespace))),
            Object::Balancer(balancer) => Ok(Staged::text(to_text(&balancer.document))),
            Object::Route(route) => Ok(Staged::text(to_text(&route))),
        }
    }

    /// `HcnQueryEndpointStats` of an open endpoint.
    pub fn endpoint_stats(&self, id: Guid) -> Result<Staged> {
        Ok(Staged::text(to_text(&self.counters(id)?)))
    }

    /// `HcnQueryEndpointAddresses`: its answer is nowhere described.
    pub fn endpoint_addresses(&self, _id: Guid) -> Result<Staged> {
        Err(failure(HResult::NOT_IMPLEMENTED))
    }

    fn counters(&self, id: Guid) -> Result<EndpointStats> {
        if !self.state.endpoints.contains_key(&id) {
            return Err(self.not_found(Kind::Endpoint));
        }
        Ok(EndpointStats { endpoint_id: id, instance_id: id, ..(self.stats)(&id).unwrap_or_default() })
    }

    /// `HcnEnumerateXs`: the ids of what the query's filter selects.
    pub fn enumerate(&self, kind: Kind, query: Option<&str>) -> Result<Staged> {
        if kind == Kind::GuestNetworkService {
            return Err(failure(HResult::NOT_SUPPORTED));
        }
        let tests = read::<Query>(query)?.tests().map_err(|cause| explained(HResult::INVALID_JSON, &cause))?;
        let tests: Vec<Test> = tests.iter().map(|(member, value)| Test::new(member, value)).collect();
        let ids = self.select(kind, &tests);
        let mut text = String::with_capacity(2 + ids.len() * 39);
        text.push('[');
        // Lists are long and asked for often.
        let mut buffer = [0; Guid::LENGTH];
        for id in &ids {
            text.extend(["\"", id.encode(&mut buffer), "\","]);
        }
        if !ids.is_empty() {
            text.pop();
        }
        text.push(']');
        Ok(Staged::text(text))
    }

    /// The ids for which every test holds. The narrowest index gives the candidates, for which its own test holds already.
    fn select(&self, kind: Kind, tests: &[Test]) -> Vec<Guid> {
        let index = self.state.index();
        let narrow = |test: &Test| match test {
            Test::Id(id) => Some(id.iter().copied().filter(|id| self.state.has(kind, id)).collect::<Vec<_>>()),
            Test::Name(name) if !name.is_empty() => Some(index.named(kind, name).collect()),
            _ => None,
        };
        let of_network = |test: &Test| match test {
            Test::Network(network) if kind == Kind::Endpoint => Some(network.iter().flat_map(|network| index.endpoints_of(*network)).collect()),
            _ => None,
        };
        let all = || tests.iter().enumerate();
        let found = all().find_map(|(at, test)| Some((Some(at), narrow(test)?)));
        let found = found.or_else(|| all().find_map(|(at, test)| Some((Some(at), of_network(test)?))));
        let (done, candidates) = found.unwrap_or_else(|| (None, self.state.ids_of(kind)));
        let left: Vec<&Test> = all().filter(|(at, _)| Some(*at) != done).map(|(_, test)| test).collect();
        if left.is_empty() {
            return candidates;
        }
        candidates.into_iter().filter(|id| left.iter().all(|test| self.holds(kind, id, test))).collect()
    }

    fn holds(&self, kind: Kind, id: &Guid, test: &Test) -> bool {
        let state = self.state;
        // Name, state, flags and network of the object.
        let (object_state, flags, network) = match kind {
            Kind::Network => state.networks.get(id).map(|it| (it.state, it.flags.0, Guid::NIL)),
            Kind::Endpoint => state.endpoints.get(id).map(|it| (it.state, it.flags.0, it.network)),
            Kind::Namespace => state.namespaces.get(id).map(|it| (it.state, 0, Guid::NIL)),
            Kind::LoadBalancer => state.balancers.get(id).map(|it| (it.state, it.flags.0, it.network)),
            Kind::SdnRoute => state.routes.get(id).map(|it| (it.state, 0, Guid::NIL)),
            Kind::GuestNetworkService => None,
        }
        .unwrap_or_default();
        match test {
            Test::Id(asked) => *asked == Some(*id),
            Test::Name(asked) if asked.is_empty() => !state.index().is_named(kind, id),
            Test::Name(asked) => state.index().named(kind, asked).any(|named| named == *id),
            Test::State(asked) => *asked == object_state.to_string(),
            Test::Flags(asked) => *asked == flags.to_string(),
            Test::Network(asked) => *asked == Some(network),
            Test::NetworkName(asked) => state.networks.get(&network).is_some_and(|network| network.name.eq_ignore_ascii_case(asked)),
            Test::Never => false,
        }
    }
}

/// One member of a query's filter.
enum Test {
    Id(Option<Guid>),
    Name(String),
    State(String),
    Flags(String),
    Network(Option<Guid>),
    NetworkName(String),
    /// A property that cannot be filtered by equals nothing.
    Never,
}

impl Test {
    fn new(member: &str, value: &Value) -> Self {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match member.to_ascii_lowercase().as_str() {
            "id" => Self::Id(text.parse().ok()),
            "name" => Self::Name(text),
            "state" => Self::State(text),
            "flags" => Self::Flags(text),
            "virtualnetwork" | "hostcomputenetwork" => Self::Network(text.parse().ok()),
            "virtualnetworkname" => Self::NetworkName(text),
            _ => Self::Never,
        }
    }
}
