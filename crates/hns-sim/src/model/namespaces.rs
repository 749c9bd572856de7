//! Validation and effects of calls on namespaces and the endpoints in them.

use std::collections::BTreeMap;

use hcn::document::{ContainerSettings, EndpointSettings, NamespaceResource, NamespaceResourceType};
use hcn::{Args, EndpointState, Event, Guid, HResult, HostComputeNamespace, Kind, ModifyRequest, NamespaceType, RequestType};
use serde_json::{Value, json};

use super::{Context, Result, Staged, failure, new_id, read, read_value};
use crate::compile::awaits_compartment;
use crate::state::{Change, Endpoint, Object, endpoint_of};

pub(crate) const HOST_COMPARTMENT: u32 = 1;

impl Context<'_> {
    pub(super) fn create_namespace(&self, args: &Args<'_>) -> Result<Staged> {
        let mut namespace: HostComputeNamespace = read(args.settings)?;
        let id = new_id(args, namespace.id);
        if self.state.namespaces.contains_key(&id) {
            return Err(failure(HResult::ALREADY_EXISTS));
        }
        namespace.namespace_id = match namespace.namespace_type {
            NamespaceType::Host if self.switches.enable_compartment_namespace || namespace.create_with_compartment => self.next_compartment(),
            NamespaceType::Host => 0,
            NamespaceType::HostDefault => {
                let second = self.state.namespaces.values().any(|other| other.namespace_type == NamespaceType::HostDefault);
                if second && self.switches.second_default_namespace_refused {
                    return Err(failure(HResult::GCN_DEFAULTNAMESPACE_EXISTS));
                }
                HOST_COMPARTMENT
            }
            // The client chooses the number inside the virtual machine.
            NamespaceType::Guest | NamespaceType::GuestDefault => namespace.namespace_id,
            NamespaceType::Other(_) => return Err(failure(HResult::INVALID_PARAMETER)),
        };
        namespace.id = id;
        namespace.namespace_guid = id;
        namespace.is_default = namespace.namespace_type == NamespaceType::HostDefault;
        namespace.resources.clear();
        namespace.create_with_compartment = false;
        namespace.state = 1;
        namespace.version = self.switches.version.packed();
        let staged = Staged { opened: Some((Kind::Namespace, id)), ..Staged::change(Change::put(id, Object::Namespace(namespace))) };
        Ok(staged.event(Event::NAMESPACE_CREATE, id, 0, Value::Null))
    }

    /// The number of the next compartment.
    pub(super) fn next_compartment(&self) -> u32 {
        self.state.index().highest_compartment().unwrap_or(0).max(HOST_COMPARTMENT).saturating_add(1)
    }

    pub(super) fn modify_namespace(&self, id: Guid, mut namespace: HostComputeNamespace, request: &ModifyRequest) -> Result<Staged> {
        let settings = &request.settings;
        match (NamespaceResourceType::parse(request.resource_type.as_str()), &request.request_type) {
            (NamespaceResourceType::Endpoint, RequestType::Add) => self.attach(id, namespace, read_value::<EndpointSettings>(settings)?.endpoint_id),
            (NamespaceResourceType::Endpoint, RequestType::Remove) => self.detach(id, read_value::<EndpointSettings>(settings)?.endpoint_id),
            (NamespaceResourceType::Container, RequestType::Add | RequestType::Remove) => {
                let ContainerSettings { container_id, .. } = read_value(settings)?;
                if container_id.is_empty() {
                    return Err(failure(HResult::INVALID_JSON));
                }
                if request.request_type == RequestType::Add && awaits_compartment(&namespace) {
                    namespace.namespace_id = self.next_compartment();
                }
                Ok(change_container(id, namespace, &request.request_type, &container_id))
            }
            _ => Err(failure(HResult::REQUEST_UNSUPPORTED)),
        }
    }

    pub(super) fn attach(&self, id: Guid, mut namespace: HostComputeNamespace, endpoint_id: Guid) -> Result<Staged> {
        let mut endpoint = self.state.endpoint(&endpoint_id).ok_or_else(|| self.not_found(Kind::Endpoint))?;
        if endpoint.document.is_remote() {
            return Err(failure(HResult::INVALID_REMOTE_ENDPOINT_OPERATION));
        }
        match endpoint.document.host_compute_namespace {
            current if current == id => return Err(failure(HResult::ENDPOINT_ALREADY_ATTACHED)),
            Guid::NIL if endpoint.on_host => return Err(failure(HResult::ENDPOINT_ALREADY_ATTACHED)),
            Guid::NIL => {}
            _ => return Err(failure(HResult::ENDPOINT_NAMESPACE_ALREADY_EXISTS)),
        }
        endpoint.document.host_compute_namespace = id;
        match namespace.namespace_type {
            NamespaceType::HostDefault => {
                endpoint.on_host = true;
                endpoint.document.state = EndpointState::ATTACHED;
            }
            _ => {
                endpoint.interface = Some(self.free_interface(&namespace));
                endpoint.document.state = EndpointState::ATTACHED_SHARING;
            }
        }
        namespace.resources.push(NamespaceResource::endpoint(endpoint_id));
        let changes = vec![Change::put(id, Object::Namespace(namespace)), Change::put(endpoint_id, Object::Endpoint(endpoint))];
        Ok(Staged { changes, ..Staged::default() }.event(Event::ENDPOINT_ATTACHED, endpoint_id, 0, json!({"Namespace": id})))
    }

    /// Interfaces are named in the order of attaching; a name that was freed is given again.
    fn free_interface(&self, namespace: &HostComputeNamespace) -> String {
        let names: Vec<_> = namespace.endpoints().filter_map(|id| self.state.endpoints.get(&id)?.interface.clone()).collect();
        let mut all = (0..).map(|index: u32| format!("eth{index}"));
        all.find(|name| !names.iter().any(|taken| **taken == **name)).unwrap_or_default()
    }

    pub(super) fn detach(&self, id: Guid, endpoint_id: Guid) -> Result<Staged> {
        let endpoint = self.state.endpoint(&endpoint_id).ok_or_else(|| self.not_found(Kind::Endpoint))?;
        match endpoint.document.host_compute_namespace {
            current if current == id => {}
            Guid::NIL => return Err(failure(self.switches.removing_detached)),
            _ => return Err(failure(HResult::ENDPOINT_NOT_ATTACHED)),
        }
        let mut staged = Staged { changes: self.namespaces_without(&[endpoint_id]), ..Staged::default() };
        staged.changes.push(Change::put(endpoint_id, Object::Endpoint(detached(endpoint))));
        Ok(staged.event(Event::ENDPOINT_DETACHED, endpoint_id, 0, json!({"Namespace": id})))
    }

    /// The namespaces of endpoints, without them.
    pub(super) fn namespaces_without(&self, endpoints: &[Guid]) -> Vec<Change> {
        let mut changed: BTreeMap<Guid, HostComputeNamespace> = BTreeMap::new();
        for endpoint_id in endpoints {
            let row = self.state.endpoints.get(endpoint_id).filter(|row| !row.is_remote());
            let Some(namespace_id) = row.map(|row| row.document().host_compute_namespace) else { continue };
            if let Some(namespace) = self.state.namespaces.get(&namespace_id) {
                let namespace = changed.entry(namespace_id).or_insert_with(|| namespace.clone());
                namespace.resources.retain(|resource| endpoint_of(resource) != Some(*endpoint_id));
            }
        }
        changed.into_iter().map(|(id, namespace)| Change::put(id, Object::Namespace(namespace))).collect()
    }

    /// Containers hold a namespace; endpoints do not: they are detached and survive.
    pub(super) fn delete_namespace(&self, id: Guid, namespace: &HostComputeNamespace) -> Result<Staged> {
        if namespace.resources.iter().any(|resource| resource.resource_type == NamespaceResourceType::Container) {
            return Err(failure(HResult::REQUEST_UNSUPPORTED));
        }
        let endpoints: Vec<_> = namespace.endpoints().filter_map(|id| Some((id, self.state.endpoint(&id)?))).collect();
        let mut changes: Vec<_> = endpoints.into_iter().map(|(id, endpoint)| Change::put(id, Object::Endpoint(detached(endpoint)))).collect();
        changes.push(Change::delete(Kind::Namespace, id));
        Ok(Staged { changes, ..Staged::default() }.event(Event::NAMESPACE_DELETE, id, 0, Value::Null))
    }
}

/// The endpoint, attached to nothing.
pub(super) fn detached(mut endpoint: Endpoint) -> Endpoint {
    endpoint.document.host_compute_namespace = Guid::NIL;
    endpoint.document.state = EndpointState::DETACHED;
    Endpoint::detached(endpoint.document)
}

fn change_container(id: Guid, mut namespace: HostComputeNamespace, request_type: &RequestType, container: &str) -> Staged {
    let is_it = |resource: &NamespaceResource| resource.resource_type == NamespaceResourceType::Container && resource.data.id == container;
    namespace.resources.retain(|resource| !is_it(resource));
    if *request_type == RequestType::Add {
        namespace.resources.push(NamespaceResource::container(container));
    }
    Staged::change(Change::put(id, Object::Namespace(namespace)))
}
