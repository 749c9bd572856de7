//! Switches: behaviours of Windows that this project has not seen on Windows, each with its evidence.
//!
//! Evidence letters as in docs/fidelity.md: D documentation, C client code, U user report, I our inference.

use std::fmt::Display;
use std::str::FromStr;

use hcn::{HResult, HnsVersion, SupportedFeatures};
use serde::{Deserialize, Serialize};

use crate::text::code;

/// How a switch's value is read and shown.
trait Value: Sized {
    fn read(text: &str) -> Result<Self, String>;
    fn show(&self) -> String;
}

impl Value for HResult {
    fn read(text: &str) -> Result<Self, String> {
        code(text)
    }
    fn show(&self) -> String {
        format!("{:#010x}", self.0)
    }
}

fn plain<T: FromStr>(text: &str, expected: impl Display) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not {expected}"))
}

impl Value for bool {
    fn read(text: &str) -> Result<Self, String> {
        plain(text, "true or false")
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for usize {
    fn read(text: &str) -> Result<Self, String> {
        plain(text, "a number")
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// A switch as the admin socket lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What it says, and its evidence.
    pub doc: String,
}

macro_rules! switches {
    ($version:ident; $( $(#[doc = $doc:literal])* $name:ident: $ty:ty = $default:expr; )*) => {
        /// How the simulated service behaves where the evidence is thin.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Switches {
            /// The version of the service; it gates features.
            pub version: HnsVersion,
            $( $(#[doc = $doc])* pub $name: $ty, )*
        }

        impl Switches {
            /// The defaults of a version.
            pub fn of($version: HnsVersion) -> Self {
                Self { version: $version, $( $name: $default, )* }
            }

            /// Sets a switch by its text, `name=value`; dashes and underscores are the same.
            pub fn set(&mut self, text: &str) -> Result<(), String> {
                let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is no switch: write it as NAME=VALUE"))?;
                match name.replace('-', "_").as_str() {
                    PATCHED => PATCHES.iter().try_for_each(|patch| self.set(&format!("{patch}={value}")))?,
                    $( stringify!($name) => self.$name = <$ty as Value>::read(value)?, )*
                    _ => {
                        let names = [PATCHED, $( stringify!($name) ),*].join(", ").replace('_', "-");
                        return Err(format!("there is no switch {name:?}: use one of {names}"));
                    }
                }
                Ok(())
            }

            /// Every switch with its value and what it rests on.
            pub fn list(&self) -> Vec<Shown> {
                vec![$( Shown {
                    name: stringify!($name).replace('_', "-"),
                    value: self.$name.show(),
                    doc: concat!($( $doc ),*).trim().to_owned(),
                }, )*]
            }
        }
    };
}

switches! { version;
    /// Load balancers with the DSR flag keep the client's address, where the version has DSR. Off: they translate the source like the others.
    /// (D: Learn, Kubernetes' documentation; C: kube-proxy; where the translation happens is an inference)
    direct_server_return: bool = true;
    /// Pods of L2Bridge and L2Tunnel networks reach their host, and load balancers without DSR, only where an SDNRoute with NeedEncap or a gateway
    /// endpoint of the host leads there; pods of overlays and their host reach each other only with the policy HostRoute. (C: win-bridge
    /// configurations, flannel and kube-proxy set them; that nothing passes without them is an inference)
    host_needs_route: bool = true;
    /// The host reaches node ports of its own addresses only where the port mapping says LocalRoutedVip. (C: kube-proxy sets it; U: unreliable
    /// even with it)
    node_port_needs_local_routed_vip: bool = true;
    /// LocalRoutedVip has an effect. Off: the host does not reach node ports of its own addresses. (D: Microsoft's page about troubleshooting
    /// Kubernetes says that this may fail before KB4571748 of September 2020, Kubernetes' documentation that it is not supported; that the
    /// versions with DSR have the update is an inference)
    local_routed_vip: bool = SupportedFeatures::of(version).dsr;
    /// The host reaches addresses of load balancers. (D: Kubernetes' documentation of 1.14 to 1.20 promises it for "a future release of Windows
    /// Server"; C: networkhealth.ps1 expects the rules at the host's port; AgentBaker's HnsNodeToClusterIpv6 repairs IPv6 alone; that the
    /// release is Windows Server 2022 is an inference)
    host_reaches_load_balancers: bool = version.major >= 13;
    /// Containers get no unsolicited packets but of TCP, UDP, ICMP and IGMP, unless an access rule of their endpoint allows another protocol by
    /// its number; they may send all. (D: Learn, network isolation and security; that such a rule opens the way is an inference)
    block_other_protocols: bool = true;
    /// An endpoint that has an access rule of the switch in one direction loses there what none of its rules allows. (U: Microsoft's answer in WC#616,
    /// of Windows Server 2025 with the updates of April 2026; hcsshim#1059 says that rules which allow the rest are needed; older hosts, and
    /// that each direction is by itself, are inferences)
    rules_deny_the_rest: bool = false;
    /// What a load balancer gets whose address, protocol and port another one has. (U: k8s PR#137530 shows 0x803b0013, k8s#139519 0x800700b7
    /// on newer builds; that the border is HNS 15 is an inference)
    duplicate_load_balancer: HResult = if version.major >= 15 { HResult::ALREADY_EXISTS } else { HResult::PORT_ALREADY_EXISTS };
    /// What a local endpoint gets whose address or MAC another local endpoint of the network has. (U: k8s#74766 shows 0x80071392; some builds
    /// answer 0x803b002f)
    duplicate_address: HResult = HResult::OBJECT_ALREADY_EXISTS;
    /// An endpoint may not have its subnet's gateway address, unless the subnet's flag 1 says so. (C for NAT and overlay: hnslib; an inference
    /// for L2Bridge)
    reserve_gateway: bool = true;
    /// Removing a policy that is not there is an error (0x803b0008) instead of nothing. (U: success on some builds)
    removing_absent_policy_fails: bool = true;
    /// What the kernel below cannot do is stored and returned as the service does it. Off: it is refused with 0x803b0015, so that nothing
    /// is promised that has no effect on packets. (I: Windows enforces it)
    store_unenforced: bool = true;
    /// Update of an endpoint's policies replaces all of them, not only those of the types that are given. (C: Azure NPM sends the others
    /// along; U: the registry's HNSUpdatePolicyForEndpointChange hints at a change)
    update_replaces_policies: bool = true;
    /// A new local endpoint without access rules shows Allow In and Allow Out at priority 65500. (C: on some builds)
    implicit_acls: bool = false;
    /// A load balancer whose network is gone can be deleted; else 0x803b0001, and it stays until the service restarts. (U: libnetwork#2524 and
    /// aks-engine#3956 since a 2019-10 update; that it holds its port no longer is an inference)
    orphaned_load_balancer_deletable: bool = version < HnsVersion::new(9, 3);
    /// A second namespace of type HostDefault is refused with 0x803b0029. (I: the code exists for it, but hnslib's tests create such namespaces)
    second_default_namespace_refused: bool = false;
    /// What a load balancer without a backend, or with an unknown one, gets. (U: k8s#100384 shows 0x803b001c; kube-proxy's sources 0x803b000d)
    load_balancer_without_endpoint: HResult = HResult::INVALID_JSON_REFERENCE;
    /// An overlay's load balancer without DSR needs a SourceVIP that a local endpoint or the node has; else 0x803b002f. (C: kube-proxy makes that endpoint
    /// first; that its absence is refused is an inference)
    source_vip_must_exist: bool = true;
    /// The most backends of a load balancer; more get 0x80070057. (U: k8s#98680 shows 64 on old builds; about 1024 later)
    most_backends: usize = if version.major < 10 { 64 } else { 1024 };
    /// What an overlay's subnet without a VSID of at least 4096 gets. (D, U: 0x80070057 or 0x803b0030)
    bad_isolation_id: HResult = HResult::INVALID_PARAMETER;
    /// What a network gets whose adapter is in a switch of another type (Transparent beside L2Bridge, L2Tunnel or Overlay). (U: 0x80070057
    /// or 0x803b0006)
    adapter_in_use: HResult = HResult::INVALID_PARAMETER;
    /// Opening or deleting a missing network or endpoint answers 0x80070490, not their own codes. (U: on some builds)
    missing_is_element_not_found: bool = false;
    /// What removing an endpoint from a namespace gets that is in none. (U: antrea#2301 shows 0x80070490; 0x803b0034 is the natural code)
    removing_detached: HResult = HResult::ELEMENT_NOT_FOUND;
    /// A local and a remote endpoint of a network may have one address. (U: k8s#130963 calls it a bug of 2019 and 2022)
    local_and_remote_share_address: bool = true;
    /// Frames to a remote endpoint carry its own MAC even where a RemoteSubnetRoute leads to the same host. Off: that route's MAC, the one of the
    /// other host's router. (C: kube-proxy makes up MACs that no Linux host has; U: k8s#79359, sig-windows-tools#141: on flannel's vxlan,
    /// Windows pods reach Services of Linux pods, whose tunnel takes frames for its own MAC alone; that the route decides is an inference)
    remote_endpoint_has_own_mac: bool = false;
    /// The host has IPv6; without it, creates that need it answer 0x80070490. (U: creates that fail while IPv6 is off on the host)
    ipv6: bool = true;
    /// Internet connection sharing can run; else ICS networks get 0x803b002a. (D)
    connection_sharing: bool = true;
    /// Calls wait for each other: the latency model counts for the whole service, not for each caller. (U, I: internal locks)
    calls_serialise: bool = true;
    /// Setting the policies of a network by Update keeps what it does not name: sets are replaced by id, others by type. (C: Azure NPM updates
    /// single sets; for other types an inference)
    network_update_merges: bool = true;
    /// What removing a set gets that an access rule or another set names. (I: the natural code)
    set_in_use: HResult = HResult::ENTITY_HAS_REFERENCES;
    /// What a policy, network type or member gets that the version does not have. (I: the code for an unknown type)
    unknown_to_version: HResult = HResult::INVALID_POLICY_TYPE;
    /// A load balancer with a local backend that is attached to nothing gets 0x803b0007. (U: k8s#62029 shows the code; that this is its cause is
    /// an inference)
    backends_must_be_attached: bool = false;
    /// Namespaces have their compartment when they are made. Off: it comes with their first container, unless CreateWithCompartment asks for it.
    /// (C: AgentBaker sets this registry value; U: WC#401 shows the late compartment; that one is the other's cause is an inference)
    enable_compartment_namespace: bool = true;
    /// Removing an endpoint's access rules takes them out. Off: it says yes and they stay. (C: AgentBaker sets this registry value, 2023-04B;
    /// what it repairs is an inference)
    hns_acl_update_change: bool = true;
    /// A set may have any number of members. Off: at most 4,000; more get 0x80070057. (C: AgentBaker sets this registry value, 2023-07B; the limit
    /// is that of address lists, an inference)
    hns_npm_ipset_limit_change: bool = true;
    /// A load balancer may name an endpoint twice. Off: it gets 0x800700b7. (C: AgentBaker sets this registry value, 2023-07B; what it repairs is an
    /// inference)
    hns_lb_nat_dup_rule_change: bool = true;
    /// Endpoints' access rules hold after a restart of the service. Off: they have no effect until they are set anew. (C: AgentBaker sets this
    /// registry value, 2023-08B; what it repairs is an inference)
    hns_fix_extension_upon_rehydration: bool = true;
    /// After a crash of the service the ports of lost load balancers are free. Off: they stay taken until the host reboots. (C: AgentBaker sets
    /// this registry value; U: k8s PR#137530 reports leaked ports; that one is the other's cause is an inference)
    cleanup_reserved_ports: bool = true;
    /// Load balancers without DSR share the ports of the host. Off: each takes 64 of the 16,384 of the ephemeral range, and when they are used up,
    /// more get 0x8007000e. (C: AgentBaker sets this registry value; U: AKS#1375, hcsshim#1043; the number for each is an inference)
    hns_preallocate_port_range: bool = true;
    /// Node ports and port mappings may lie in the ephemeral range, from 49152 on. Off: they get 0x803b0013. (C: AgentBaker sets this registry value;
    /// U: k8s PR#137530 reports the overlap; that one is the other's cause is an inference)
    port_exclusion_change: bool = true;
}

/// Sets every switch of [`PATCHES`].
const PATCHED: &str = "patched";

/// The switches that are values of the registry below HNS\State: each turns on the repair of a monthly update.
pub const PATCHES: [&str; 8] = [
    "enable_compartment_namespace",
    "hns_acl_update_change",
    "hns_npm_ipset_limit_change",
    "hns_lb_nat_dup_rule_change",
    "hns_fix_extension_upon_rehydration",
    "cleanup_reserved_ports",
    "hns_preallocate_port_range",
    "port_exclusion_change",
];

impl Switches {
    /// What the version can do.
    pub fn features(&self) -> SupportedFeatures {
        SupportedFeatures::of(self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_set_by_name_and_show_their_evidence() {
        let mut switches = Switches::of(HnsVersion::new(13, 3));
        switches.set("duplicate-address=0x803b002f").unwrap();
        switches.set("ipv6=false").unwrap();
        switches.set("most_backends=7").unwrap();
        assert_eq!((switches.duplicate_address, switches.ipv6, switches.most_backends), (HResult::ADDR_INVALID_OR_RESERVED, false, 7));
        for bad in ["ipv6", "ipv6=maybe", "weather=fine", "most-backends=-1", "duplicate-address=soon"] {
            assert!(switches.set(bad).is_err(), "{bad}");
        }
        let mut unpatched = Switches::of(HnsVersion::new(13, 3));
        unpatched.set("patched=false").unwrap();
        let off: Vec<_> =
            unpatched.list().into_iter().filter(|shown| Switches::of(HnsVersion::new(13, 3)).list().iter().all(|old| old != shown)).collect();
        assert_eq!(off.iter().map(|shown| shown.name.replace('-', "_")).collect::<Vec<_>>(), PATCHES);
        for shown in switches.list() {
            assert!(["(C", "(D", "(U", "(I"].iter().any(|letter| shown.doc.contains(letter)), "{} has no evidence", shown.name);
            let mut other = Switches::of(HnsVersion::new(13, 3));
            other.set(&format!("{}={}", shown.name, shown.value)).unwrap();
        }
    }
}
