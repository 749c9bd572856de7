//! Table of faults.

use std::fmt;

use hcn::HResult;

use super::{Action, Defect, Incident, Loss, Outage, Shown};
use crate::model::Tampering;

/// Kind of a fault, by its name.
#[derive(Clone, Copy, Debug)]
pub struct FaultKind {
    pub name: &'static str,
    /// What it does.
    pub action: Action,
    /// How many calls it hits unless the fault has a count.
    pub hits: Hits,
    /// The functions it hits unless the fault names others, separated by blanks; empty is every function.
    pub calls: &'static str,
    /// Code of the call unless the fault has one.
    pub hresult: Option<HResult>,
    /// How long the call waits unless the fault has a delay.
    pub delay_ms: u64,
    /// Effect, as one sentence of the table of faults.
    pub what: &'static str,
    /// Symptoms, and where they show.
    pub seen: &'static str,
    /// Source of the report.
    pub evidence: &'static str,
}

/// How many calls a fault hits that has no count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// One: it happens at a moment, and the real service is as before afterwards but for what it did.
    Once,
    /// All until it is cleared: it is a state of the host, or a property of its build.
    UntilCleared,
}

impl fmt::Display for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once => "once",
            Self::UntilCleared => "until cleared",
        })
    }
}

/// Meaning of VALUE in `NAME=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// There is none.
    None,
    /// How long the call waits, or how long what comes late takes.
    Duration,
    /// The code that the call answers.
    Code,
    /// How the service ends.
    Mode,
}

impl FaultKind {
    /// Meaning of VALUE.
    pub fn value(&self) -> Value {
        match self.action {
            Action::Delay | Action::Defect(Defect::Compartment) | Action::Outage(Outage::Passing | Outage::LosesRoutes | Outage::WithSwitch) => {
                Value::Duration
            }
            Action::Fail | Action::FailAfter => Value::Code,
            Action::Incident(Incident::Restart) => Value::Mode,
            _ => Value::None,
        }
    }

    /// What VALUE is when it is left out; none where it must be given, or where there is none.
    pub fn default_value(&self) -> Option<String> {
        match self.value() {
            Value::None => None,
            Value::Duration => (self.delay_ms != 0).then(|| format!("{}ms", self.delay_ms)),
            Value::Code => self.hresult.map(|code| format!("{:#010x}", code.0)),
            Value::Mode => Some("clean".to_owned()),
        }
    }

    /// How VALUE is written: `NAME`, `NAME=CODE` where it must be given, `NAME[=CODE]` where it may be.
    pub fn form(&self) -> String {
        let word = match self.value() {
            Value::None => return self.name.to_owned(),
            Value::Duration => "DURATION",
            Value::Code => "CODE",
            Value::Mode => "MODE",
        };
        if self.default_value().is_some() { format!("{}[={word}]", self.name) } else { format!("{}={word}", self.name) }
    }

    /// Form and meaning of VALUE, in a sentence.
    pub fn usage(&self) -> String {
        let meaning = match self.value() {
            Value::None => return format!("write {}: it has no VALUE", self.name),
            Value::Duration => "DURATION is a number with a unit, as 200ms or 3s",
            Value::Code => "CODE is what the call answers, as 0x803b0013 or HCN_E_PORT_ALREADY_EXISTS",
            Value::Mode => "MODE is clean, crash or reboot",
        };
        let default = self.default_value().map(|value| format!(" (without it {value})")).unwrap_or_default();
        format!("write {}: {meaning}{default}", self.form())
    }
}

const LASTING: FaultKind =
    FaultKind { name: "", action: Action::Fail, hits: Hits::UntilCleared, calls: "", hresult: None, delay_ms: 0, what: "", seen: "", evidence: "" };

const CREATE_BALANCER: &str = "HcnCreateLoadBalancer";
const CREATE_ENDPOINT: &str = "HcnCreateEndpoint";
const DELETE_ENDPOINT: &str = "HcnDeleteEndpoint";
const CREATE_NETWORK: &str = "HcnCreateNetwork";
const MODIFY_ENDPOINT: &str = "HcnModifyEndpoint";
const MODIFY_NAMESPACE: &str = "HcnModifyNamespace";
const QUERY_NETWORK: &str = "HcnQueryNetworkProperties HNSCall";
const CHANGES: &str = "HcnCreate* HcnModify* HcnDelete*";

const NO_POD: &str = "the pod stays ContainerCreating; its events (FailedCreatePodSandBox) have the code";
const NO_SERVICE: &str = "after 10 s the Service's events (ServiceNotServed) have the code; connections to it fail";
const NO_NETWORK: &str = "the node has no pod network: its condition Ready says so, and the agent's log has the code";

/// Every fault.
pub const KINDS: &[FaultKind] = &[
    // Any call.
    FaultKind {
        name: "slow-call",
        action: Action::Delay,
        what: "the call waits",
        seen: "pods and Services come up later; MEAN and SLOWEST of `mullion hns counters`",
        evidence: "k8s#109162",
        ..LASTING
    },
    FaultKind {
        name: "fail-call",
        action: Action::Fail,
        what: "the call fails before it has an effect",
        seen: "what failed says so with the code: events of the pod or the Service, `mullion hns calls --failed`",
        evidence: "every error code that clients know",
        ..LASTING
    },
    FaultKind {
        name: "hang",
        action: Action::Hang,
        what: "the call does not return until the fault is cleared",
        seen: "pods stay ContainerCreating or Terminating; the agent's log (`mullion logs NODE`) names the call after its deadline",
        evidence: "moby#40699, ACN#1359, hcsshim#152",
        ..LASTING
    },
    FaultKind {
        name: "error-after-effect",
        action: Action::FailAfter,
        hits: Hits::Once,
        calls: CHANGES,
        hresult: Some(HResult::RPC_CALL_FAILED),
        what: "the call does its work and fails",
        seen: "the caller reports a failure, and the object is there: `mullion hns list`",
        evidence: "inference: lost RPC answers",
        ..LASTING
    },
    FaultKind {
        name: "success-without-effect",
        action: Action::Pretend,
        calls: CHANGES,
        what: "the call succeeds and does nothing",
        seen: "no error at the call; the object is not there: `mullion hns list`",
        evidence: "WC#631, k8s#131466",
        ..LASTING
    },
    FaultKind {
        name: "duplicate-effect",
        action: Action::Twice,
        hits: Hits::Once,
        calls: "HcnCreate*",
        what: "a create makes two objects",
        seen: "`mullion hns list` shows one that no client created",
        evidence: "inference: retried RPC",
        ..LASTING
    },
    FaultKind {
        name: "vanish",
        action: Action::Incident(Incident::Tamper(Tampering::LoseObject)),
        hits: Hits::Once,
        calls: "HcnOpen*",
        what: "the object is gone between enumerating and opening",
        seen: "`mullion hns list` without it; who owned it makes it anew or reports it as gone",
        evidence: "hnslib lists with 3N+1 calls",
        ..LASTING
    },
    // The service's life.
    FaultKind {
        name: "svc-down",
        action: Action::Fail,
        hresult: Some(HResult::RPC_NOT_REGISTERED),
        what: "the service does not answer",
        seen: "`mullion hns status` says what a call answers; new pods stay ContainerCreating; what is there goes on to carry packets",
        evidence: "WSL#9634, k8s PR#139503",
        ..LASTING
    },
    FaultKind {
        name: "svc-stopping",
        action: Action::Fail,
        hresult: Some(HResult::MANAGER_STOPPED),
        what: "the service is stopping",
        seen: "as svc-down",
        evidence: "WSL#9634",
        ..LASTING
    },
    FaultKind {
        name: "svc-deadlock",
        action: Action::Hang,
        what: "no call returns until the fault is cleared",
        seen: "`mullion hns status` says that its call does not return; new pods stay ContainerCreating",
        evidence: "SDN hnsautomitigator; moby#40699",
        ..LASTING
    },
    FaultKind {
        name: "hns-restart",
        action: Action::Incident(Incident::Restart),
        hits: Hits::Once,
        what: "the service restarts (clean, crash or reboot); the call fails with 0x800706be",
        seen: "`restarts` of `mullion hns status` grows; a clean restart keeps everything, a crash loses load balancers and half of the endpoints",
        evidence: "hcsshim#2155, WSL",
        ..LASTING
    },
    FaultKind {
        name: "wipe",
        action: Action::Incident(Incident::Wipe),
        hits: Hits::Once,
        what: "the service restarts with nothing (HNS.data deleted); the call fails with 0x800706be",
        seen: "`objects` of `mullion hns status` falls to 0, pods and Services of the node lose their packets until their owners make everything anew",
        evidence: "known reset",
        ..LASTING
    },
    FaultKind {
        name: "hns-data-corrupt",
        action: Action::Incident(Incident::Corrupt),
        hits: Hits::Once,
        what: "the service is down until its data are wiped",
        seen: "`mullion hns status` says that it does not answer, until `mullion hns restart --wipe`",
        evidence: "hcsshim#627, hcsshim#99, for-win#750",
        ..LASTING
    },
    FaultKind {
        name: "svc-stop-fails",
        action: Action::StaysUp,
        what: "the service does not stop: restarts are refused",
        seen: "`mullion hns restart` fails with that reason",
        evidence: "K2s#819, K2s#1468, K2s#593",
        ..LASTING
    },
    FaultKind {
        name: "callback-drop",
        action: Action::DropEvents,
        calls: CHANGES,
        what: "no listener is notified of the change",
        seen: "agents learn of a change only when they look again",
        evidence: "inference: WSL re-enumerates on a timer",
        ..LASTING
    },
    // What a start loses.
    FaultKind {
        name: "network-lost-on-reboot",
        action: Action::Start(Loss::Networks),
        what: "networks do not come back from a restart or reboot",
        seen: "after `mullion hns restart`, `mullion hns list networks` is empty until the agent made its network anew",
        evidence: "ACN#283, acs-engine#4001, flannel#1423",
        ..LASTING
    },
    FaultKind {
        name: "restart-loses-endpoints",
        action: Action::Start(Loss::Endpoints),
        what: "endpoints do not come back from a restart",
        seen: "after `mullion hns restart`, `mullion hns list endpoints` without the pods'; pods of the node are not reached",
        evidence: "calico#5164",
        ..LASTING
    },
    FaultKind {
        name: "restart-loses-lbs",
        action: Action::Start(Loss::Balancers),
        what: "load balancers do not come back from a restart",
        seen: "after `mullion hns restart` pods of the node reach no Service until the proxy has made the load balancers anew (seconds; upstream's kube-proxy does not notice)",
        evidence: "k8s#110674, k8s#110849, WC#18, WC#278, aks-engine#4975",
        ..LASTING
    },
    FaultKind {
        name: "restart-loses-some-lbs",
        action: Action::Start(Loss::SomeBalancers),
        what: "half of the load balancers do not come back from a restart",
        seen: "as restart-loses-lbs, for some Services",
        evidence: "k8s#135802, k8s#110674",
        ..LASTING
    },
    FaultKind {
        name: "restart-drops-dsr",
        action: Action::Start(Loss::DirectServerReturn),
        what: "load balancers come back without DSR",
        seen: "FLAGS of `mullion hns list loadbalancers`; servers see the node's address in place of the client's",
        evidence: "WC#19",
        ..LASTING
    },
    FaultKind {
        name: "restart-leaks-ports",
        action: Action::Start(Loss::Listeners),
        what: "load balancers are lost, and creating them again says that they exist",
        seen: "after `mullion hns restart` the Service's events (ServiceNotServed) have the code; connections to it fail",
        evidence: "k8s#139519, k8s PR#137530",
        ..LASTING
    },
    FaultKind {
        name: "restart-loses-namespaces",
        action: Action::Start(Loss::Namespaces),
        what: "namespaces without containers do not come back from a restart, and their endpoints are in none",
        seen: "after `mullion hns restart`, `mullion hns list namespaces` is empty; pods of the node are not reached",
        evidence: "inference: HNS keeps namespaces while containers run",
        ..LASTING
    },
    FaultKind {
        name: "stale-endpoints",
        action: Action::Start(Loss::StaleEndpoints),
        what: "endpoints come back from a reboot, attached to nothing",
        seen: "after `mullion hns restart --mode reboot`, `mullion hns list endpoints` has endpoints of pods that are gone",
        evidence: "moby#36603",
        ..LASTING
    },
    // Networks.
    FaultKind {
        name: "net-ghost-name",
        action: Action::Fail,
        calls: CREATE_NETWORK,
        hresult: Some(HResult::NETWORK_ALREADY_EXISTS),
        what: "a network's name is taken by one that is not listed",
        seen: NO_NETWORK,
        evidence: "hcsshim#850, K2s#1317, moby#40345",
        ..LASTING
    },
    FaultKind {
        name: "net-create-after-reboot",
        action: Action::Fail,
        calls: CREATE_NETWORK,
        hresult: Some(HResult::INVALID_PARAMETER),
        what: "a network cannot be created yet",
        seen: NO_NETWORK,
        evidence: "SDN#177, for-win#8427, antrea#2213",
        ..LASTING
    },
    FaultKind {
        name: "net-create-slow",
        action: Action::Delay,
        hits: Hits::Once,
        calls: CREATE_NETWORK,
        delay_ms: 6000,
        what: "the first external network takes long (6 s)",
        seen: "the node is Ready that much later",
        evidence: "OVN-K, WMCO, antrea: 1 to 60 s",
        ..LASTING
    },
    FaultKind {
        name: "net-blip",
        action: Action::Outage(Outage::Passing),
        hits: Hits::Once,
        calls: CREATE_NETWORK,
        delay_ms: 1800,
        what: "the host's adapter is without addresses and routes for a while (1.8 s), after the call",
        seen: "the node is not reached meanwhile",
        evidence: "antrea, flannel, Calico and OVN-K wait for the address",
        ..LASTING
    },
    FaultKind {
        name: "net-blip-loses-routes",
        action: Action::Outage(Outage::LosesRoutes),
        hits: Hits::Once,
        calls: CREATE_NETWORK,
        delay_ms: 1800,
        what: "after a blip the adapter has its addresses and the default route again, no other route",
        seen: "the node's routes to the pods of other nodes are missing until the agent sets them again",
        evidence: "sig-windows-tools#162, OVN-K adds routes again",
        ..LASTING
    },
    FaultKind {
        name: "net-blip-loses-ip",
        action: Action::Outage(Outage::LosesAddresses),
        hits: Hits::Once,
        calls: CREATE_NETWORK,
        what: "the adapter loses addresses and routes until the host reboots or the faults are cleared",
        seen: "the node becomes NotReady after 40 s: no other host reaches it",
        evidence: "sig-windows-tools#162",
        ..LASTING
    },
    FaultKind {
        name: "net-switch-blip",
        action: Action::Outage(Outage::WithSwitch),
        calls: "HcnCreateNetwork HcnDeleteNetwork",
        delay_ms: 1800,
        what: "the host's adapter is without addresses and routes for a while (1.8 s) when its first network is made or its last one deleted, since that makes or removes its switch",
        seen: "the node is not reached meanwhile; a network that stays beside the pods' (`mullion_uplink`) keeps the switch",
        evidence: "flannel's and Calico's scripts make a network `External` first, OVN-K a base network",
        ..LASTING
    },
    FaultKind {
        name: "net-apipa",
        action: Action::Show(Shown::LinkLocalAddress),
        calls: QUERY_NETWORK,
        what: "the ManagementIP is 169.254.x",
        seen: "documents of networks have 169.254.17.1 (`mullion hns list networks -o json`)",
        evidence: "slow DHCP",
        ..LASTING
    },
    FaultKind {
        name: "net-late-management-ip",
        action: Action::Show(Shown::NoManagementAddress),
        calls: QUERY_NETWORK,
        what: "the ManagementIP is not there yet",
        seen: "documents of networks have none; an agent that needs it waits",
        evidence: "flannel and Calico poll for it",
        ..LASTING
    },
    FaultKind {
        name: "net-new-id",
        action: Action::Incident(Incident::Tamper(Tampering::RenewNetwork)),
        hits: Hits::Once,
        calls: "HcnEnumerateNetworks",
        what: "the network was made anew with another id, without endpoints",
        seen: "`mullion hns list networks` has another id; pods of the node are not reached",
        evidence: "kube-proxy drops all policies",
        ..LASTING
    },
    FaultKind {
        name: "ipv6-off",
        action: Action::Fail,
        calls: "HcnCreate*",
        hresult: Some(HResult::ELEMENT_NOT_FOUND),
        what: "creates fail as with IPv6 disabled on the host",
        seen: NO_POD,
        evidence: "hosts with IPv6 off",
        ..LASTING
    },
    // Namespaces and endpoints.
    FaultKind {
        name: "ns-late-compartment",
        action: Action::Defect(Defect::Compartment),
        calls: "HcnCreateNamespace",
        delay_ms: 3000,
        what: "the compartment, and the adapters in it, show up late (3 s), or with the first container",
        seen: "the pod starts that much later",
        evidence: "WC#401, antrea#8172",
        ..LASTING
    },
    FaultKind {
        name: "ep-delete-hang",
        action: Action::Hang,
        calls: DELETE_ENDPOINT,
        what: "the delete does not return until the fault is cleared",
        seen: "a deleted pod stays, with its containers ended; its events (FailedKillPod) name the endpoint",
        evidence: "moby#40699, antrea PR#650",
        ..LASTING
    },
    FaultKind {
        name: "stale-endpoint",
        action: Action::Pretend,
        hits: Hits::Once,
        calls: DELETE_ENDPOINT,
        what: "the delete succeeds and the endpoint stays",
        seen: "with count=all the pod stays Terminating, and `mullion hns list endpoints` has its endpoint",
        evidence: "WC#631, ovn-k#390, antrea#2301, vpc-cni#47",
        ..LASTING
    },
    FaultKind {
        name: "ep-stuck",
        action: Action::Partial,
        hits: Hits::Once,
        calls: MODIFY_NAMESPACE,
        what: "the endpoint is attached, in state 1, without an adapter",
        seen: "the pod's events (FailedCreatePodSandBox) say that its endpoint has no adapter; its sandbox is made again",
        evidence: "calico#12795",
        ..LASTING
    },
    FaultKind {
        name: "ep-attach-loop",
        action: Action::Fail,
        calls: MODIFY_NAMESPACE,
        hresult: Some(HResult::ENDPOINT_ALREADY_ATTACHED),
        what: "HNS answers that the endpoint is attached already",
        seen: "the pod stays ContainerCreating; its events (FailedCreatePodSandBox) say that its endpoint is in no namespace",
        evidence: "calico#4280, calico#5192, flannel#1391",
        ..LASTING
    },
    FaultKind {
        name: "ep-host-attach-fails",
        action: Action::Fail,
        calls: "HNSCall",
        hresult: Some(HResult::WRONG_DISK),
        delay_ms: 6000,
        what: "attaching to the host fails after 6 s",
        seen: "the host's own endpoint of the pod network is missing (`mullion hns list endpoints`); the agent's log has the code",
        evidence: "flannel#1112",
        ..LASTING
    },
    FaultKind {
        name: "ep-dup-ip",
        action: Action::Fail,
        calls: CREATE_ENDPOINT,
        hresult: Some(HResult::OBJECT_ALREADY_EXISTS),
        what: "HNS answers that the address is taken",
        seen: NO_POD,
        evidence: "k8s#74766, for-win#13965",
        ..LASTING
    },
    FaultKind {
        name: "ep-address-reserved",
        action: Action::Fail,
        calls: CREATE_ENDPOINT,
        hresult: Some(HResult::ADDR_INVALID_OR_RESERVED),
        what: "HNS answers that the address is reserved",
        seen: NO_POD,
        evidence: "sig-windows-tools#71, k8s#100962",
        ..LASTING
    },
    FaultKind {
        name: "ep-notfound-on-namespace",
        action: Action::Fail,
        calls: MODIFY_NAMESPACE,
        hresult: Some(HResult::ELEMENT_NOT_FOUND),
        what: "HNS answers that the namespace or endpoint does not exist",
        seen: NO_POD,
        evidence: "ACN#1272, ACN#774, containerd#6135",
        ..LASTING
    },
    FaultKind {
        name: "ep-port-blocked",
        action: Action::Defect(Defect::Port),
        hits: Hits::Once,
        calls: MODIFY_NAMESPACE,
        what: "the endpoint is attached, in state 3, and its port passes nothing until it is attached anew",
        seen: "the pod is Ready and no packet reaches or leaves it; `mullion hns vfp` says Blocked",
        evidence: "calico#12795; VFP ports in state Blocked",
        ..LASTING
    },
    FaultKind {
        name: "ns-delete-refused",
        action: Action::Fail,
        calls: "HcnDeleteNamespace",
        hresult: Some(HResult::REQUEST_UNSUPPORTED),
        what: "HNS answers that the namespace is in use",
        seen: "a deleted pod stays Terminating; its events (FailedKillPod) have the code",
        evidence: "hcsshim#2155, WC#485",
        ..LASTING
    },
    FaultKind {
        name: "lost-object",
        action: Action::Incident(Incident::Tamper(Tampering::LoseObject)),
        hits: Hits::Once,
        what: "the object is gone, as if another program had deleted it",
        seen: "`mullion hns list` without it; a load balancer is made anew within seconds",
        evidence: "k8s#76316, moby#45462",
        ..LASTING
    },
    // Load balancers.
    FaultKind {
        name: "port-exists",
        action: Action::Fail,
        calls: CREATE_BALANCER,
        hresult: Some(HResult::PORT_ALREADY_EXISTS),
        what: "HNS answers that the port is taken",
        seen: NO_SERVICE,
        evidence: "k8s PR#137530, hcsshim#1043, AKS#1375",
        ..LASTING
    },
    FaultKind {
        name: "lb-exists",
        action: Action::Fail,
        calls: CREATE_BALANCER,
        hresult: Some(HResult::ALREADY_EXISTS),
        what: "HNS answers that the load balancer exists",
        seen: NO_SERVICE,
        evidence: "k8s#139519",
        ..LASTING
    },
    FaultKind {
        name: "lb-port-not-found",
        action: Action::Fail,
        calls: CREATE_BALANCER,
        hresult: Some(HResult::PORT_NOT_FOUND),
        what: "HNS answers that a backend's port is not on a switch",
        seen: NO_SERVICE,
        evidence: "k8s#62029",
        ..LASTING
    },
    FaultKind {
        name: "lb-empty",
        action: Action::Fail,
        calls: CREATE_BALANCER,
        hresult: Some(HResult::INVALID_JSON_REFERENCE),
        what: "HNS answers that a backend does not exist",
        seen: NO_SERVICE,
        evidence: "k8s#100384, k8s PR#106936",
        ..LASTING
    },
    FaultKind {
        name: "lb-sourcevip-missing",
        action: Action::Fail,
        calls: CREATE_BALANCER,
        hresult: Some(HResult::ADDR_INVALID_OR_RESERVED),
        what: "HNS answers that the SourceVIP is no endpoint's",
        seen: NO_SERVICE,
        evidence: "k8s PR#96499",
        ..LASTING
    },
    FaultKind {
        name: "lb-out-of-ports",
        action: Action::Fail,
        calls: CREATE_BALANCER,
        hresult: Some(HResult::OUT_OF_MEMORY),
        what: "the pool of ports is used up",
        seen: NO_SERVICE,
        evidence: "CNI plugins#613, AKS#1375",
        ..LASTING
    },
    FaultKind {
        name: "lb-delete-fails",
        action: Action::Fail,
        hits: Hits::Once,
        calls: "HcnDeleteLoadBalancer",
        hresult: Some(HResult::FAIL),
        what: "the delete fails, and a retry works",
        seen: "`mullion hns calls --failed`; the load balancer goes with the retry",
        evidence: "k8s#113524",
        ..LASTING
    },
    FaultKind {
        name: "lb-del-after-net",
        action: Action::Fail,
        calls: "HcnDeleteLoadBalancer",
        hresult: Some(HResult::NETWORK_NOT_FOUND),
        what: "HNS answers that the load balancer's network does not exist",
        seen: "`mullion hns list loadbalancers` keeps that of a deleted Service",
        evidence: "libnetwork#2524, aks-engine#3956",
        ..LASTING
    },
    FaultKind {
        name: "lb-modify-noop",
        action: Action::Pretend,
        calls: "HcnModifyLoadBalancer",
        what: "the modify succeeds and does nothing",
        seen: "connections to a Service go to the backends that it had before",
        evidence: "k8s#131466",
        ..LASTING
    },
    FaultKind {
        name: "lb-create-hang",
        action: Action::Hang,
        calls: CREATE_BALANCER,
        what: "the create does not return until the fault is cleared",
        seen: "connections to new Services fail",
        evidence: "aks-engine#4315, image-builder#566",
        ..LASTING
    },
    // Policies.
    FaultKind {
        name: "lost-policy",
        action: Action::Incident(Incident::Tamper(Tampering::LosePolicies)),
        hits: Hits::Once,
        what: "the object's policies are gone; a load balancer is gone itself",
        seen: "`mullion hns list endpoints -o json` without them: a pod without OutBoundNAT reaches nothing outside",
        evidence: "k8s#110674, ovn-k",
        ..LASTING
    },
    FaultKind {
        name: "acl-refused",
        action: Action::Fail,
        calls: MODIFY_ENDPOINT,
        hresult: Some(HResult::INVALID_POLICY),
        what: "the policy is refused",
        seen: "who sets access rules (win-bridge's configuration, Calico, Azure NPM) gets the code; the rules do not hold",
        evidence: "calico#8465, containers-roadmap#240, hcsshim#164",
        ..LASTING
    },
    FaultKind {
        name: "acl-broken",
        action: Action::Defect(Defect::Rules),
        calls: "HcnCreateEndpoint HcnModifyEndpoint",
        what: "access rules are accepted and shown, and have no effect on packets until they are set again",
        seen: "connections that a rule blocks succeed",
        evidence: "WC#616 (Windows Server 2025)",
        ..LASTING
    },
    FaultKind {
        name: "acl-remove-noop",
        action: Action::Pretend,
        calls: MODIFY_ENDPOINT,
        what: "the modify succeeds and does nothing",
        seen: "connections that a removed rule blocked stay blocked",
        evidence: "Azure NPM",
        ..LASTING
    },
];

pub fn kind(name: &str) -> Option<&'static FaultKind> {
    KINDS.iter().find(|kind| kind.name == name)
}
