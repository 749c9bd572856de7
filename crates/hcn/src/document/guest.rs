//! The service inside a virtual machine, and lists of policies from before load balancers had a document of their own.

use serde_json::Value;

use super::{SchemaVersion, Token};
use crate::guid::Guid;

bits! {
    /// Switches of a guest network service.
    pub struct GuestNetworkServiceFlags {
        /// Flow steering.
        IS_FLOWSTEERED = 1 "IsFlowsteered",
        /// Flow steering that the guest manages.
        IS_FLOWSTEERED_SELF_MANAGED = 2 "IsFlowsteeredSelfManaged",
    }
}

named! {
    /// How far a guest network service is.
    pub enum GuestNetworkServiceState {
        default None;
        /// Nothing yet.
        None = "None",
        /// Made.
        Created = "Created",
        /// Meeting its guest.
        Bootstrapping = "Bootstrapping",
        /// In step with its guest.
        Synchronized = "Synchronized",
        /// At rest.
        Paused = "Paused",
        /// Out of step with its guest.
        Desynchronized = "Desynchronized",
        /// Coming back.
        Rehydrating = "Rehydrating",
        /// Something of it failed.
        Degraded = "Degraded",
        /// Gone.
        Destroyed = "Destroyed",
    }
}

document! {
    /// An interface of the guest that mirrors an endpoint.
    pub struct MirroredInterface {
        endpoint_id: Guid = "EndpointId";
        interface_guid: Guid = "InterfaceGuid";
        /// How it is.
        state: Token = "State";
        /// What the guest did not receive.
        missed_notifications: Value = "MissedNotifications";
    }
}

document! {
    /// The service inside a virtual machine (`GuestNetworkService`).
    pub struct GuestNetworkService {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        virtual_machine_id: Guid = "VirtualMachineId";
        /// Interfaces that mirror endpoints.
        mirrored_interfaces: Vec<MirroredInterface> = "MirroredInterfaces";
        /// Whether the guest has the host's addresses.
        mirror_host_networking: bool = "MirrorHostNetworking";
        /// How the guest is reached.
        gns_rpc_server_information: Value = "GnsRpcServerInformation";
        flags: GuestNetworkServiceFlags = "Flags";
        /// How far it is.
        state: GuestNetworkServiceState = "State";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}

document! {
    /// Policies of several endpoints (`HostComputePolicyList`), from before load balancers had a document of their own.
    pub struct HostComputePolicyList {
        id: Guid = "ID";
        /// What they are for, as `/endpoints/GUID`.
        references: Vec<String> = "References";
        /// The policies, as read.
        policies: Vec<Value> = "Policies";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}

impl HostComputePolicyList {
    pub fn endpoints(&self) -> impl Iterator<Item = Guid> {
        self.references.iter().filter_map(|reference| reference.trim_start_matches('/').strip_prefix("endpoints/")?.parse().ok())
    }
}
