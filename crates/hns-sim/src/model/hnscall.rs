//! `HNSCall`: the older interface, as far as programs of Kubernetes use it.

use hcn::document::{PortMappingFlags, v1};
use hcn::{
    Args, EndpointState, Event, Guid, HResult, HostComputeLoadBalancer, HostComputeRoute, Kind, LoadBalancerFlags, LoadBalancerPortMapping, RawError,
    SdnRoute,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::namespaces::detached;
use super::{Context, Result, Staged, explained, failure, new_id, read, read_either};
use crate::state::{Change, Endpoint, Object};

/// What a request changes, and what it answers.
type Answered = (Staged, Value);

/// The balancing part of a policy list.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Elb {
    #[serde(rename = "SourceVIP")]
    source_vip: String,
    #[serde(rename = "VIPs")]
    vips: Vec<String>,
    protocol: hcn::Protocol,
    internal_port: u16,
    external_port: u16,
    #[serde(rename = "ILB")]
    ilb: bool,
    #[serde(rename = "DSR", alias = "IsDSR")]
    dsr: bool,
}

/// The routing part of a policy list.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RoutePolicy {
    destination_prefix: String,
    next_hop: String,
    encap_enabled: bool,
    need_encap: bool,
}

fn unchanged(output: Value) -> Result<Answered> {
    Ok((Staged::default(), output))
}

fn guid(id: &str) -> Result<Guid> {
    id.parse().map_err(|_| failure(HResult::GUID_CONVERSION_FAILURE))
}

impl Context<'_> {
    /// `HNSCall`. The call succeeds also for a refused request; its response has the error.
    pub fn hns_call(&self, args: &Args<'_>) -> Staged {
        let method = args.method.unwrap_or_default().to_ascii_uppercase();
        let path = args.path.unwrap_or_default().trim_matches('/').to_ascii_lowercase();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let body = args.settings;
        let outcome = match (method.as_str(), parts.as_slice()) {
            ("GET", ["globals", "version"]) => unchanged(json!(self.switches.version)),
            ("GET", [family]) if kind_of(family).is_some() => self.list(family),
            ("GET", ["policylists"]) => Ok(self.policy_lists()),
            ("GET", ["policylists", id]) => self.policy_list(id),
            ("GET", ["endpointstats", id]) => guid(id).and_then(|id| unchanged(json!(self.counters(id)?))),
            ("GET", ["accelnet", ..]) if self.switches.features().accelnet => unchanged(Value::Null),
            ("GET", [family, id]) if kind_of(family).is_some() => self.one(family, id),
            ("POST", ["networks"]) => self.post_network(body),
            ("POST", ["endpoints"]) => self.post_endpoint(body),
            ("POST", ["policylists"]) => self.post_policy_list(body),
            ("POST", ["namespaces"]) => self.post_namespace(body),
            ("POST", ["endpoints", id]) => self.update_endpoint(id, body),
            ("POST", ["endpoints", id, "attach"]) => self.attach_to_host(id, body),
            ("POST", ["endpoints", id, "detach"]) => self.detach_from_host(id),
            ("POST", ["namespaces", id, "addresource"]) => self.change_resource(id, body, true),
            ("POST", ["namespaces", id, "removeresource"]) => self.change_resource(id, body, false),
            ("DELETE", [family, id]) => self.remove(family, id),
            _ => Err(explained(HResult::REQUEST_UNSUPPORTED, &format!("The specified request is unsupported: {method} /{path}"))),
        };
        match outcome {
            Ok((mut staged, output)) => {
                staged.opened = None;
                staged.text = Some(json!({"Success": true, "Output": output}).to_string());
                staged
            }
            Err(RawError { hresult, record }) => {
                Staged::text(record.unwrap_or_else(|| json!({"Success": false, "ErrorCode": hresult.0}).to_string()))
            }
        }
    }

    fn list(&self, family: &str) -> Result<Answered> {
        let Some(kind) = kind_of(family) else { return Err(failure(HResult::REQUEST_UNSUPPORTED)) };
        let objects = self.state.ids_of(kind).into_iter().filter_map(|id| Some(self.older(id, &self.state.get(kind, &id)?)));
        unchanged(Value::Array(objects.collect()))
    }

    fn one(&self, family: &str, id: &str) -> Result<Answered> {
        let kind = kind_of(family).ok_or_else(|| failure(HResult::REQUEST_UNSUPPORTED))?;
        let id = guid(id)?;
        unchanged(self.older(id, &self.get(kind, &id)?))
    }

    /// Load balancers and routing rules are policy lists here.
    fn policy_lists(&self) -> Answered {
        let of = |kind: Kind| self.state.ids_of(kind).into_iter().filter_map(move |id| Some(self.older(id, &self.state.get(kind, &id)?)));
        (Staged::default(), Value::Array(of(Kind::LoadBalancer).chain(of(Kind::SdnRoute)).collect()))
    }

    fn policy_list(&self, id: &str) -> Result<Answered> {
        let id = guid(id)?;
        let object = self.state.get(Kind::LoadBalancer, &id).or_else(|| self.state.get(Kind::SdnRoute, &id));
        unchanged(self.older(id, &object.ok_or_else(|| failure(HResult::ELEMENT_NOT_FOUND))?))
    }

    /// The object that a change makes, in the older shape. What depends on other changes is as it was before.
    fn made(&self, staged: Staged) -> Result<Answered> {
        let made = staged.changes.iter().find_map(|change| Some((change.id, change.after.as_ref()?)));
        let output = made.map_or(Value::Null, |(id, object)| self.older(id, object));
        Ok((staged, output))
    }

    fn post_network(&self, body: Option<&str>) -> Result<Answered> {
        let network = read_either(body, v1::network)?;
        let staged = self.put_new_network(new_id(&Args::default(), network.id), network)?;
        self.made(staged)
    }

    fn post_endpoint(&self, body: Option<&str>) -> Result<Answered> {
        let endpoint = read_either(body, v1::endpoint)?;
        let staged = self.put_new_endpoint(new_id(&Args::default(), endpoint.id), endpoint.host_compute_network, endpoint)?;
        self.made(staged)
    }

    /// An update of an endpoint replaces its policies, as the newer interface's does.
    fn update_endpoint(&self, id: &str, body: Option<&str>) -> Result<Answered> {
        let (id, endpoint) = self.endpoint(id)?;
        let given = read_either(body, v1::endpoint)?;
        let request = hcn::ModifyRequest::endpoint_policies(hcn::RequestType::Update, &given.policies);
        let staged = self.modify_endpoint(id, endpoint, &request)?;
        self.made(staged)
    }

    fn post_namespace(&self, body: Option<&str>) -> Result<Answered> {
        let staged = self.create_namespace(&Args { settings: body, ..Args::default() })?;
        self.made(staged)
    }

    fn post_policy_list(&self, body: Option<&str>) -> Result<Answered> {
        let list: v1::PolicyList = read(body)?;
        let last = |reference: &String| guid(reference.rsplit('/').next().unwrap_or_default());
        let host_compute_endpoints: Vec<Guid> = list.references.iter().map(last).collect::<Result<_>>()?;
        let [policy] = list.policies.as_slice() else { return Err(failure(HResult::INVALID_POLICY)) };
        let settings = Value::Object(policy.extra.clone());
        let id = new_id(&Args::default(), list.id);
        let staged = match policy.policy_type.as_str().to_ascii_uppercase().as_str() {
            "ELB" => {
                let elb: Elb = serde_json::from_value(settings).map_err(|_| failure(HResult::INVALID_POLICY))?;
                let flag = |set: bool, bit: u32| if set { bit } else { 0 };
                let mapping = LoadBalancerPortMapping {
                    protocol: elb.protocol,
                    internal_port: elb.internal_port,
                    external_port: elb.external_port,
                    flags: PortMappingFlags(flag(elb.ilb, PortMappingFlags::INTERNAL.0)),
                    ..LoadBalancerPortMapping::default()
                };
                let document = HostComputeLoadBalancer {
                    host_compute_endpoints,
                    source_vip: elb.source_vip,
                    frontend_vips: elb.vips,
                    port_mappings: vec![mapping],
                    flags: LoadBalancerFlags(flag(elb.dsr, LoadBalancerFlags::DSR.0)),
                    ..HostComputeLoadBalancer::default()
                };
                self.put_new_balancer(id, document)?
            }
            "ROUTE" => {
                let route: RoutePolicy = serde_json::from_value(settings).map_err(|_| failure(HResult::INVALID_POLICY))?;
                let rule = SdnRoute {
                    destination_prefix: route.destination_prefix,
                    next_hop: route.next_hop,
                    need_encap: route.encap_enabled || route.need_encap,
                    ..SdnRoute::default()
                };
                self.put_new_route(id, HostComputeRoute { host_compute_endpoints, routes: vec![rule], ..HostComputeRoute::default() })?
            }
            _ => return Err(failure(HResult::INVALID_POLICY_TYPE)),
        };
        self.made(staged)
    }

    fn remove(&self, family: &str, id: &str) -> Result<Answered> {
        let id = guid(id)?;
        let kind = match family {
            "policylists" if self.state.routes.contains_key(&id) => Kind::SdnRoute,
            "policylists" => Kind::LoadBalancer,
            _ => kind_of(family).ok_or_else(|| failure(HResult::REQUEST_UNSUPPORTED))?,
        };
        Ok((self.delete(kind, &Args { id: Some(id), ..Args::default() })?, Value::Null))
    }

    fn endpoint(&self, id: &str) -> Result<(Guid, Endpoint)> {
        let id = guid(id)?;
        Ok((id, self.state.endpoint(&id).ok_or_else(|| self.not_found(Kind::Endpoint))?))
    }

    /// Gives an endpoint a vNIC in the host's own compartment.
    fn attach_to_host(&self, id: &str, body: Option<&str>) -> Result<Answered> {
        let body: Map<String, Value> = read(body)?;
        let system = body.iter().find(|(key, _)| key.eq_ignore_ascii_case("SystemType")).and_then(|(_, value)| value.as_str());
        if !system.is_some_and(|system| system.eq_ignore_ascii_case("Host")) {
            return Err(failure(HResult::REQUEST_UNSUPPORTED));
        }
        let (id, mut endpoint) = self.endpoint(id)?;
        if endpoint.document.is_remote() {
            return Err(failure(HResult::INVALID_REMOTE_ENDPOINT_OPERATION));
        }
        if endpoint.on_host || !endpoint.document.host_compute_namespace.is_nil() {
            return Err(failure(HResult::ENDPOINT_ALREADY_ATTACHED));
        }
        endpoint.on_host = true;
        endpoint.document.state = EndpointState::ATTACHED;
        let staged = Staged::change(Change::put(id, Object::Endpoint(endpoint)));
        Ok((staged.event(Event::ENDPOINT_ATTACHED, id, 0, json!({"CompartmentId": 1})), Value::Null))
    }

    fn detach_from_host(&self, id: &str) -> Result<Answered> {
        let (id, endpoint) = self.endpoint(id)?;
        if !endpoint.on_host {
            return Err(failure(HResult::ENDPOINT_NOT_ATTACHED));
        }
        let mut changes = self.namespaces_without(&[id]);
        changes.push(Change::put(id, Object::Endpoint(detached(endpoint))));
        let staged = Staged { changes, ..Staged::default() };
        Ok((staged.event(Event::ENDPOINT_DETACHED, id, 0, json!({"CompartmentId": 1})), Value::Null))
    }

    /// `addresource` and `removeresource`: `{"Type":"Endpoint"|"Container","Data":{"Id":…}}`.
    fn change_resource(&self, id: &str, body: Option<&str>, add: bool) -> Result<Answered> {
        let id = guid(id)?;
        let Object::Namespace(namespace) = self.get(Kind::Namespace, &id)? else { return Err(failure(HResult::ELEMENT_NOT_FOUND)) };
        let resource: hcn::NamespaceResource = read(body)?;
        let request = if add { hcn::RequestType::Add } else { hcn::RequestType::Remove };
        let request = match resource.resource_type {
            hcn::document::NamespaceResourceType::Container => hcn::ModifyRequest::namespace_container(request, &resource.data.id),
            _ => hcn::ModifyRequest::namespace_endpoint(request, guid(&resource.data.id)?),
        };
        Ok((self.modify_namespace(id, namespace, &request)?, Value::Null))
    }
}

/// The kind of object whose collection has that name.
fn kind_of(family: &str) -> Option<Kind> {
    match family {
        "networks" => Some(Kind::Network),
        "endpoints" => Some(Kind::Endpoint),
        "namespaces" => Some(Kind::Namespace),
        _ => None,
    }
}
