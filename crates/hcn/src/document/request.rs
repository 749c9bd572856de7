//! Queries and modify requests.

use serde::Serialize;
use serde_json::Value;

use super::{EndpointPolicy, NetworkPolicy, SchemaVersion, Token};
use crate::guid::Guid;

named! {
    /// What a modify request does.
    pub enum RequestType {
        default Add;
        /// Adds.
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

    /// The equality tests; an unreadable filter is an error text.
    pub fn tests(&self) -> Result<serde_json::Map<String, Value>, String> {
        if self.filter.trim().is_empty() {
            return Ok(serde_json::Map::new());
        }
        serde_json::from_str(&self.filter).map_err(|error| error.to_string())
    }
}
