//! Namespaces: network compartments.

use serde_json::Value;

use super::{Health, SchemaVersion};
use crate::guid::Guid;

named! {
    /// What a namespace is for.
    pub enum NamespaceType {
        default Host;
        /// A compartment of this host (a pod).
        Host = "Host" / 0,
        /// The host's own compartment, number 1.
        HostDefault = "HostDefault" / 1,
        /// Inside a virtual machine.
        Guest = "Guest" / 2,
        /// The virtual machine's own.
        GuestDefault = "GuestDefault" / 3,
    }
}

named! {
    /// What a namespace holds.
    pub enum NamespaceResourceType {
        default Endpoint;
        Container = "Container" / 0,
        Endpoint = "Endpoint" / 1,
    }
}

document! {
    /// The object that a resource names.
    pub struct NamespaceResourceData {
        /// Its identifier: a GUID for endpoints, any text for containers.
        id: String = "Id";
    }
}

document! {
    /// One thing that a namespace holds.
    pub struct NamespaceResource {
        resource_type: NamespaceResourceType = "Type", always;
        data: NamespaceResourceData = "Data";
    }
}

impl NamespaceResource {
    pub fn container(id: &str) -> Self {
        let data = NamespaceResourceData { id: id.to_owned(), ..NamespaceResourceData::default() };
        Self { resource_type: NamespaceResourceType::Container, data, ..Self::default() }
    }

    pub fn endpoint(id: Guid) -> Self {
        let data = NamespaceResourceData { id: id.to_string(), ..NamespaceResourceData::default() };
        Self { resource_type: NamespaceResourceType::Endpoint, data, ..Self::default() }
    }
}

document! {
    /// A namespace (`HostComputeNamespace`).
    pub struct HostComputeNamespace {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        name: String = "Name";
        /// The HNS version that wrote it.
        version: u64 = "Version";
        /// The compartment's number; 1 is the host's own.
        namespace_id: u32 = "NamespaceId";
        /// The compartment's GUID.
        namespace_guid: Guid = "NamespaceGuid";
        /// What it is for.
        namespace_type: NamespaceType = "Type";
        /// What it holds, in order: the order of endpoints is the order of interfaces.
        resources: Vec<NamespaceResource> = "Resources";
        /// Input only: make the compartment at once, not with the first container.
        create_with_compartment: bool = "CreateWithCompartment";
        /// Whether it is the host's own.
        is_default: bool = "IsDefault";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        additional_params: Option<Box<Value>> = "AdditionalParams";
        /// 1 is normal.
        state: u32 = "State";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}

impl HostComputeNamespace {
    /// The endpoints it holds, in order.
    pub fn endpoints(&self) -> impl Iterator<Item = Guid> {
        self.resources.iter().filter(|resource| resource.resource_type == NamespaceResourceType::Endpoint).filter_map(|r| r.data.id.parse().ok())
    }
}
