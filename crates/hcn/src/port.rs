//! The call surface of computenetwork.dll: JSON in, JSON out, synchronous.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::HResult;
use crate::guid::Guid;

/// The families of objects that the service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A switch with its subnets.
    Network,
    /// A port of a network, or a forwarding entry for an address elsewhere.
    Endpoint,
    /// A network compartment.
    Namespace,
    /// A load-balancing rule.
    LoadBalancer,
    /// A routing rule for endpoints.
    SdnRoute,
    /// The service inside a virtual machine.
    GuestNetworkService,
}

impl Kind {
    /// Every kind, as the functions of the DLL are named.
    pub const ALL: [Self; 6] = [Self::Network, Self::Endpoint, Self::Namespace, Self::LoadBalancer, Self::SdnRoute, Self::GuestNetworkService];

    /// The part of a function's name that stands for this kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "Network",
            Self::Endpoint => "Endpoint",
            Self::Namespace => "Namespace",
            Self::LoadBalancer => "LoadBalancer",
            Self::SdnRoute => "SdnRoute",
            Self::GuestNetworkService => "GuestNetworkService",
        }
    }
}

/// One function of the DLL (computenetwork.dll, and vmcompute.dll's `HNSCall`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Function {
    /// `HcnEnumerateXs`: query → JSON array of GUIDs.
    Enumerate(Kind),
    /// `HcnCreateX`: id, settings (and network for endpoints) → handle.
    Create(Kind),
    /// `HcnOpenX`: id → handle.
    Open(Kind),
    /// `HcnModifyX`: handle, settings.
    Modify(Kind),
    /// `HcnQueryXProperties`: handle, query → properties.
    Query(Kind),
    /// `HcnDeleteX`: id.
    Delete(Kind),
    /// `HcnCloseX`: handle.
    Close(Kind),
    /// `HcnQueryEndpointStats`: handle, query → counters.
    QueryEndpointStats,
    /// `HcnQueryEndpointAddresses`: handle, query → addresses.
    QueryEndpointAddresses,
    /// `HNSCall` of vmcompute.dll: method, path, settings → response.
    HnsCall,
}

impl Function {
    /// Every function, for tables and tests.
    pub fn all() -> impl Iterator<Item = Self> {
        let verbs: [fn(Kind) -> Self; 7] = [Self::Enumerate, Self::Create, Self::Open, Self::Modify, Self::Query, Self::Delete, Self::Close];
        let families = Kind::ALL.into_iter().flat_map(move |kind| verbs.map(|verb| verb(kind)));
        families.chain([Self::QueryEndpointStats, Self::QueryEndpointAddresses, Self::HnsCall])
    }

    /// Whether the call can change what the service keeps.
    pub fn changes(self) -> bool {
        matches!(self, Self::Create(_) | Self::Modify(_) | Self::Delete(_) | Self::HnsCall)
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enumerate(kind) => write!(f, "HcnEnumerate{}s", kind.as_str()),
            Self::Create(kind) => write!(f, "HcnCreate{}", kind.as_str()),
            Self::Open(kind) => write!(f, "HcnOpen{}", kind.as_str()),
            Self::Modify(kind) => write!(f, "HcnModify{}", kind.as_str()),
            Self::Query(kind) => write!(f, "HcnQuery{}Properties", kind.as_str()),
            Self::Delete(kind) => write!(f, "HcnDelete{}", kind.as_str()),
            Self::Close(kind) => write!(f, "HcnClose{}", kind.as_str()),
            Self::QueryEndpointStats => f.write_str("HcnQueryEndpointStats"),
            Self::QueryEndpointAddresses => f.write_str("HcnQueryEndpointAddresses"),
            Self::HnsCall => f.write_str("HNSCall"),
        }
    }
}

impl FromStr for Function {
    type Err = RawError;

    /// Reads a function's exported name; an unknown name is [`HResult::PROC_NOT_FOUND`], as the loader would say.
    fn from_str(name: &str) -> Result<Self, RawError> {
        Self::all().find(|function| function.to_string() == name).ok_or_else(|| RawError::from(HResult::PROC_NOT_FOUND))
    }
}

/// An open object. Meaningful only on the [`HostNetwork`] (connection, process) that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(pub u64);

/// The arguments of one call; each [`Function`] says which it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args<'a> {
    /// The network of a new endpoint.
    pub network: Option<Handle>,
    /// The object to create, open or delete; none or nil on a create lets the service choose.
    pub id: Option<Guid>,
    /// The object to modify, query or close.
    pub handle: Option<Handle>,
    /// The document to create or modify with, or the body of `HNSCall`.
    pub settings: Option<&'a str>,
    pub query: Option<&'a str>,
    /// `HNSCall`: "GET", "POST" or "DELETE".
    pub method: Option<&'a str>,
    /// `HNSCall`: the path, as `/endpoints/GUID/attach`.
    pub path: Option<&'a str>,
}

/// The arguments of one call, kept beyond the caller's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedArgs {
    network: Option<Handle>,
    id: Option<Guid>,
    handle: Option<Handle>,
    settings: Option<String>,
    query: Option<String>,
    method: Option<String>,
    path: Option<String>,
}

impl From<Args<'_>> for OwnedArgs {
    fn from(args: Args<'_>) -> Self {
        let own = |text: Option<&str>| text.map(str::to_owned);
        let Args { network, id, handle, .. } = args;
        Self { network, id, handle, settings: own(args.settings), query: own(args.query), method: own(args.method), path: own(args.path) }
    }
}

impl OwnedArgs {
    pub fn borrow(&self) -> Args<'_> {
        let Self { network, id, handle, .. } = *self;
        Args {
            network,
            id,
            handle,
            settings: self.settings.as_deref(),
            query: self.query.as_deref(),
            method: self.method.as_deref(),
            path: self.path.as_deref(),
        }
    }
}

/// What a successful call gives back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The object that a create or open opened.
    pub handle: Option<Handle>,
    /// The text that a query, an enumeration or `HNSCall` answered.
    pub result: Option<String>,
}

impl Reply {
    /// A reply that carries a handle.
    pub fn handle(handle: Handle) -> Self {
        Self { handle: Some(handle), result: None }
    }

    /// A reply that carries text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { handle: None, result: Some(text.into()) }
    }
}

/// A failed call as the DLL reports it: the code, and the error record where the service wrote one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawError {
    /// The code that the function returned.
    pub hresult: HResult,
    /// The JSON error record, as text.
    pub record: Option<String>,
}

impl RawError {
    /// An error with a record that says `message`, in the form HNS writes: `{"Success":false,"Error":…,"ErrorCode":…}`.
    pub fn with_record(hresult: HResult, message: &str) -> Self {
        let record = serde_json::json!({"Success": false, "Error": message, "ErrorCode": hresult.0});
        Self { hresult, record: Some(record.to_string()) }
    }
}

impl From<HResult> for RawError {
    fn from(hresult: HResult) -> Self {
        Self { hresult, record: None }
    }
}

/// A service notification (`HcnRegisterServiceCallback`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The notification type: see the constants of this type.
    #[serde(rename = "type")]
    pub event_type: u32,
    pub status: HResult,
    /// Its JSON text `{"ID","Flags","Data"}`; none for a disconnect.
    pub data: Option<String>,
}

impl Event {
    /// A network will be created.
    pub const NETWORK_PRE_CREATE: u32 = 1;
    /// A network was created.
    pub const NETWORK_CREATE: u32 = 2;
    /// A network will be deleted (sent whether or not the delete succeeds).
    pub const NETWORK_PRE_DELETE: u32 = 3;
    /// A network was deleted.
    pub const NETWORK_DELETE: u32 = 4;
    /// A namespace was created.
    pub const NAMESPACE_CREATE: u32 = 5;
    /// A namespace was deleted.
    pub const NAMESPACE_DELETE: u32 = 6;
    /// A guest network service was made.
    pub const GUEST_NETWORK_SERVICE_CREATE: u32 = 7;
    /// A guest network service is gone.
    pub const GUEST_NETWORK_SERVICE_DELETE: u32 = 8;
    /// An endpoint was attached.
    pub const ENDPOINT_ATTACHED: u32 = 9;
    /// An endpoint was detached.
    pub const ENDPOINT_DETACHED: u32 = 0x10;
    /// A guest network service changed its state.
    pub const GUEST_NETWORK_SERVICE_STATE_CHANGED: u32 = 0x11;
    /// An interface of a guest network service changed its state.
    pub const GUEST_NETWORK_SERVICE_INTERFACE_STATE_CHANGED: u32 = 0x12;
    /// The service went away: the registration and every handle are dead; register again and enumerate everything.
    pub const SERVICE_DISCONNECT: u32 = 0x0100_0000;
}

/// A live registration for events: dropping it unregisters.
pub struct Subscription(#[expect(dead_code, reason = "held for its Drop")] Box<dyn Any + Send>);

impl Subscription {
    /// Wraps the guard whose drop ends the registration.
    pub fn new(guard: impl Any + Send) -> Self {
        Self(Box::new(guard))
    }
}

/// Receives events. It is called on a thread of the implementation and must not block.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// The Host Networking Service as programs use it: by the DLL, by a socket, or in process.
///
/// Calls are synchronous and may come from many threads. Handles die with the implementation's connection.
pub trait HostNetwork: Send + Sync + 'static {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError>;

    /// Registers for service notifications.
    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError>;

    /// The only user of this connection is gone: calls under way need not be answered. Where a call cannot be ended, nothing happens.
    fn disconnect(&self) {}
}

/// The function that [`HostNetwork::subscribe`] stands for.
pub const SUBSCRIBE: &str = "HcnRegisterServiceCallback";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_round_trip() {
        for function in Function::all() {
            assert_eq!(function.to_string().parse::<Function>(), Ok(function));
        }
        assert_eq!(Function::Query(Kind::SdnRoute).to_string(), "HcnQuerySdnRouteProperties");
        assert_eq!(Function::Enumerate(Kind::LoadBalancer).to_string(), "HcnEnumerateLoadBalancers");
        assert_eq!("HcnFly".parse::<Function>().unwrap_err().hresult, HResult::PROC_NOT_FOUND);
    }
}
