//! The service's rules, pure: a call and the state give an answer and the changes it makes, or an error.
//!
//! Sources of behaviour: hnslib, the hcn schema page, and what clients rely on; FIDELITY.md has the evidence for each.

use std::net::Ipv4Addr;

use hcn::document::{Query, to_text};
use hcn::{Args, Event, Guid, HResult, Kind, RawError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::state::{Change, Object, State};
use crate::switches::Switches;

mod balancers;
mod endpoints;
mod hnscall;
mod namespaces;
mod networks;
mod policies;

/// What the service knows about its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The uplink's address: the ManagementIP of external networks.
    pub management: Option<Ipv4Addr>,
}

/// What a call does when it succeeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Staged {
    /// Changes, in order.
    pub changes: Vec<Change>,
    /// Events that clients are told afterwards.
    pub events: Vec<Event>,
    /// The object that the caller gets a handle of.
    pub opened: Option<(Kind, Guid)>,
    /// The text that the caller gets.
    pub text: Option<String>,
}

impl Staged {
    fn change(change: Change) -> Self {
        Self { changes: vec![change], ..Self::default() }
    }

    fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    fn event(mut self, event_type: u32, id: Guid, data: Value) -> Self {
        let data = serde_json::json!({"ID": id, "Flags": 0, "Data": data});
        self.events.push(Event { event_type, status: HResult::OK, data: Some(data.to_string()) });
        self
    }
}

/// What every rule sees.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The state before the call.
    pub state: &'a State,
    /// How Windows behaves where that is not sure.
    pub switches: &'a Switches,
    /// The host.
    pub host: &'a Host,
}

type Result<T> = std::result::Result<T, RawError>;

/// An error with HNS's own text for the code.
fn error(hresult: HResult) -> RawError {
    // FormatMessage ends its texts with a blank.
    RawError::with_record(hresult, &format!("{} ", hresult.message().unwrap_or("Unknown error.")))
}

/// An error whose record says more than the code.
fn explained(hresult: HResult, explanation: &str) -> RawError {
    RawError::with_record(hresult, explanation)
}

/// Reads a document; no text is an empty one.
fn read<T: DeserializeOwned>(settings: Option<&str>) -> Result<T> {
    let text = settings.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
    serde_json::from_str(text).map_err(|cause| explained(HResult::INVALID_JSON, &format!("Invalid JSON document string. {cause}")))
}

/// The code for "no such object" of a kind.
pub fn not_found(kind: Kind) -> RawError {
    error(match kind {
        Kind::Network => HResult::NETWORK_NOT_FOUND,
        Kind::Endpoint => HResult::ENDPOINT_NOT_FOUND,
        _ => HResult::ELEMENT_NOT_FOUND,
    })
}

/// The id of a new object: the caller's, else the document's, else a random one.
fn new_id(args: &Args<'_>, document: Guid) -> Guid {
    [args.id.unwrap_or_default(), document].into_iter().find(|id| !id.is_nil()).unwrap_or_else(Guid::random)
}

impl Context<'_> {
    /// `HcnCreateX`; `network` is the open network of a new endpoint.
    pub fn create(&self, kind: Kind, args: &Args<'_>, network: Option<Guid>) -> Result<Staged> {
        let mut staged = match kind {
            Kind::Network => self.create_network(args),
            Kind::Endpoint => self.create_endpoint(args, network),
            Kind::Namespace => self.create_namespace(args),
            Kind::LoadBalancer => self.create_balancer(args),
            Kind::SdnRoute => self.create_route(args),
            Kind::GuestNetworkService => Err(error(HResult::NOT_SUPPORTED)),
        }?;
        staged.opened = staged.changes.first().map(|change| (kind, change.id));
        Ok(staged)
    }

    /// `HcnOpenX`.
    pub fn open(&self, kind: Kind, args: &Args<'_>) -> Result<Staged> {
        let id = args.id.unwrap_or_default();
        if kind == Kind::GuestNetworkService {
            return Err(error(HResult::NOT_SUPPORTED));
        }
        if !self.state.has(kind, &id) {
            return Err(not_found(kind));
        }
        Ok(Staged { opened: Some((kind, id)), ..Staged::default() })
    }

    /// `HcnModifyX` of an open object.
    pub fn modify(&self, kind: Kind, id: Guid, settings: Option<&str>) -> Result<Staged> {
        match self.state.get(kind, &id).ok_or_else(|| not_found(kind))? {
            Object::Network(network) => self.modify_network(id, network, &read(settings)?),
            Object::Endpoint(endpoint) => self.modify_endpoint(id, endpoint, &read(settings)?),
            Object::Namespace(namespace) => self.modify_namespace(id, namespace, &read(settings)?),
            Object::Balancer(balancer) => self.modify_balancer(id, &balancer, settings),
            Object::Route(_) => Err(error(HResult::NOT_IMPLEMENTED)),
        }
    }

    /// `HcnDeleteX`.
    pub fn delete(&self, kind: Kind, args: &Args<'_>) -> Result<Staged> {
        let id = args.id.unwrap_or_default();
        match self.state.get(kind, &id).ok_or_else(|| not_found(kind))? {
            Object::Network(_) => Ok(self.delete_network(id)),
            Object::Endpoint(endpoint) => Ok(self.delete_endpoint(id, &endpoint)),
            Object::Namespace(namespace) => self.delete_namespace(id, &namespace),
            Object::Balancer(_) | Object::Route(_) => Ok(Staged::change(Change::delete(kind, id))),
        }
    }

    /// `HcnQueryXProperties` of an open object.
    pub fn query(&self, kind: Kind, id: Guid, query: Option<&str>) -> Result<Staged> {
        // The query is read only to refuse what is no query.
        read::<Query>(query)?;
        match self.state.get(kind, &id).ok_or_else(|| not_found(kind))? {
            Object::Network(network) => Ok(Staged::text(to_text(&network))),
            Object::Endpoint(endpoint) => Ok(Staged::text(to_text(&endpoint.document))),
            Object::Namespace(namespace) => Ok(Staged::text(to_text(&namespace))),
            Object::Balancer(balancer) => Ok(Staged::text(to_text(&balancer.document))),
            Object::Route(route) => Ok(Staged::text(to_text(&route))),
        }
    }

    /// `HcnEnumerateXs`: the ids of what the query's filter selects.
    pub fn enumerate(&self, kind: Kind, query: Option<&str>) -> Result<Staged> {
        let tests = read::<Query>(query)?.tests().map_err(|cause| explained(HResult::INVALID_JSON, &cause))?;
        let tests: Vec<(String, String)> = tests.into_iter().map(|(member, wanted)| (member, plain(&wanted))).collect();
        let state = self.state;
        let ids: Vec<Guid> = match kind {
            Kind::Network => select(state.networks.iter().map(|(id, it)| (*id, it.name.as_str(), it.state, it.flags.0, Guid::NIL)), &tests, state),
            Kind::Endpoint => select(
                state.endpoints.iter().map(|(id, it)| {
                    let document = &it.document;
                    (*id, document.name.as_str(), document.state, document.flags.0, document.host_compute_network)
                }),
                &tests,
                state,
            ),
            Kind::Namespace => select(state.namespaces.iter().map(|(id, it)| (*id, it.name.as_str(), it.state, 0, Guid::NIL)), &tests, state),
            Kind::LoadBalancer => select(
                state.balancers.iter().map(|(id, it)| (*id, it.document.name.as_str(), it.document.state, it.document.flags.0, Guid::NIL)),
                &tests,
                state,
            ),
            Kind::SdnRoute => select(state.routes.iter().map(|(id, it)| (*id, it.name.as_str(), it.state, 0, Guid::NIL)), &tests, state),
            Kind::GuestNetworkService => return Err(error(HResult::NOT_SUPPORTED)),
        };
        Ok(Staged::text(serde_json::json!(ids).to_string()))
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The ids of the rows (id, name, state, flags, network) for which every test holds.
fn select<'a>(rows: impl Iterator<Item = (Guid, &'a str, u32, u32, Guid)>, tests: &[(String, String)], state: &State) -> Vec<Guid> {
    let network_name = |network: Guid| state.networks.get(&network).map_or("", |network| network.name.as_str());
    let holds = |row: &(Guid, &'a str, u32, u32, Guid)| {
        let (id, name, object_state, flags, network) = *row;
        tests.iter().all(|(member, wanted)| match member.to_ascii_lowercase().as_str() {
            "id" => wanted.parse() == Ok(id),
            "name" => wanted.eq_ignore_ascii_case(name),
            "state" => *wanted == object_state.to_string(),
            "flags" => *wanted == flags.to_string(),
            "virtualnetwork" | "hostcomputenetwork" => wanted.parse() == Ok(network),
            "virtualnetworkname" => wanted.eq_ignore_ascii_case(network_name(network)),
            _ => false,
        })
    };
    rows.filter(holds).map(|(id, ..)| id).collect()
}
