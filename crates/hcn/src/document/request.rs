//! Queries and modify requests.

use serde::Serialize;
use serde_json::Value;

use super::{EndpointPolicy, IpSubnet, NetworkPolicy, SchemaVersion, Subnet, Token};
use crate::guid::Guid;

named! {
    /// What a modify request does.
    pub enum RequestType {
        default Add;
        Add = "Add" / 0,
        /// Removes what equals the settings.
        Remove = "Remove" / 1,
        /// Replaces.
        Update = "Update" / 2,
        /// Applies again.
        Refresh = "Refresh" / 3,
        /// Removes everything.
        Reset = "Reset" / 4,
    }
}

document! {
    /// The envelope of a modify request (networks, endpoints, namespaces).
    pub struct ModifyRequest {
        /// A path, rarely given.
        resource_uri: String = "ResourceUri";
        /// What changes: a name, or its number among the object's resource types.
        resource_type: Token = "ResourceType", always;
        /// How it changes.
        request_type: RequestType = "RequestType", always;
        /// The new value.
        settings: Value = "Settings";
    }
}

impl ModifyRequest {
    /// A request of any kind.
    ///
    /// # Panics
    /// When `settings` cannot be written as JSON (a map with keys other than strings).
    pub fn new<T: Serialize>(resource_type: &str, request_type: RequestType, settings: &T) -> Self {
        let settings = serde_json::to_value(settings).expect("settings serialize");
        Self { resource_type: resource_type.into(), request_type, settings, ..Self::default() }
    }

    /// Changes the policies of a network.
    pub fn network_policies(request_type: RequestType, policies: &[NetworkPolicy]) -> Self {
        Self::new("Policy", request_type, &serde_json::json!({"Policies": policies}))
    }

    /// Changes the policies of an endpoint. `Update` replaces the whole list.
    pub fn endpoint_policies(request_type: RequestType, policies: &[EndpointPolicy]) -> Self {
        Self::new("Policy", request_type, &serde_json::json!({"Policies": policies}))
    }

    /// Puts an endpoint into a namespace, or takes it out.
    pub fn namespace_endpoint(request_type: RequestType, endpoint: Guid) -> Self {
        Self::new("Endpoint", request_type, &serde_json::json!({"EndpointId": endpoint}))
    }

    /// Notes that a container is in a namespace, or no longer is.
    pub fn namespace_container(request_type: RequestType, container: &str) -> Self {
        Self::new("Container", request_type, &serde_json::json!({"ContainerId": container}))
    }
}

named! {
    /// What of a network a request changes.
    pub enum NetworkResource {
        default Policy;
        /// Its policies: [`PolicySettings`].
        Policy = "Policy" / 0,
        /// Its name resolution: [`super::Dns`].
        Dns = "DNS" / 1,
        /// An extension of its switch: [`ExtensionSettings`].
        Extension = "Extension" / 2,
        /// Its subnets (schema 2.6): [`SubnetSettings`].
        Subnet = "Subnet",
        /// Parts of a subnet (schema 2.6): [`IpSubnetSettings`].
        IpSubnet = "IPSubnet",
    }
}

named! {
    /// What of an endpoint a request changes.
    pub enum EndpointResource {
        default Port;
        /// Its port at a virtual machine: [`PortSettings`].
        Port = "Port" / 0,
        /// Its policies: [`PolicySettings`].
        Policy = "Policy" / 1,
    }
}

document! {
    /// Settings that change policies: of a network read the entries as [`NetworkPolicy`], of an endpoint as [`EndpointPolicy`].
    pub struct PolicySettings {
        policies: Vec<Value> = "Policies";
    }
}

document! {
    /// Settings that switch an extension of a network's switch.
    pub struct ExtensionSettings {
        id: Guid = "Id";
        /// On or off.
        is_enabled: bool = "IsEnabled";
    }
}

document! {
    /// Settings that change subnets.
    pub struct SubnetSettings {
        subnets: Vec<Subnet> = "Subnets";
    }
}

document! {
    /// Settings that change parts of a subnet.
    pub struct IpSubnetSettings {
        subnet_id: Guid = "SubnetId";
        /// Its parts.
        ip_subnets: Vec<IpSubnet> = "IpSubnets";
    }
}

document! {
    /// Settings that connect an endpoint to a virtual machine.
    pub struct PortSettings {
        /// The switch's port.
        port_id: Guid = "PortId";
        /// `VIRTUAL-MACHINE--ENDPOINT`.
        virtual_nic_name: String = "VirtualNicName";
        virtual_machine_id: String = "VirtualMachineId";
    }
}

document! {
    /// Settings that note a container.
    pub struct ContainerSettings {
        /// Any text.
        container_id: String = "ContainerId";
    }
}

document! {
    /// Settings that name an endpoint.
    pub struct EndpointSettings {
        endpoint_id: Guid = "EndpointId";
    }
}

document! {
    /// A query: which objects, and how their properties are shaped.
    pub struct Query {
        /// 2.x asks for the V2 shape.
        schema_version: SchemaVersion = "SchemaVersion", always;
        /// 1 asks for details.
        flags: u32 = "Flags", always;
        /// A JSON object, written as a string; each member is an equality test.
        filter: String = "Filter";
    }
}

impl Query {
    /// Objects whose property `member` equals `text`.
    pub fn by(member: &str, text: impl std::fmt::Display) -> Self {
        Self { filter: serde_json::json!({member: text.to_string()}).to_string(), ..Self::default() }
    }

    /// Objects of that name.
    pub fn by_name(name: &str) -> Self {
        Self::by("Name", name)
    }

    /// Endpoints of a network.
    pub fn by_network(network: &Guid) -> Self {
        Self::by("VirtualNetwork", network)
    }

    /// Whether `text`, as it came with a call, asks for the old shape: no query, or one of schema 1.
    pub fn asks_for_v1(text: Option<&str>) -> bool {
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return true };
        serde_json::from_str::<Self>(text).is_ok_and(|query| query.schema_version.major < 2)
    }

    /// The equality tests; an unreadable filter is an error text.
    pub fn tests(&self) -> Result<serde_json::Map<String, Value>, String> {
        if self.filter.trim().is_empty() {
            return Ok(serde_json::Map::new());
        }
        serde_json::from_str(&self.filter).map_err(|error| error.to_string())
    }
}
