//! Behaviours of Windows that nobody here has seen on Windows: each is a switch, and FIDELITY.md says what it rests on.

use hcn::{HResult, HnsVersion, SupportedFeatures};

/// How the simulated service behaves where the evidence is thin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// The version of the service; it gates features.
    pub version: HnsVersion,
    /// Load balancers with the DSR flag keep the client's address. Off: they translate the source like the others.
    pub direct_server_return: bool,
    /// What a load balancer gets whose address, protocol and port another one has.
    pub duplicate_load_balancer: HResult,
    /// What a local endpoint gets whose address or MAC another local endpoint of the network has.
    pub duplicate_address: HResult,
    /// An endpoint may not have its subnet's gateway address.
    pub reserve_gateway: bool,
    /// Removing a policy that is not there is an error (0x803b0008) instead of nothing.
    pub removing_absent_policy_fails: bool,
}

impl Switches {
    /// The defaults of a version.
    pub fn of(version: HnsVersion) -> Self {
        let newer = version.major >= 15;
        Self {
            version,
            direct_server_return: false,
            duplicate_load_balancer: if newer { HResult::ALREADY_EXISTS } else { HResult::PORT_ALREADY_EXISTS },
            duplicate_address: HResult::OBJECT_ALREADY_EXISTS,
            reserve_gateway: true,
            removing_absent_policy_fails: true,
        }
    }

    /// What the version can do.
    pub fn features(&self) -> SupportedFeatures {
        SupportedFeatures::of(self.version)
    }
}
