//! Typed blocking calls over any port.
//!
//! Habits: no get before a delete, no list where an id is known, every opened handle is closed, and an object that vanishes between an
//! enumeration and its open is not in the list. Over a plain port a call may never return; [`HcnClient::blocking`] gives the client whose
//! calls end.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::HcnClient;
use crate::document::{
    EndpointStats, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, ModifyRequest, Query,
    RequestType, to_text, v1,
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
pub struct Opened<'a, T: Object> {
    client: &'a Client,
    handle: Handle,
    /// For errors.
    name: String,
    kind: PhantomData<fn() -> T>,
}

impl<T: Object> Drop for Opened<'_, T> {
    fn drop(&mut self) {
        let args = Args { handle: Some(self.handle), ..Args::default() };
        if let Err(error) = self.client.port.call(Function::Close(T::KIND), args) {
            tracing::debug!(kind = T::KIND.as_str(), ?error, "an HCN handle could not be closed");
        }
    }
}

impl<'a, T: Object> Opened<'a, T> {
    fn query(&self) -> Result<T, HcnError> {
        let function = Function::Query(T::KIND);
        let query = to_text(&Query::default());
        let reply = self.client.call(function, &self.name, Args { handle: Some(self.handle), query: Some(&query), ..Args::default() })?;
        read(function, &self.name, &reply.result.unwrap_or_default())
    }

    /// The object as it is now; none where it is gone.
    pub fn read(&self) -> Result<Option<T>, HcnError> {
        match self.query() {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<'a> Opened<'a, HostComputeNetwork> {
    /// Creates an endpoint on the network, with that id. It is not read back.
    pub fn create_endpoint(&self, id: Guid, endpoint: &HostComputeEndpoint) -> Result<Opened<'a, HostComputeEndpoint>, HcnError> {
        let settings = to_text(endpoint);
        let args = Args { network: Some(self.handle), id: Some(id), settings: Some(&settings), ..Args::default() };
        let name = if endpoint.name.is_empty() { id.to_string() } else { format!("{} ({id})", endpoint.name) };
        self.client.opened(Function::Create(Kind::Endpoint), name, args)
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

    fn opened<T: Object>(&self, function: Function, name: String, args: Args<'_>) -> Result<Opened<'_, T>, HcnError> {
        let reply = self.call(function, &name, args)?;
        let handle = reply.handle.ok_or_else(|| unreadable(function, &name, "no handle", ""))?;
        Ok(Opened { client: self, handle, name, kind: PhantomData })
    }

    fn open_existing<T: Object>(&self, id: &Guid) -> Result<Opened<'_, T>, HcnError> {
        self.opened(Function::Open(T::KIND), id.to_string(), Args { id: Some(*id), ..Args::default() })
    }

    /// Opens the object with that id; none where there is none.
    pub fn open<T: Object>(&self, id: &Guid) -> Result<Option<Opened<'_, T>>, HcnError> {
        match self.open_existing(id) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
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
        self.open::<T>(id)?.map_or(Ok(None), |opened| opened.read())
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
        self.opened::<T>(Function::Create(T::KIND), id.to_string(), args)?.query()
    }

    /// Creates an endpoint on `network` with that id and reads it back.
    pub fn create_endpoint(&self, network: &Guid, id: Guid, endpoint: &HostComputeEndpoint) -> Result<HostComputeEndpoint, HcnError> {
        self.open_existing::<HostComputeNetwork>(network)?.create_endpoint(id, endpoint)?.query()
    }

    fn modify_text<T: Object>(&self, id: &Guid, settings: &str) -> Result<(), HcnError> {
        let opened = self.open_existing::<T>(id)?;
        let args = Args { handle: Some(opened.handle), settings: Some(settings), ..Args::default() };
        self.call(Function::Modify(T::KIND), &opened.name, args).map(drop)
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

    /// All endpoints as the first version of the API shows them (`HNSCall GET /endpoints`): with the containers that are at each.
    pub fn v1_endpoints(&self) -> Result<Vec<v1::Endpoint>, HcnError> {
        let output = self.hns_call("GET", "/endpoints", "")?;
        read(Function::HnsCall, "GET /endpoints", &output.to_string())
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
