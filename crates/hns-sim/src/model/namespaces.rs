//! Namespaces, and which endpoints are in them.

use hcn::document::{NamespaceResource, NamespaceResourceData, NamespaceResourceType};
use hcn::{Args, EndpointState, Event, Guid, HResult, HostComputeNamespace, Kind, ModifyRequest, NamespaceType, RequestType};
use serde_json::{Value, json};

use super::{Context, Result, Staged, error, new_id, not_found, read};
use crate::state::{Change, Endpoint, Object};

/// The host's own compartment.
const HOST_COMPARTMENT: u32 = 1;

impl Context<'_> {
    pub(super) fn create_namespace(&self, args: &Args<'_>) -> Result<Staged> {
        let mut namespace: HostComputeNamespace = read(args.settings)?;
        let id = new_id(args, namespace.id);
        if self.state.namespaces.contains_key(&id) {
            return Err(error(HResult::ALREADY_EXISTS));
        }
        if namespace.namespace_type != NamespaceType::Host {
            // Guests are virtual machines; the host's own compartment exists without a namespace object.
            return Err(error(HResult::REQUEST_UNSUPPORTED));
        }
        let highest = self.state.namespaces.values().map(|namespace| namespace.namespace_id).max();
        namespace.id = id;
        namespace.namespace_guid = id;
        namespace.namespace_id = highest.unwrap_or(HOST_COMPARTMENT).saturating_add(1);
        namespace.resources.clear();
        namespace.create_with_compartment = false;
        namespace.state = 1;
        namespace.version = self.switches.version.packed();
        let staged = Staged::change(Change::put(id, Object::Namespace(namespace)));
        Ok(staged.event(Event::NAMESPACE_CREATE, id, Value::Null))
    }

    pub(super) fn modify_namespace(&self, id: Guid, namespace: HostComputeNamespace, request: &ModifyRequest) -> Result<Staged> {
        let member = |name: &str| {
            let settings = request.settings.as_object()?;
            settings.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?.1.as_str().map(str::to_owned)
        };
        let endpoint = |text: Option<String>| text.unwrap_or_default().parse::<Guid>().map_err(|_| error(HResult::GUID_CONVERSION_FAILURE));
        match (request.resource_type.as_str().to_ascii_lowercase().as_str(), &request.request_type) {
            ("endpoint" | "1", RequestType::Add) => self.attach(id, namespace, endpoint(member("EndpointId"))?),
            ("endpoint" | "1", RequestType::Remove) => self.detach(id, endpoint(member("EndpointId"))?),
            ("container" | "0", RequestType::Add | RequestType::Remove) => {
                let container = member("ContainerId").ok_or_else(|| error(HResult::INVALID_JSON))?;
                Ok(change_container(id, namespace, &request.request_type, &container))
            }
            _ => Err(error(HResult::REQUEST_UNSUPPORTED)),
        }
    }

    fn attach(&self, id: Guid, mut namespace: HostComputeNamespace, endpoint_id: Guid) -> Result<Staged> {
        let mut endpoint = self.state.endpoints.get(&endpoint_id).cloned().ok_or_else(|| not_found(Kind::Endpoint))?;
        if endpoint.document.is_remote() {
            return Err(error(HResult::INVALID_REMOTE_ENDPOINT_OPERATION));
        }
        match endpoint.document.host_compute_namespace {
            current if current == id => return Err(error(HResult::ENDPOINT_ALREADY_ATTACHED)),
            Guid::NIL if endpoint.on_host => return Err(error(HResult::ENDPOINT_ALREADY_ATTACHED)),
            Guid::NIL => {}
            _ => return Err(error(HResult::ENDPOINT_NAMESPACE_ALREADY_EXISTS)),
        }
        endpoint.document.host_compute_namespace = id;
        endpoint.document.state = EndpointState::ATTACHED_SHARING;
        endpoint.interface = Some(self.free_interface(&namespace));
        namespace.resources.push(NamespaceResource::endpoint(endpoint_id));
        let changes = vec![Change::put(id, Object::Namespace(namespace)), Change::put(endpoint_id, Object::Endpoint(endpoint))];
        Ok(Staged { changes, ..Staged::default() }.event(Event::ENDPOINT_ATTACHED, endpoint_id, json!({"Namespace": id})))
    }

    /// Interfaces are named in the order of attaching; a name that was freed is given again.
    fn free_interface(&self, namespace: &HostComputeNamespace) -> String {
        let names: Vec<_> = namespace.endpoints().filter_map(|id| self.state.endpoints.get(&id)?.interface.clone()).collect();
        let mut all = (0..).map(|index: u32| format!("eth{index}"));
        all.find(|name| !names.contains(name)).unwrap_or_default()
    }

    fn detach(&self, id: Guid, endpoint_id: Guid) -> Result<Staged> {
        let endpoint = self.state.endpoints.get(&endpoint_id).ok_or_else(|| not_found(Kind::Endpoint))?;
        match endpoint.document.host_compute_namespace {
            current if current == id => {}
            Guid::NIL => return Err(error(HResult::ELEMENT_NOT_FOUND)),
            _ => return Err(error(HResult::ENDPOINT_NOT_ATTACHED)),
        }
        let mut staged = Staged { changes: self.detached_from_namespace(endpoint_id).into_iter().collect(), ..Staged::default() };
        staged.changes.push(Change::put(endpoint_id, Object::Endpoint(detached(endpoint))));
        Ok(staged.event(Event::ENDPOINT_DETACHED, endpoint_id, json!({"Namespace": id})))
    }

    /// The namespace of an endpoint, without it.
    pub(super) fn detached_from_namespace(&self, endpoint_id: Guid) -> Option<Change> {
        let endpoint = self.state.endpoints.get(&endpoint_id)?;
        let namespace_id = endpoint.document.host_compute_namespace;
        let mut namespace = self.state.namespaces.get(&namespace_id)?.clone();
        namespace
            .resources
            .retain(|resource| resource.resource_type != NamespaceResourceType::Endpoint || resource.data.id.parse::<Guid>() != Ok(endpoint_id));
        Some(Change::put(namespace_id, Object::Namespace(namespace)))
    }

    /// Containers hold a namespace; endpoints do not: they are detached and survive.
    pub(super) fn delete_namespace(&self, id: Guid, namespace: &HostComputeNamespace) -> Result<Staged> {
        if namespace.resources.iter().any(|resource| resource.resource_type == NamespaceResourceType::Container) {
            return Err(error(HResult::REQUEST_UNSUPPORTED));
        }
        let endpoints = namespace.endpoints().filter_map(|id| Some((id, self.state.endpoints.get(&id)?)));
        let mut changes: Vec<_> = endpoints.map(|(id, endpoint)| Change::put(id, Object::Endpoint(detached(endpoint)))).collect();
        changes.push(Change::delete(Kind::Namespace, id));
        Ok(Staged { changes, ..Staged::default() }.event(Event::NAMESPACE_DELETE, id, Value::Null))
    }
}

/// The endpoint, attached to nothing.
pub(super) fn detached(endpoint: &Endpoint) -> Endpoint {
    let mut endpoint = endpoint.clone();
    endpoint.document.host_compute_namespace = Guid::NIL;
    endpoint.document.state = EndpointState::DETACHED;
    endpoint.interface = None;
    endpoint.on_host = false;
    endpoint
}

fn change_container(id: Guid, mut namespace: HostComputeNamespace, request_type: &RequestType, container: &str) -> Staged {
    let is_it = |resource: &NamespaceResource| resource.resource_type == NamespaceResourceType::Container && resource.data.id == container;
    namespace.resources.retain(|resource| !is_it(resource));
    if *request_type == RequestType::Add {
        let data = NamespaceResourceData { id: container.to_owned(), ..NamespaceResourceData::default() };
        namespace.resources.push(NamespaceResource { resource_type: NamespaceResourceType::Container, data, ..NamespaceResource::default() });
    }
    Staged::change(Change::put(id, Object::Namespace(namespace)))
}
