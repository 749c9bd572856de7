//! `HNSCall`: the part of the older interface that clients of the newer one still need.

use hcn::{Args, EndpointState, Event, Guid, HResult, Kind, RawError};
use serde_json::{Value, json};

use super::namespaces::detached;
use super::{Context, Result, Staged, error, explained, not_found, read};
use crate::state::{Change, Endpoint, Object};

impl Context<'_> {
    /// `HNSCall`. A refused request is a successful call whose response says so.
    pub fn hns_call(&self, args: &Args<'_>) -> Staged {
        let method = args.method.unwrap_or_default().to_ascii_uppercase();
        let path = args.path.unwrap_or_default().trim_matches('/').to_ascii_lowercase();
        let parts: Vec<&str> = path.split('/').collect();
        let outcome = match (method.as_str(), parts.as_slice()) {
            ("GET", ["globals", "version"]) => Ok((Staged::default(), json!(self.switches.version))),
            // What is left of the older load balancers: none. Clients list them to see whether the service answers.
            ("GET", ["policylists"]) => Ok((Staged::default(), json!([]))),
            ("POST", ["endpoints", id, "attach"]) => self.attach_to_host(id, args.settings),
            ("POST", ["endpoints", id, "detach"]) => self.detach_from_host(id),
            _ => Err(explained(HResult::REQUEST_UNSUPPORTED, &format!("The specified request is unsupported: {method} /{path}"))),
        };
        match outcome {
            Ok((mut staged, output)) => {
                staged.text = Some(json!({"Success": true, "Output": output}).to_string());
                staged
            }
            Err(RawError { hresult, record }) => {
                Staged::text(record.unwrap_or_else(|| json!({"Success": false, "ErrorCode": hresult.0}).to_string()))
            }
        }
    }

    fn endpoint(&self, id: &str) -> Result<(Guid, Endpoint)> {
        let id: Guid = id.parse().map_err(|_| error(HResult::GUID_CONVERSION_FAILURE))?;
        let endpoint = self.state.endpoints.get(&id).cloned().ok_or_else(|| not_found(Kind::Endpoint))?;
        Ok((id, endpoint))
    }

    /// Gives an endpoint a vNIC in the host's own compartment.
    fn attach_to_host(&self, id: &str, body: Option<&str>) -> Result<(Staged, Value)> {
        let body: serde_json::Map<String, Value> = read(body)?;
        let system = body.iter().find(|(key, _)| key.eq_ignore_ascii_case("SystemType")).and_then(|(_, value)| value.as_str());
        if !system.is_some_and(|system| system.eq_ignore_ascii_case("Host")) {
            return Err(error(HResult::REQUEST_UNSUPPORTED));
        }
        let (id, mut endpoint) = self.endpoint(id)?;
        if endpoint.document.is_remote() {
            return Err(error(HResult::INVALID_REMOTE_ENDPOINT_OPERATION));
        }
        if endpoint.on_host || !endpoint.document.host_compute_namespace.is_nil() {
            return Err(error(HResult::ENDPOINT_ALREADY_ATTACHED));
        }
        endpoint.on_host = true;
        endpoint.document.state = EndpointState::ATTACHED;
        let staged = Staged::change(Change::put(id, Object::Endpoint(endpoint)));
        Ok((staged.event(Event::ENDPOINT_ATTACHED, id, json!({"CompartmentId": 1})), Value::Null))
    }

    fn detach_from_host(&self, id: &str) -> Result<(Staged, Value)> {
        let (id, endpoint) = self.endpoint(id)?;
        if !endpoint.on_host {
            return Err(error(HResult::ENDPOINT_NOT_ATTACHED));
        }
        let staged = Staged::change(Change::put(id, Object::Endpoint(detached(&endpoint))));
        Ok((staged.event(Event::ENDPOINT_DETACHED, id, json!({"CompartmentId": 1})), Value::Null))
    }
}
