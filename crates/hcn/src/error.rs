//! HRESULTs of the Host Networking Service, and the error of the typed clients.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::port::{Function, RawError};

/// A Windows result code, unsigned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HResult(pub u32);

macro_rules! codes {
    ($( $(#[$meta:meta])* $name:ident = $code:literal, $wire:literal, $text:literal; )*) => {
        impl HResult {
            $( #[doc = concat!("`", $wire, "`: ", $text)] pub const $name: Self = Self($code); )*

            /// The symbolic name of a code HNS is known to return.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $( $code => Some($wire), )* _ => None }
            }

            /// The message text of a code HNS is known to return.
            pub fn message(self) -> Option<&'static str> {
                match self.0 { $( $code => Some($text), )* _ => None }
            }

            /// Every code with a name.
            pub fn known() -> impl Iterator<Item = Self> {
                [$( Self($code), )*].into_iter()
            }
        }
    };
}

// Codes: facts of computenetwork.h and winerror.h; facility 0x03b is HCN's own.
codes! {
    OK = 0, "S_OK", "The operation completed successfully.";
    NOT_IMPLEMENTED = 0x8000_4001, "E_NOTIMPL", "Not implemented";
    FAIL = 0x8000_4005, "E_FAIL", "Unspecified error";
    ACCESS_DENIED = 0x8007_0005, "E_ACCESSDENIED", "Access is denied.";
    INVALID_HANDLE = 0x8007_0006, "E_HANDLE", "The handle is invalid.";
    OUT_OF_MEMORY = 0x8007_000e, "E_OUTOFMEMORY", "Not enough memory resources are available to complete this operation.";
    SHARING_VIOLATION = 0x8007_0020, "ERROR_SHARING_VIOLATION", "The process cannot access the file because it is being used by another process.";
    WRONG_DISK = 0x8007_0022, "ERROR_WRONG_DISK", "The wrong diskette is in the drive.";
    NOT_SUPPORTED = 0x8007_0032, "ERROR_NOT_SUPPORTED", "The request is not supported.";
    DUPLICATE_NAME = 0x8007_0034, "ERROR_DUP_NAME", "You were not connected because a duplicate name exists on the network.";
    INVALID_PARAMETER = 0x8007_0057, "E_INVALIDARG", "The parameter is incorrect.";
    MODULE_NOT_FOUND = 0x8007_007e, "ERROR_MOD_NOT_FOUND", "The specified module could not be found.";
    PROC_NOT_FOUND = 0x8007_007f, "ERROR_PROC_NOT_FOUND", "The specified procedure could not be found.";
    ALREADY_EXISTS = 0x8007_00b7, "ERROR_ALREADY_EXISTS", "Cannot create a file when that file already exists.";
    SERVICE_DOES_NOT_EXIST = 0x8007_0424, "ERROR_SERVICE_DOES_NOT_EXIST", "The specified service does not exist as an installed service.";
    SERVICE_NOT_ACTIVE = 0x8007_0426, "ERROR_SERVICE_NOT_ACTIVE", "The service has not been started.";
    ELEMENT_NOT_FOUND = 0x8007_0490, "ERROR_NOT_FOUND", "Element not found.";
    TIMEOUT = 0x8007_05b4, "ERROR_TIMEOUT", "This operation returned because the timeout period expired.";
    RPC_CALL_FAILED = 0x8007_06be, "RPC_S_CALL_FAILED", "The remote procedure call failed.";
    RPC_CALL_FAILED_DNE = 0x8007_06bf, "RPC_S_CALL_FAILED_DNE", "The remote procedure call failed and did not execute.";
    RPC_NOT_REGISTERED = 0x8007_06d9, "EPT_S_NOT_REGISTERED", "There are no more endpoints available from the endpoint mapper.";
    OBJECT_ALREADY_EXISTS = 0x8007_1392, "ERROR_OBJECT_ALREADY_EXISTS", "The object already exists.";
    NETWORK_NOT_FOUND = 0x803b_0001, "HCN_E_NETWORK_NOT_FOUND", "The network was not found.";
    ENDPOINT_NOT_FOUND = 0x803b_0002, "HCN_E_ENDPOINT_NOT_FOUND", "The endpoint was not found.";
    LAYER_NOT_FOUND = 0x803b_0003, "HCN_E_LAYER_NOT_FOUND", "The network's underlying layer was not found.";
    SWITCH_NOT_FOUND = 0x803b_0004, "HCN_E_SWITCH_NOT_FOUND", "The virtual switch was not found.";
    SUBNET_NOT_FOUND = 0x803b_0005, "HCN_E_SUBNET_NOT_FOUND", "The network does not have a subnet for this endpoint.";
    ADAPTER_NOT_FOUND = 0x803b_0006, "HCN_E_ADAPTER_NOT_FOUND", "An adapter was not found.";
    PORT_NOT_FOUND = 0x803b_0007, "HCN_E_PORT_NOT_FOUND", "The switch-port was not found.";
    POLICY_NOT_FOUND = 0x803b_0008, "HCN_E_POLICY_NOT_FOUND", "An expected policy was not found.";
    VFP_PORTSETTING_NOT_FOUND = 0x803b_0009, "HCN_E_VFP_PORTSETTING_NOT_FOUND", "A required VFP port setting was not found.";
    INVALID_NETWORK = 0x803b_000a, "HCN_E_INVALID_NETWORK", "The provided network configuration is invalid or missing parameters.";
    INVALID_NETWORK_TYPE = 0x803b_000b, "HCN_E_INVALID_NETWORK_TYPE", "Invalid network type.";
    INVALID_ENDPOINT = 0x803b_000c, "HCN_E_INVALID_ENDPOINT", "The provided endpoint configuration is invalid or missing parameters.";
    INVALID_POLICY = 0x803b_000d, "HCN_E_INVALID_POLICY", "The provided policy configuration is invalid or missing parameters.";
    INVALID_POLICY_TYPE = 0x803b_000e, "HCN_E_INVALID_POLICY_TYPE", "Invalid policy type.";
    INVALID_REMOTE_ENDPOINT_OPERATION = 0x803b_000f, "HCN_E_INVALID_REMOTE_ENDPOINT_OPERATION", "This requested operation is invalid for a remote endpoint.";
    NETWORK_ALREADY_EXISTS = 0x803b_0010, "HCN_E_NETWORK_ALREADY_EXISTS", "A network with this name already exists.";
    LAYER_ALREADY_EXISTS = 0x803b_0011, "HCN_E_LAYER_ALREADY_EXISTS", "A network with this name already exists.";
    POLICY_ALREADY_EXISTS = 0x803b_0012, "HCN_E_POLICY_ALREADY_EXISTS", "Policy information already exists on this object.";
    PORT_ALREADY_EXISTS = 0x803b_0013, "HCN_E_PORT_ALREADY_EXISTS", "The specified port already exists.";
    ENDPOINT_ALREADY_ATTACHED = 0x803b_0014, "HCN_E_ENDPOINT_ALREADY_ATTACHED", "This endpoint is already attached to the switch.";
    REQUEST_UNSUPPORTED = 0x803b_0015, "HCN_E_REQUEST_UNSUPPORTED", "The specified request is unsupported.";
    MAPPING_NOT_SUPPORTED = 0x803b_0016, "HCN_E_MAPPING_NOT_SUPPORTED", "Port mapping is not supported on the given network.";
    DEGRADED_OPERATION = 0x803b_0017, "HCN_E_DEGRADED_OPERATION", "There was an operation attempted on a degraded object.";
    SHARED_SWITCH_MODIFICATION = 0x803b_0018, "HCN_E_SHARED_SWITCH_MODIFICATION", "Cannot modify a switch shared by multiple networks.";
    GUID_CONVERSION_FAILURE = 0x803b_0019, "HCN_E_GUID_CONVERSION_FAILURE", "Failed to interpret a parameter as a GUID.";
    REGKEY_FAILURE = 0x803b_001a, "HCN_E_REGKEY_FAILURE", "Failed to process registry key.";
    INVALID_JSON = 0x803b_001b, "HCN_E_INVALID_JSON", "Invalid JSON document string.";
    INVALID_JSON_REFERENCE = 0x803b_001c, "HCN_E_INVALID_JSON_REFERENCE", "The reference is invalid in the JSON document.";
    ENDPOINT_SHARING_DISABLED = 0x803b_001d, "HCN_E_ENDPOINT_SHARING_DISABLED", "Endpoint sharing is disabled.";
    INVALID_IP = 0x803b_001e, "HCN_E_INVALID_IP", "IP address is either invalid or not part of any configured subnet(s).";
    SWITCH_EXTENSION_NOT_FOUND = 0x803b_001f, "HCN_E_SWITCH_EXTENSION_NOT_FOUND", "The specified switch extension does not exist on this switch.";
    MANAGER_STOPPED = 0x803b_0020, "HCN_E_MANAGER_STOPPED", "Operation cannot be performed while service is stopping.";
    GCN_MODULE_NOT_FOUND = 0x803b_0021, "GCN_E_MODULE_NOT_FOUND", "Operation cannot be performed as the service module is not found.";
    GCN_NO_REQUEST_HANDLERS = 0x803b_0022, "GCN_E_NO_REQUEST_HANDLERS", "Non-existent request handlers.";
    GCN_REQUEST_UNSUPPORTED = 0x803b_0023, "GCN_E_REQUEST_UNSUPPORTED", "The specified request is unsupported.";
    GCN_RUNTIMEKEYS_FAILED = 0x803b_0024, "GCN_E_RUNTIMEKEYS_FAILED", "Add runtime keys to container failed.";
    GCN_NETADAPTER_TIMEOUT = 0x803b_0025, "GCN_E_NETADAPTER_TIMEOUT", "Timeout while waiting for network adapter with the given instance id.";
    GCN_NETADAPTER_NOT_FOUND = 0x803b_0026, "GCN_E_NETADAPTER_NOT_FOUND", "Network adapter not found for the given instance id.";
    GCN_NETCOMPARTMENT_NOT_FOUND = 0x803b_0027, "GCN_E_NETCOMPARTMENT_NOT_FOUND", "Network compartment not found for the given id.";
    GCN_NETINTERFACE_NOT_FOUND = 0x803b_0028, "GCN_E_NETINTERFACE_NOT_FOUND", "Network interface not found for the given id.";
    GCN_DEFAULTNAMESPACE_EXISTS = 0x803b_0029, "GCN_E_DEFAULTNAMESPACE_EXISTS", "Default Namespace already exists.";
    ICS_DISABLED = 0x803b_002a, "HCN_E_ICS_DISABLED", "Internet Connection Sharing service (SharedAccess) is disabled and cannot be started.";
    ENDPOINT_NAMESPACE_ALREADY_EXISTS = 0x803b_002b, "HCN_E_ENDPOINT_NAMESPACE_ALREADY_EXISTS", "This requested operation is invalid as endpoint is already part of a network namespace.";
    ENTITY_HAS_REFERENCES = 0x803b_002c, "HCN_E_ENTITY_HAS_REFERENCES", "The specified entity cannot be removed while it still has references.";
    INVALID_INTERNAL_PORT = 0x803b_002d, "HCN_E_INVALID_INTERNAL_PORT", "The internal port must exist and cannot be zero.";
    NAMESPACE_ATTACH_FAILED = 0x803b_002e, "HCN_E_NAMESPACE_ATTACH_FAILED", "The requested operation for attach namespace failed.";
    ADDR_INVALID_OR_RESERVED = 0x803b_002f, "HCN_E_ADDR_INVALID_OR_RESERVED", "An address provided is invalid or reserved.";
    INVALID_PREFIX = 0x803b_0030, "HCN_E_INVALID_PREFIX", "The prefix provided is invalid.";
    OBJECT_USED_AFTER_UNLOAD = 0x803b_0031, "HCN_E_OBJECT_USED_AFTER_UNLOAD", "A call was performed against an object that was torn down.";
    INVALID_SUBNET = 0x803b_0032, "HCN_E_INVALID_SUBNET", "The provided subnet configuration is invalid or missing parameters.";
    INVALID_IP_SUBNET = 0x803b_0033, "HCN_E_INVALID_IP_SUBNET", "The provided IP subnet configuration is invalid or missing parameters.";
    ENDPOINT_NOT_ATTACHED = 0x803b_0034, "HCN_E_ENDPOINT_NOT_ATTACHED", "The endpoint must be attached to complete the operation.";
    ENDPOINT_NOT_LOCAL = 0x803b_0035, "HCN_E_ENDPOINT_NOT_LOCAL", "The endpoint must be local to complete the operation.";
    INTERFACEPARAMETERS_ALREADY_APPLIED = 0x803b_0036, "HCN_INTERFACEPARAMETERS_ALREADY_APPLIED", "The interface parameters have already been applied.";
    VFP_NOT_ALLOWED = 0x803b_0037, "HCN_E_VFP_NOT_ALLOWED", "VFP is not allowed.";
}

impl HResult {
    /// The Win32 code inside, where the facility is Win32 (0x8007xxxx): the form Go clients print, as `0x490`.
    pub fn win32(self) -> Option<u32> {
        (self.0 & 0xffff_0000 == 0x8007_0000).then_some(self.0 & 0xffff)
    }

    /// Whether the code says that the object does not exist. The service uses different codes per kind and build.
    pub fn is_not_found(self) -> bool {
        matches!(self, Self::ELEMENT_NOT_FOUND | Self::NETWORK_NOT_FOUND | Self::ENDPOINT_NOT_FOUND)
    }

    /// Whether the code says that the service cannot answer now. It must never be read as "the object is gone".
    pub fn is_service_down(self) -> bool {
        matches!(
            self,
            Self::RPC_CALL_FAILED
                | Self::RPC_CALL_FAILED_DNE
                | Self::RPC_NOT_REGISTERED
                | Self::SERVICE_DOES_NOT_EXIST
                | Self::SERVICE_NOT_ACTIVE
                | Self::MANAGER_STOPPED
                | Self::TIMEOUT
        )
    }
}

impl fmt::Display for HResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.win32() {
            Some(win32) => write!(f, "{win32:#x}"),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl fmt::Debug for HResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// What a person does about a code that says nothing about the object.
fn way_out(hresult: HResult) -> &'static str {
    match hresult {
        HResult::SERVICE_DOES_NOT_EXIST => ": install the Containers feature (Install-WindowsFeature Containers) and restart",
        HResult::SERVICE_NOT_ACTIVE | HResult::RPC_NOT_REGISTERED => ": start the Host Networking Service (Start-Service hns)",
        HResult::PROC_NOT_FOUND | HResult::MODULE_NOT_FOUND => ": update this Windows (Windows Server 2019 with updates is the first to have it)",
        HResult::ACCESS_DENIED => ": run as an administrator",
        _ => "",
    }
}

/// Why a typed call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HcnError {
    /// The service refused the call. Printed as Go clients print it, because people search for these strings.
    #[error("hcn{} of {object} failed in Win32: {} ({hresult}) {}{}", function.to_string().trim_start_matches("Hcn"), hresult.message().unwrap_or("unknown code"), record.as_deref().unwrap_or_default(), way_out(*hresult))]
    Call {
        /// The function that failed.
        function: Function,
        /// The object it was called for.
        object: String,
        /// The code.
        hresult: HResult,
        /// The service's error record.
        record: Option<String>,
    },
    /// No answer within the deadline. What the call did is unknown: read the object back.
    #[error(
        "{operation} got no answer from the Host Networking Service within {deadline:?}: if that lasts, restart the service (Restart-Service hns)"
    )]
    Deadline {
        /// The operation and its object.
        operation: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// The service answered text that is not the expected document.
    #[error("{operation} answered a document that cannot be read ({reason}): {text}")]
    Document {
        /// The operation and its object.
        operation: String,
        /// What the reader missed.
        reason: String,
        /// The start of the text.
        text: String,
    },
    /// The service cannot be reached at all.
    #[error("{0}")]
    Unavailable(String),
}

impl HcnError {
    /// An error of `function` on `object`.
    pub fn call(function: Function, object: impl Into<String>, raw: RawError) -> Self {
        Self::Call { function, object: object.into(), hresult: raw.hresult, record: raw.record }
    }

    /// The service's code, where it gave one.
    pub fn hresult(&self) -> Option<HResult> {
        match self {
            Self::Call { hresult, .. } => Some(*hresult),
            _ => None,
        }
    }

    /// Whether the error means that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.hresult().is_some_and(HResult::is_not_found)
    }

    /// Whether the object, or one with the same name, address or port, exists already.
    pub fn is_already_exists(&self) -> bool {
        matches!(
            self.hresult(),
            Some(
                HResult::ALREADY_EXISTS
                    | HResult::OBJECT_ALREADY_EXISTS
                    | HResult::NETWORK_ALREADY_EXISTS
                    | HResult::PORT_ALREADY_EXISTS
                    | HResult::POLICY_ALREADY_EXISTS
            )
        )
    }

    /// Whether the endpoint is attached already (clients take that as success).
    pub fn is_already_attached(&self) -> bool {
        self.hresult() == Some(HResult::ENDPOINT_ALREADY_ATTACHED)
    }

    /// Whether this version of the service does not have the call or the feature.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.hresult(), Some(HResult::NOT_IMPLEMENTED | HResult::NOT_SUPPORTED | HResult::REQUEST_UNSUPPORTED | HResult::PROC_NOT_FOUND))
    }

    /// Whether the service did not answer, or is not there. Nothing may be concluded about the object.
    pub fn is_service_down(&self) -> bool {
        match self {
            Self::Call { hresult, .. } => hresult.is_service_down(),
            Self::Deadline { .. } | Self::Unavailable(_) => true,
            Self::Document { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Kind;

    #[test]
    fn errors_print_as_go_clients_print_them() {
        let raw = RawError::with_record(HResult::ELEMENT_NOT_FOUND, "Element not found. ");
        let error = HcnError::call(Function::Open(Kind::Namespace), "n1", raw);
        assert_eq!(
            error.to_string(),
            r#"hcnOpenNamespace of n1 failed in Win32: Element not found. (0x490) {"Success":false,"Error":"Element not found. ","ErrorCode":2147943568}"#
        );
        assert!(error.is_not_found() && !error.is_service_down());
        let stopped = HcnError::call(Function::Open(Kind::Network), "n1", HResult::SERVICE_NOT_ACTIVE.into()).to_string();
        assert!(stopped.contains("(0x426)") && stopped.ends_with("Start-Service hns)"), "{stopped}");
        assert_eq!(HResult::ADDR_INVALID_OR_RESERVED.to_string(), "0x803b002f");
        assert_eq!(HResult::ADDR_INVALID_OR_RESERVED.0, 2_151_350_319);
    }

    #[test]
    fn codes_are_distinct_and_hcn_codes_are_complete() {
        let codes: std::collections::BTreeSet<_> = HResult::known().collect();
        assert_eq!(codes.len(), HResult::known().count());
        for low in 1..=0x37 {
            assert!(HResult(0x803b_0000 + low).name().is_some(), "0x803b{low:04x} has no name");
        }
    }
}
