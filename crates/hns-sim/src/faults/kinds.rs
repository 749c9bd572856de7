//! The table of faults.

use hcn::HResult;

use super::{Action, Blip, Loss, Shown, Spoilt, Upset};

/// What a fault's name means.
#[derive(Clone, Copy, Debug)]
pub struct FaultKind {
    /// The name.
    pub name: &'static str,
    /// What it does.
    pub action: Action,
    /// The functions it strikes unless the fault says otherwise, apart by blanks; empty is every function.
    pub calls: &'static str,
    /// What the call answers unless the fault says otherwise.
    pub hresult: Option<HResult>,
    /// How long the call waits unless the fault says otherwise.
    pub delay_ms: u64,
    /// What one sees.
    pub what: &'static str,
    /// Where it was reported.
    pub evidence: &'static str,
}

const fn new(name: &'static str, action: Action, calls: &'static str, what: &'static str, evidence: &'static str) -> FaultKind {
    FaultKind { name, action, calls, hresult: None, delay_ms: 0, what, evidence }
}

const fn fails(name: &'static str, hresult: HResult, calls: &'static str, what: &'static str, evidence: &'static str) -> FaultKind {
    FaultKind { name, action: Action::Fail, calls, hresult: Some(hresult), delay_ms: 0, what, evidence }
}

const fn waits(mut kind: FaultKind, delay_ms: u64) -> FaultKind {
    kind.delay_ms = delay_ms;
    kind
}

const fn ends(mut kind: FaultKind, hresult: HResult) -> FaultKind {
    kind.hresult = Some(hresult);
    kind
}

const CREATE_BALANCER: &str = "HcnCreateLoadBalancer";
const CREATE_ENDPOINT: &str = "HcnCreateEndpoint";
const DELETE_ENDPOINT: &str = "HcnDeleteEndpoint";
const CREATE_NETWORK: &str = "HcnCreateNetwork";
const MODIFY_ENDPOINT: &str = "HcnModifyEndpoint";
const MODIFY_NAMESPACE: &str = "HcnModifyNamespace";
const QUERY_NETWORK: &str = "HcnQueryNetworkProperties HNSCall";
const CHANGES: &str = "HcnCreate* HcnModify* HcnDelete*";

/// Every fault.
pub const KINDS: &[FaultKind] = &[
    // Any call.
    new("slow-call", Action::Delay, "", "the call waits", "k8s#109162"),
    FaultKind { hresult: None, ..fails("fail-call", HResult::FAIL, "", "the call fails before it has an effect", "any") },
    new("hang", Action::Hang, "", "the call does not return until the fault is cleared", "moby#40699, ACN#1359, hcsshim#152"),
    ends(
        new("error-after-effect", Action::FailAfter, CHANGES, "the call does its work and fails", "inference: lost RPC answers"),
        HResult::RPC_CALL_FAILED,
    ),
    new("success-without-effect", Action::Pretend, CHANGES, "the call succeeds and does nothing", "WC#631, k8s#131466"),
    new("duplicate-effect", Action::Twice, "HcnCreate*", "a create makes two objects", "inference: retried RPC"),
    new("vanish", Action::Upset(Upset::LoseObject), "HcnOpen*", "the object is gone between enumerating and opening", "hnslib lists with 3N+1 calls"),
    // The service's life.
    fails("svc-down", HResult::RPC_NOT_REGISTERED, "", "the service does not answer", "WSL#9634, k8s PR#139503"),
    fails("svc-stopping", HResult::MANAGER_STOPPED, "", "the service is stopping", "WSL#9634"),
    new("svc-deadlock", Action::Hang, "", "no call returns until the fault is cleared", "SDN hnsautomitigator; moby#40699"),
    new(
        "hns-restart",
        Action::Upset(Upset::Restart),
        "",
        "the service restarts (clean, crash or reboot); the call fails with 0x800706be",
        "hcsshim#2155, WSL",
    ),
    new(
        "wipe",
        Action::Upset(Upset::Wipe),
        "",
        "the service restarts with nothing (HNS.data deleted); the call fails with 0x800706be",
        "known reset",
    ),
    new(
        "hns-data-corrupt",
        Action::Upset(Upset::Corrupt),
        "",
        "the service is away until its data are wiped",
        "hcsshim#627, hcsshim#99, for-win#750",
    ),
    new("svc-stop-fails", Action::StaysUp, "", "the service does not stop: restarts are refused", "K2s#819, K2s#1468, K2s#593"),
    new("callback-drop", Action::DropEvents, CHANGES, "no listener hears of what the call does", "inference: WSL re-enumerates on a timer"),
    // What a start loses.
    new(
        "network-lost-on-reboot",
        Action::Start(Loss::Networks),
        "",
        "networks do not come back from a restart or reboot",
        "ACN#283, acs-engine#4001, flannel#1423",
    ),
    new("restart-loses-endpoints", Action::Start(Loss::Endpoints), "", "endpoints do not come back from a restart", "calico#5164"),
    new(
        "restart-loses-lbs",
        Action::Start(Loss::Balancers),
        "",
        "load balancers do not come back from a restart",
        "k8s#110674, k8s#110849, WC#18, WC#278, aks-engine#4975",
    ),
    new(
        "restart-loses-some-lbs",
        Action::Start(Loss::SomeBalancers),
        "",
        "half of the load balancers do not come back from a restart",
        "k8s#135802, k8s#110674",
    ),
    new("restart-drops-dsr", Action::Start(Loss::DirectServerReturn), "", "load balancers come back without DSR", "WC#19"),
    new(
        "restart-leaks-ports",
        Action::Start(Loss::Listeners),
        "",
        "load balancers are lost, and creating them again says that they exist",
        "k8s#139519, k8s PR#137530",
    ),
    new(
        "restart-loses-namespaces",
        Action::Start(Loss::Namespaces),
        "",
        "namespaces without containers do not come back from a restart, and their endpoints are in none",
        "inference: HNS keeps namespaces while containers run",
    ),
    new("stale-endpoints", Action::Start(Loss::StaleEndpoints), "", "endpoints come back from a reboot, attached to nothing", "moby#36603"),
    // Networks.
    fails(
        "net-ghost-name",
        HResult::NETWORK_ALREADY_EXISTS,
        CREATE_NETWORK,
        "a network's name is taken by one that is not listed",
        "hcsshim#850, K2s#1317, moby#40345",
    ),
    fails(
        "net-create-after-reboot",
        HResult::INVALID_PARAMETER,
        CREATE_NETWORK,
        "a network cannot be created yet",
        "SDN#177, for-win#8427, antrea#2213",
    ),
    waits(new("net-create-slow", Action::Delay, CREATE_NETWORK, "the first external network takes long", "OVN-K, WMCO, antrea: 1 to 60 s"), 6000),
    waits(
        new(
            "net-blip",
            Action::Blip(Blip::Passing),
            CREATE_NETWORK,
            "the host's adapter is without addresses and routes for a while (1.8 s)",
            "antrea, flannel, Calico and OVN-K wait for the address",
        ),
        1800,
    ),
    waits(
        new(
            "net-blip-loses-routes",
            Action::Blip(Blip::LosesRoutes),
            CREATE_NETWORK,
            "after a blip the adapter has its addresses and the default route again, no other route",
            "sig-windows-tools#162, OVN-K adds routes again",
        ),
        1800,
    ),
    new(
        "net-blip-loses-ip",
        Action::Blip(Blip::LosesAddresses),
        CREATE_NETWORK,
        "the adapter loses addresses and routes until the host reboots or the faults are cleared",
        "sig-windows-tools#162",
    ),
    new("net-apipa", Action::Show(Shown::LinkLocalAddress), QUERY_NETWORK, "the ManagementIP is 169.254.x", "slow DHCP"),
    new(
        "net-late-management-ip",
        Action::Show(Shown::NoManagementAddress),
        QUERY_NETWORK,
        "the ManagementIP is not there yet",
        "flannel and Calico poll for it",
    ),
    new(
        "net-new-id",
        Action::Upset(Upset::NewNetwork),
        "HcnEnumerateNetworks",
        "the network was made anew with another id, without endpoints",
        "kube-proxy drops all policies",
    ),
    fails("ipv6-off", HResult::ELEMENT_NOT_FOUND, "HcnCreate*", "creates fail as with IPv6 disabled on the host", "hosts with IPv6 off"),
    // Namespaces and endpoints.
    waits(
        new(
            "ns-late-compartment",
            Action::Spoil(Spoilt::Compartment),
            "HcnCreateNamespace",
            "the compartment, and the adapters in it, show up late (3 s), or with the first container",
            "WC#401, antrea#8172",
        ),
        3000,
    ),
    new("ep-delete-hang", Action::Hang, DELETE_ENDPOINT, "the delete does not return until the fault is cleared", "moby#40699, antrea PR#650"),
    new(
        "stale-endpoint",
        Action::Pretend,
        DELETE_ENDPOINT,
        "the delete succeeds and the endpoint stays",
        "WC#631, ovn-k#390, antrea#2301, vpc-cni#47",
    ),
    new("ep-stuck", Action::Partial, MODIFY_NAMESPACE, "the endpoint is attached, in state 1, without an adapter", "calico#12795"),
    fails(
        "ep-attach-loop",
        HResult::ENDPOINT_ALREADY_ATTACHED,
        MODIFY_NAMESPACE,
        "the endpoint is said to be attached already",
        "calico#4280, calico#5192, flannel#1391",
    ),
    waits(
        ends(new("ep-host-attach-fails", Action::Fail, "HNSCall", "attaching to the host fails after 6 s", "flannel#1112"), HResult::WRONG_DISK),
        6000,
    ),
    fails("ep-dup-ip", HResult::OBJECT_ALREADY_EXISTS, CREATE_ENDPOINT, "the address is said to be taken", "k8s#74766, for-win#13965"),
    fails(
        "ep-address-reserved",
        HResult::ADDR_INVALID_OR_RESERVED,
        CREATE_ENDPOINT,
        "the address is said to be reserved",
        "sig-windows-tools#71, k8s#100962",
    ),
    fails(
        "ep-notfound-on-namespace",
        HResult::ELEMENT_NOT_FOUND,
        MODIFY_NAMESPACE,
        "the namespace or endpoint is said to be gone",
        "ACN#1272, ACN#774, containerd#6135",
    ),
    new(
        "ep-port-blocked",
        Action::Spoil(Spoilt::Port),
        MODIFY_NAMESPACE,
        "the endpoint is attached, in state 3, and its port passes nothing until it is attached anew",
        "calico#12795; VFP ports in state Blocked",
    ),
    fails("ns-delete-refused", HResult::REQUEST_UNSUPPORTED, "HcnDeleteNamespace", "the namespace is said to be in use", "hcsshim#2155, WC#485"),
    new("lost-object", Action::Upset(Upset::LoseObject), "", "the object is gone, as if another program had deleted it", "k8s#76316, moby#45462"),
    // Load balancers.
    fails("port-exists", HResult::PORT_ALREADY_EXISTS, CREATE_BALANCER, "the port is said to be taken", "k8s PR#137530, hcsshim#1043, AKS#1375"),
    fails("lb-exists", HResult::ALREADY_EXISTS, CREATE_BALANCER, "the load balancer is said to exist", "k8s#139519"),
    fails("lb-port-not-found", HResult::PORT_NOT_FOUND, CREATE_BALANCER, "a backend's port is said not to be on a switch", "k8s#62029"),
    fails("lb-empty", HResult::INVALID_JSON_REFERENCE, CREATE_BALANCER, "a backend is said not to exist", "k8s#100384, k8s PR#106936"),
    fails(
        "lb-sourcevip-missing",
        HResult::ADDR_INVALID_OR_RESERVED,
        CREATE_BALANCER,
        "the SourceVIP is said not to be an endpoint's",
        "k8s PR#96499",
    ),
    fails("lb-out-of-ports", HResult::OUT_OF_MEMORY, CREATE_BALANCER, "the pool of ports is used up", "CNI plugins#613, AKS#1375"),
    fails("lb-delete-fails", HResult::FAIL, "HcnDeleteLoadBalancer", "the delete fails; with count=1 a retry works", "k8s#113524"),
    fails(
        "lb-del-after-net",
        HResult::NETWORK_NOT_FOUND,
        "HcnDeleteLoadBalancer",
        "the load balancer's network is said to be gone",
        "libnetwork#2524, aks-engine#3956",
    ),
    new("lb-modify-noop", Action::Pretend, "HcnModifyLoadBalancer", "the modify succeeds and does nothing", "k8s#131466"),
    new(
        "lb-create-hang",
        Action::Hang,
        CREATE_BALANCER,
        "the create does not return until the fault is cleared",
        "aks-engine#4315, image-builder#566",
    ),
    // Policies.
    new("lost-policy", Action::Upset(Upset::LosePolicies), "", "the object's policies are gone; a load balancer is gone itself", "k8s#110674, ovn-k"),
    fails("acl-refused", HResult::INVALID_POLICY, MODIFY_ENDPOINT, "the policy is refused", "calico#8465, containers-roadmap#240, hcsshim#164"),
    new(
        "acl-broken",
        Action::Spoil(Spoilt::Rules),
        "HcnCreateEndpoint HcnModifyEndpoint",
        "access rules are accepted and shown, and no packet meets them until they are set anew",
        "WC#616 (Windows Server 2025)",
    ),
    new("acl-remove-noop", Action::Pretend, MODIFY_ENDPOINT, "the modify succeeds and does nothing", "Azure NPM"),
];

/// What a name means.
pub fn kind(name: &str) -> Option<&'static FaultKind> {
    KINDS.iter().find(|kind| kind.name == name)
}
