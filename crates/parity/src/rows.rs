//! The rows of the tables: their wording, and what each mode claims. Nothing here proves anything.

use crate::Mode;

/// What a mode claims of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// "yes", once a test of this mode proved it.
    Yes,
    /// This text, once a test of this mode proved all of it.
    Shown(&'static str),
    /// This text, which claims nothing: "no", or why the row does not concern this mode.
    Not(&'static str),
}

use Cell::{Not, Shown, Yes};

/// A feature of Services.
pub struct Feature {
    /// Its name, which [`proved`](crate::proved) takes.
    pub name: &'static str,
    /// What upstream's Windows proxy does, by its source and documentation.
    pub upstream: &'static str,
    /// HNS, nftables, user space.
    pub cells: [Cell; 3],
}

/// A bug of upstream's Windows proxy.
pub struct Bug {
    /// Its reports, `#N` in kubernetes/kubernetes; none where only the source shows it.
    pub reports: &'static [&'static str],
    /// What users see.
    pub what: &'static str,
    /// HNS, nftables, user space.
    pub cells: [Cell; 3],
}

impl Bug {
    /// What [`proved`](crate::proved) takes: its first report, or else its text.
    pub fn key(&self) -> &'static str {
        self.reports.first().unwrap_or(&self.what)
    }
}

/// Whether a test of `mode` can prove `row`.
///
/// # Errors
/// Says what is wrong with it.
pub fn check(row: &str, mode: Mode) -> Result<(), String> {
    let features = FEATURES.iter().map(|feature| (feature.name, feature.cells));
    let bugs = BUGS.iter().map(|bug| (bug.key(), bug.cells));
    let tests = UPSTREAM_TESTS.iter().map(|test| (*test, [Yes, NOT_HERE, NOT_HERE]));
    let mut all = features.chain(bugs).chain(tests);
    let Some((_, cells)) = all.find(|(name, _)| *name == row) else {
        return Err(format!("there is no row {row:?}: crates/parity/src/rows.rs lists all"));
    };
    match cells[mode as usize] {
        Not(text) => Err(format!("the row {row:?} claims nothing of {mode} ({text:?}): let it claim what the test proves")),
        Yes | Shown(_) => Ok(()),
    }
}

/// The mode has nothing that this could happen to.
const NOT_HERE: Cell = Not("–");
/// Could happen, and no test looks for it.
const UNTESTED: Cell = Not("no test");
const NO: Cell = Not("no");

const fn feature(name: &'static str, upstream: &'static str, cells: [Cell; 3]) -> Feature {
    Feature { name, upstream, cells }
}

const fn bug(reports: &'static [&'static str], what: &'static str, cells: [Cell; 3]) -> Bug {
    Bug { reports, what, cells }
}

/// Only HNS has the objects that this is about.
const ON_HNS: [Cell; 3] = [Yes, NOT_HERE, NOT_HERE];
const EVERYWHERE: [Cell; 3] = [Yes, Yes, Yes];

/// Features of Services.
pub const FEATURES: &[Feature] = &[
    feature("ClusterIP, NodePort, externalIPs, load-balancer addresses", "yes", EVERYWHERE),
    feature("TCP and UDP", "yes", EVERYWHERE),
    feature("SCTP", "sent to HNS, undocumented", [Shown("sent to HNS, undocumented"), Yes, Shown("no: reported")]),
    feature("IPv6 and dual stack", "not on overlays", [Shown("not on overlays"), Yes, Yes]),
    feature("Several ports", "yes", EVERYWHERE),
    feature("Several target ports behind one port", "one of them", [Shown("the one that most backends have; reported"), Yes, Yes]),
    feature("Session affinity", "HNS 12 and later", [Shown("HNS 12 and later; reported before"), Yes, Yes]),
    feature("Session affinity's timeout", "no", [Shown("no: reported"), Yes, Yes]),
    feature("internalTrafficPolicy Local", "yes", EVERYWHERE),
    feature("externalTrafficPolicy Local: only backends on the node answer", "yes", EVERYWHERE),
    feature("externalTrafficPolicy Local: backends see the client's address", "with DSR", [Shown("with DSR; reported without"), Yes, NO]),
    feature("externalTrafficPolicy Local: clients inside the cluster reach every backend", "no", [Shown("no: reported"), Yes, Yes]),
    feature("healthCheckNodePort", "yes", EVERYWHERE),
    feature("Health checks at the load balancer's address", "yes", [Yes, Not("not needed"), Not("not needed")]),
    feature("Terminating backends as a last resort", "ingress addresses only", EVERYWHERE),
    feature("publishNotReadyAddresses", "no", EVERYWHERE),
    feature("Topology hints of EndpointSlices (forNodes, forZones)", "no", EVERYWHERE),
    feature("loadBalancerSourceRanges", "no", [Shown("no: reported"), Yes, Shown("yes, by resets")]),
    feature("nodePortAddresses", "no", [Shown("no: reported at the start"), Yes, Shown("of the node's own")]),
    feature("NodePorts at localhost", "no", [Shown("no: reported at the start"), Shown("127.0.0.1"), Shown("127.0.0.1")]),
    feature("A Service without backends refuses at once", "no", [NO, Yes, Yes]),
    feature(
        "A pod that is its own backend",
        "with DSR only by the loopback policy",
        [Shown("with DSR only by the loopback policy; its absence is reported"), Yes, Yes],
    ),
    feature("UDP clients that never pause follow the Service", "no", [NO, Yes, Yes]),
    feature("Annotation preserve-destination", "yes", [Yes, Not("Windows only"), Not("Windows only")]),
    feature("Labels service-proxy-name and headless", "yes", EVERYWHERE),
    feature("A change costs its own Service only", "no", EVERYWHERE),
    feature("A restart changes nothing that is right", "everything is wiped", [Yes, Yes, Shown("connections drain")]),
    feature("Damage by others is repaired", "no", EVERYWHERE),
    feature("Clean-up on request", "no", [Yes, Yes, Shown("at its end")]),
];

/// Bugs of upstream's Windows proxy: its reports, and what its source shows.
pub const BUGS: &[Bug] = &[
    bug(
        &["#78574"],
        "A node port with the number of the Service's port does not answer: the load balancer of the ClusterIP is taken for the node port's",
        EVERYWHERE,
    ),
    bug(
        &["website#17930"],
        "Each load balancer without DSR reserves 64 ephemeral ports of the host; when they are used up, no Service can be added",
        [Shown("does not happen with DSR, the default for ClusterIPs; else reported"), NOT_HERE, NOT_HERE],
    ),
    bug(
        &["#113842"],
        "Pods of a load balancer with externalTrafficPolicy Local are scaled, and open connections to the pods that stay break",
        EVERYWHERE,
    ),
    bug(&["#109162", "#109124"], "Every change reads and writes everything", EVERYWHERE),
    bug(&["#110674", "#110849"], "All load balancers vanish, and it takes days until they are back", [Yes, Yes, NOT_HERE]),
    bug(&["#135802"], "A load balancer that something else removed is never made again", EVERYWHERE),
    bug(&["#139519", "#139503"], "Any error of a read from HNS means \"gone\"", ON_HNS),
    bug(&["#137530"], "A load balancer of HNS without backends stays and holds its address and port", ON_HNS),
    bug(&["#112836", "#112837"], "Each change of backends leaves a load balancer of HNS behind", ON_HNS),
    bug(&["#113524", "#113521"], "A load balancer of HNS whose delete failed is taken for the new one", ON_HNS),
    bug(&["#133928", "#133953"], "A Service with internalTrafficPolicy Local loses its load balancer", EVERYWHERE),
    bug(&["#136241", "#115501"], "IPv4 and IPv6 of one Service are mixed up", EVERYWHERE),
    bug(&["#131466", "#131506"], "HNS says that it modified a load balancer, and did not", ON_HNS),
    bug(&["#130963", "#131138", "#138000"], "One address belongs to a remote and to a pod's own endpoint, and the wrong one is deleted", ON_HNS),
    bug(&["#135144", "#135146"], "Services that change together leave remote endpoints behind", ON_HNS),
    bug(&["Windows-Containers#631"], "Remote endpoints are left after churn, and break the pod that gets the address", ON_HNS),
    bug(&["#91703", "#93229", "#76316"], "Two Services share a pod; when one is deleted, the other fails", EVERYWHERE),
    bug(&["#141488", "#141489", "#116749", "#100384"], "Half-made objects of HNS end the process", ON_HNS),
    bug(&["#106936"], "An empty list of backends is sent to HNS again and again", ON_HNS),
    bug(&["#113841"], "A Service whose pods all terminate loses its load balancer's address", EVERYWHERE),
    bug(&["#115783", "#109780"], "A Service with externalTrafficPolicy Local loses its ClusterIP on nodes without its pods", EVERYWHERE),
    bug(&["#132646", "#132647"], "Backends get the Service's target port instead of the EndpointSlice's", EVERYWHERE),
    bug(
        &["#106636"],
        "Clients inside the cluster do not reach a load balancer's address with externalTrafficPolicy Local on nodes without its pods",
        [Shown("still so: reported"), Yes, Yes],
    ),
    bug(&["#123014", "#96996", "#100962"], "When the source VIP cannot be made, no Service is programmed", ON_HNS),
    bug(&["#106580", "#137766"], "Failures of HNS are not counted", ON_HNS),
    bug(&["image-builder#566"], "A call of HNS hangs, and everything waits for it", ON_HNS),
    bug(&["Windows-Containers#19"], "Load balancers come back without DSR after a restart of HNS", ON_HNS),
    bug(&[], "A failure at an external address is marked as applied", [Yes, UNTESTED, UNTESTED]),
    bug(&[], "A failure at a node port skips the other addresses", [Yes, UNTESTED, Yes]),
    bug(&[], "A backend whose endpoint HNS refused once stays out", ON_HNS),
    bug(&[], "A pod whose endpoint comes to HNS late stays out", ON_HNS),
    bug(&[], "A load balancer of HNS is adopted, then deleted as stale", ON_HNS),
    bug(&[], "A failed delete of an endpoint of HNS is not tried again", ON_HNS),
    bug(&[], "A failed delete of an external address's load balancer is forgotten", ON_HNS),
    bug(&[], "Unready pods elsewhere get the ClusterIP's traffic", EVERYWHERE),
    bug(&[], "Any error about the HNS network wipes everything", ON_HNS),
    bug(&[], "An overlay's address of a Service goes and comes with every change", ON_HNS),
    bug(&[], "An overlay's address of a Service leaks after a restart", ON_HNS),
    bug(&[], "Load balancers of HNS keep ids of endpoints that are gone", ON_HNS),
    bug(&[], "Two ports of one pod cancel each other out", EVERYWHERE),
    bug(&[], "Ports share a health check that each believes to own", ON_HNS),
    bug(&[], "All pods terminate, and node ports keep the old ones", EVERYWHERE),
    bug(&[], "Unready pods keep their remote endpoints", ON_HNS),
    bug(&[], "Health says synced although Services failed", [Yes, UNTESTED, Yes]),
    bug(&[], "The start wipes what others made", EVERYWHERE),
    bug(&[], "publishNotReadyAddresses has no effect", EVERYWHERE),
    bug(&[], "Pods of the host's network are left out in silence", [Shown("left out, and reported"), Yes, Yes]),
];

/// Every function of upstream's proxier_test.go and hns_test.go (pkg/proxy/winkernel).
pub const UPSTREAM_TESTS: &[&str] = &[
    "TestCreateServiceVip",
    "TestCreateRemoteEndpointOverlay",
    "TestCreateRemoteEndpointL2Bridge",
    "TestDsrEndpointsAreCreatedCorrectly",
    "TestDsrNotAppliedToClusterTrafficPolicy",
    "TestClusterIPSvcWithITPLocal",
    "TestSharedRemoteEndpointDelete",
    "TestSharedRemoteEndpointUpdate",
    "TestCreateLoadBalancerWithoutDSR",
    "TestCreateLoadBalancerWithDSR",
    "TestUpdateLoadBalancerWhenSupported",
    "TestUpdateLoadBalancerWhenUnsupported",
    "TestCreateDsrLoadBalancer",
    "TestClusterIPLBInCreateDsrLoadBalancer",
    "TestEndpointSliceWithInternalPortDifferentFromServicePort",
    "TestEndpointSlice",
    "TestNoopEndpointSlice",
    "TestFindRemoteSubnetProviderAddress",
    "TestWinDSRWithOverlayEnabled",
    "TestETPLocalIngressIPServiceWithPreferDualStack",
    "TestETPLocalIngressIPServiceWithRequireDualStack",
    "TestETPClusterIngressIPServiceWithPreferDualStack",
    "TestETPClusterIngressIPServiceWithRequireDualStack",
    "TestRemoteAndLocalEndpointsSameIP",
    "TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP",
    "TestEndpointTransitionWithLBFailures",
    "TestGetAllEndpointsByNetworkWithDupEP",
    "TestGetNetworkByName",
    "TestGetAllEndpointsByNetwork",
    "TestGetEndpointByID",
    "TestGetEndpointByIpAddressAndName",
    "TestCreateEndpointLocal",
    "TestCreateEndpointRemote",
    "TestDeleteEndpoint",
    "TestGetLoadBalancerExisting",
    "TestGetLoadBalancerNew",
    "TestDeleteLoadBalancer",
    "TestHashEndpoints",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn row_names_are_unique_and_unclaimed_cells_say_no() {
        let features = FEATURES.iter().map(|row| (row.name, row.cells));
        let bugs = BUGS.iter().map(|row| (row.key(), row.cells));
        let rows: Vec<(&str, [Cell; 3])> = features.chain(bugs).collect();
        let names: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).chain(UPSTREAM_TESTS.iter().copied()).collect();
        assert_eq!(names.len(), rows.len() + UPSTREAM_TESTS.len());
        assert_eq!(UPSTREAM_TESTS.len(), 26 + 12, "proxier_test.go and hns_test.go");
        assert!(names.iter().all(|name| !name.contains(['|', '\t', '\n'])));
        for (name, cells) in rows {
            for cell in cells {
                let boasts = matches!(cell, Not(text) if !["no", "no test", "not needed", "–", "Windows only"].contains(&text));
                assert!(!boasts, "{name}: {cell:?} claims something without a proof");
            }
        }
        assert_eq!(check("TestHashEndpoints", Mode::Hns), Ok(()));
        assert!(check("TestHashEndpoints", Mode::Nftables).is_err());
    }
}
