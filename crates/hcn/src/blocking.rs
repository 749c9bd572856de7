//! Typed blocking calls over any port.
//!
//! Habits: no get before a delete, no list where an id is known, every opened handle is closed, and an object that vanishes between an
//! enumeration and its open is not in the list. Over a plain port a call may never return; [`HcnClient::blocking`] gives the client whose
//! calls end.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::HcnClient;
use crate::document::{
    EndpointStats, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, ModifyRequest, Query,
    RequestType, to_text,
};
use crate::error::HcnError;
use crate::features::{HnsVersion, SupportedFeatures};
use crate::guid::Guid;
use crate::port::{Args, EventSink, Function, Handle, HostNetwork, Kind, Subscription};

/// A document that has a family of functions.
pub trait Object: Serialize + DeserializeOwned + Send + 'static {
    /// Its family.
    const KIND: Kind;
}

impl Object for HostComputeNetwork {
    const KIND: Kind = Kind::Network;
}
impl Object for HostComputeEndpoint {
    const KIND: Kind = Kind::Endpoint;
}
impl Object for HostComputeNamespace {
    const KIND: Kind = Kind::Namespace;
}
impl Object for HostComputeLoadBalancer {
    const KIND: Kind = Kind::LoadBalancer;
}
impl Object for HostComputeRoute {
    const KIND: Kind = Kind::SdnRoute;
}

/// What an address in `MULLION_HCN` begins with that is for the DLL of a Wine prefix.
pub const DLL: &str = "dll:";

/// The typed client.
#[derive(Clone)]
pub struct Client {
    port: Arc<dyn HostNetwork>,
}

/// An open object, closed on drop.
struct Open<'a> {
    client: &'a Client,
    kind: Kind,
    handle: Handle,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let args = Args { handle: Some(self.handle), ..Args::default() };
        if let Err(error) = self.client.port.call(Function::Close(self.kind), args) {
            tracing::debug!(kind = self.kind.as_str(), ?error, "an HCN handle could not be closed");
        }
    }
}

impl Client {
    /// A client of `port`.
    pub fn new(port: Arc<dyn HostNetwork>) -> Self {
        Self { port }
    }

    /// The blocking face of [`HcnClient::from_env`].
    pub fn from_env() -> Result<Self, HcnError> {
        HcnClient::from_env().map(|client| client.blocking().clone())
    }

    /// The blocking face of [`HcnClient::connect`].
    pub fn connect(address: &str) -> Result<Self, HcnError> {
        HcnClient::connect(address).map(|client| client.blocking().clone())
    }

    /// The blocking face of [`HcnClient::of_this_host`].
    pub fn of_this_host() -> Result<Self, HcnError> {
        HcnClient::of_this_host().map(|client| client.blocking().clone())
    }

    pub fn port(&self) -> &Arc<dyn HostNetwork> {
        &self.port
    }

    fn call(&self, function: Function, object: &str, args: Args<'_>) -> Result<crate::port::Reply, HcnError> {
        self.port.call(function, args).map_err(|raw| HcnError::call(function, object, raw))
    }

    fn opened(&self, function: Function, object: &str, args: Args<'_>) -> Result<Open<'_>, HcnError> {
        let (Function::Open(kind) | Function::Create(kind)) = function else {
            return Err(HcnError::Unavailable(format!("{function} opens nothing")));
        };
        let reply = self.call(function, object, args)?;
        let handle = reply.handle.ok_or_else(|| unreadable(function, object, "no handle", ""))?;
        Ok(Open { client: self, kind, handle })
    }

    fn open<T: Object>(&self, id: &Guid) -> Result<Option<Open<'_>>, HcnError> {
        let args = Args { id: Some(*id), ..Args::default() };
        match self.opened(Function::Open(T::KIND), &id.to_string(), args) {
            Ok(open) => Ok(Some(open)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn query<T: Object>(&self, open: &Open<'_>, object: &str) -> Result<T, HcnError> {
        let function = Function::Query(T::KIND);
        let query = to_text(&Query::default());
        let reply = self.call(function, object, Args { handle: Some(open.handle), query: Some(&query), ..Args::default() })?;
        read(function, object, &reply.result.unwrap_or_default())
    }

    /// The ids of all objects that `query` selects.
    pub fn ids<T: Object>(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        let function = Function::Enumerate(T::KIND);
        let query = to_text(query);
        let reply = self.call(function, "all", Args { query: Some(&query), ..Args::default() })?;
        match reply.result.as_deref() {
            None | Some("" | "null") => Ok(Vec::new()),
            Some(text) => read(function, "all", text),
        }
    }

    /// All objects that `query` selects. An object that vanishes meanwhile is left out.
    pub fn list<T: Object>(&self, query: &Query) -> Result<Vec<T>, HcnError> {
        let ids = self.ids::<T>(query)?;
        let mut objects = Vec::with_capacity(ids.len());
        for id in ids {
            objects.extend(self.get::<T>(&id)?);
        }
        Ok(objects)
    }

    pub fn get<T: Object>(&self, id: &Guid) -> Result<Option<T>, HcnError> {
        let Some(open) = self.open::<T>(id)? else { return Ok(None) };
        match self.query(&open, &id.to_string()) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first object of that name (only networks' names are unique).
    pub fn get_by_name<T: Object>(&self, name: &str) -> Result<Option<T>, HcnError> {
        for id in self.ids::<T>(&Query::by_name(name))? {
            if let Some(object) = self.get::<T>(&id)? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    /// Creates an object with that id and reads it back.
    pub fn create<T: Object>(&self, id: Guid, object: &T) -> Result<T, HcnError> {
        let settings = to_text(object);
        let args = Args { id: Some(id), settings: Some(&settings), ..Args::default() };
        let name = id.to_string();
        let open = self.opened(Function::Create(T::KIND), &name, args)?;
        self.query(&open, &name)
    }

    /// Creates an endpoint on `network` with that id and reads it back.
    pub fn create_endpoint(&self, network: &Guid, id: Guid, endpoint: &HostComputeEndpoint) -> Result<HostComputeEndpoint, HcnError> {
        let args = Args { id: Some(*network), ..Args::default() };
        let opened_network = self.opened(Function::Open(Kind::Network), &network.to_string(), args)?;
        let settings = to_text(endpoint);
        let args = Args { network: Some(opened_network.handle), id: Some(id), settings: Some(&settings), ..Args::default() };
        let name = if endpoint.name.is_empty() { id.to_string() } else { format!("{} ({id})", endpoint.name) };
        let open = self.opened(Function::Create(Kind::Endpoint), &name, args)?;
        self.query(&open, &name)
    }

    fn modify_text<T: Object>(&self, id: &Guid, settings: &str) -> Result<(), HcnError> {
        let object = id.to_string();
        let open = self.opened(Function::Open(T::KIND), &object, Args { id: Some(*id), ..Args::default() })?;
        let args = Args { handle: Some(open.handle), settings: Some(settings), ..Args::default() };
        self.call(Function::Modify(T::KIND), &object, args).map(drop)
    }

    /// Modifies a network, an endpoint or a namespace.
    pub fn modify<T: Object>(&self, id: &Guid, request: &ModifyRequest) -> Result<(), HcnError> {
        self.modify_text::<T>(id, &to_text(request))
    }

    /// Replaces a load balancer in place ([`SupportedFeatures::modify_load_balancer`]).
    pub fn modify_load_balancer(&self, id: &Guid, load_balancer: &HostComputeLoadBalancer) -> Result<(), HcnError> {
        self.modify_text::<HostComputeLoadBalancer>(id, &to_text(load_balancer))
    }

    /// Puts an endpoint into a namespace. Being there already is success.
    pub fn add_endpoint_to_namespace(&self, namespace: &Guid, endpoint: &Guid) -> Result<(), HcnError> {
        let request = ModifyRequest::namespace_endpoint(RequestType::Add, *endpoint);
        match self.modify::<HostComputeNamespace>(namespace, &request) {
            Err(error) if error.is_already_attached() => Ok(()),
            other => other,
        }
    }

    /// Takes an endpoint out of a namespace. Either being gone already is success.
    pub fn remove_endpoint_from_namespace(&self, namespace: &Guid, endpoint: &Guid) -> Result<(), HcnError> {
        let request = ModifyRequest::namespace_endpoint(RequestType::Remove, *endpoint);
        match self.modify::<HostComputeNamespace>(namespace, &request) {
            Err(error) if error.is_not_found() || error.hresult() == Some(crate::HResult::ENDPOINT_NOT_ATTACHED) => Ok(()),
            other => other,
        }
    }

    /// Deletes an object. Its absence is success.
    pub fn delete<T: Object>(&self, id: &Guid) -> Result<(), HcnError> {
        match self.call(Function::Delete(T::KIND), &id.to_string(), Args { id: Some(*id), ..Args::default() }) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// One `HNSCall`: its `Output` as JSON text. A response without success is an error.
    pub fn hns_call(&self, method: &str, path: &str, body: &str) -> Result<serde_json::Value, HcnError> {
        let object = format!("{method} {path}");
        let args = Args { method: Some(method), path: Some(path), settings: Some(body), ..Args::default() };
        let text = self.call(Function::HnsCall, &object, args)?.result.unwrap_or_default();
        let mut response: serde_json::Map<String, serde_json::Value> = read(Function::HnsCall, &object, &text)?;
        if response.get("Success").and_then(serde_json::Value::as_bool) == Some(true) {
            return Ok(response.remove("Output").unwrap_or_default());
        }
        let code = response.get("ErrorCode").and_then(serde_json::Value::as_u64).and_then(|code| u32::try_from(code).ok());
        let hresult = code.map_or(crate::HResult::FAIL, crate::HResult);
        Err(HcnError::call(Function::HnsCall, object, crate::RawError { hresult, record: Some(text) }))
    }

    /// Gives an endpoint a vNIC in the host's own compartment. Having it already is success.
    pub fn attach_endpoint_to_host(&self, endpoint: &Guid) -> Result<(), HcnError> {
        let body = r#"{"SystemType":"Host","CompartmentId":1}"#;
        match self.hns_call("POST", &format!("/endpoints/{endpoint}/attach"), body) {
            Err(error) if error.is_already_attached() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Takes an endpoint's vNIC out of the host's own compartment. Having none is success.
    pub fn detach_endpoint_from_host(&self, endpoint: &Guid) -> Result<(), HcnError> {
        match self.hns_call("POST", &format!("/endpoints/{endpoint}/detach"), "") {
            Err(error) if error.is_not_found() || error.hresult() == Some(crate::HResult::ENDPOINT_NOT_ATTACHED) => Ok(()),
            other => other.map(drop),
        }
    }

    /// An endpoint's counters (`HNSCall GET /endpointstats/ID`, which every version has); none where it is not attached or gone.
    pub fn endpoint_stats(&self, endpoint: &Guid) -> Result<Option<EndpointStats>, HcnError> {
        let path = format!("/endpointstats/{endpoint}");
        match self.hns_call("GET", &path, "") {
            Ok(output) => read(Function::HnsCall, &path, &output.to_string()).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What this version of the service can do.
    pub fn features(&self) -> Result<SupportedFeatures, HcnError> {
        let output = self.hns_call("GET", "/globals/version", "")?;
        let text = output.to_string();
        let version: HnsVersion = read(Function::HnsCall, "GET /globals/version", &text)?;
        Ok(SupportedFeatures::of(version))
    }

    /// Registers for service notifications.
    pub fn subscribe(&self, sink: EventSink) -> Result<Subscription, HcnError> {
        let unavailable =
            |raw: crate::RawError| HcnError::Unavailable(format!("HcnRegisterServiceCallback failed ({}): try again later", raw.hresult));
        self.port.subscribe(sink).map_err(unavailable)
    }
}

fn unreadable(function: Function, object: &str, reason: impl ToString, text: &str) -> HcnError {
    HcnError::Document { operation: format!("{function} of {object}"), reason: reason.to_string(), text: text.chars().take(200).collect() }
}

fn read<T: DeserializeOwned>(function: Function, object: &str, text: &str) -> Result<T, HcnError> {
    serde_json::from_str(text).map_err(|error| unreadable(function, object, error, text))
}
