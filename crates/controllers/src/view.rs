//! Shared informers of the controllers, and their compact rows.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use cluster::{ApiServer, Client, Informer, Key, Selection};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet},
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Node, Pod, PodSpec, PodStatus, Service, ServiceAccount, Taint, Toleration},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::Api;

use crate::{
    deployment::RsRow,
    endpoints::{Distribution, SliceRow},
};
use kube_rules::{Labels, Quantity, Selector, readiness};

/// The controller of an object, from its owner references.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Controller {
    /// Its group and version, as `apps/v1`.
    pub version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// The owner reference that says `controller: true`.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<Controller> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(Controller { version: owner.api_version.clone(), kind: owner.kind.clone(), name: owner.name.clone(), uid: owner.uid.clone() })
}

/// An owner reference by which `kind` controls an object (upstream: `metav1.NewControllerRef`).
pub(crate) fn controller_reference(api_version: &str, kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A port that a container declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerPort {
    pub name: String,
    pub protocol: String,
    pub port: i32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodRow {
    pub uid: String,
    pub labels: Labels,
    pub controller: Option<Controller>,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    pub phase: String,
    /// Since when it says that it is about to be disrupted, by something else than its node's agent.
    pub disrupted: Option<Timestamp>,
    /// Failed because its node ran short of something.
    pub evicted: bool,
    pub node: String,
    /// The node that its affinity names, as a DaemonSet's pod has it, while it is on none.
    pub meant_for: Option<String>,
    pub ips: Vec<String>,
    /// Since when it is ready, if it is.
    pub ready: Option<Timestamp>,
    pub restarts: i32,
    pub deletion_cost: i32,
    pub hostname: String,
    pub subdomain: String,
    pub restart_policy: String,
    pub ports: Vec<ContainerPort>,
    pub tolerations: Vec<Toleration>,
    /// Names of the claims whose volumes it uses.
    pub claims: Vec<String>,
    /// Those of them that are made for it alone.
    pub ephemeral_claims: Vec<String>,
    /// Its node's agent is done with it, or it was deleted by force: it only waits to be gone.
    pub shut_down: bool,
    /// A digest of what decides about its share of quotas beside its phase: its scope, and the resources that its containers have now.
    pub charge: u64,
}

/// A claim that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodClaim {
    pub name: String,
    /// It is made for this pod and goes with it.
    pub ephemeral: bool,
}

/// The claims that a pod uses.
pub(crate) fn claims_of(pod: &Pod) -> impl Iterator<Item = PodClaim> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(PodClaim { name: source.claim_name.clone(), ephemeral: false }),
        (None, Some(_)) => Some(PodClaim { name: format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name), ephemeral: true }),
        (None, None) => None,
    })
}

/// The one node that a pod without a node demands by name (upstream: `daemon/util.GetTargetNodeName`).
fn named_node(spec: &PodSpec) -> Option<String> {
    if spec.node_name.as_ref().is_some_and(|node| !node.is_empty()) {
        return None;
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let mut names = fields.filter(|field| field.key == "metadata.name" && field.operator == "In").filter_map(|field| field.values.as_ref());
    names.find_map(|values| values.first().cloned())
}

/// Since when a pod says that something will disrupt it. The agent says it of pods that it ends, which may take as long as they need.
fn disrupted(status: &PodStatus) -> Option<Timestamp> {
    let mut conditions = status.conditions.iter().flatten();
    let target = conditions.find(|one| one.type_ == "DisruptionTarget")?;
    let ours = target.status == "True" && target.reason.as_deref() != Some("TerminationByKubelet");
    ours.then(|| target.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

/// See [`PodRow::charge`].
fn charge(spec: &PodSpec, status: &PodStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0).hash(&mut hasher);
    for container in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
        let Some(resources) = &container.resources else { continue };
        container.name.hash(&mut hasher);
        for amounts in [&resources.requests, &resources.limits] {
            for (name, amount) in amounts.iter().flatten() {
                (name, &amount.0).hash(&mut hasher);
            }
            0u8.hash(&mut hasher);
        }
    }
    hasher.finish()
}

impl PodRow {
    pub fn new(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let status = pod.status.clone().unwrap_or_default();
        let meta = &pod.metadata;
        let ready = readiness::ready(status.conditions.iter().flatten());
        let containers = status.container_statuses.iter().flatten();
        let cost = meta.annotations.as_ref().and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
        // Containers beside the others from the start, which init containers are that restart (upstream: `FindPort`).
        let beside = spec.init_containers.iter().flatten().filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let ports = spec.containers.iter().chain(beside).flat_map(|one| one.ports.iter().flatten()).map(|port| ContainerPort {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: port.container_port,
        });
        Self {
            ephemeral_claims: claims_of(pod).filter(|claim| claim.ephemeral).map(|claim| claim.name).collect(),
            shut_down: meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0),
            charge: charge(&spec, &status),
            claims: claims_of(pod).map(|claim| claim.name).collect(),
            uid: meta.uid.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            controller: controller_of(meta),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            deleting: meta.deletion_timestamp.is_some(),
            ready: ready.map(|one| one.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)),
            restarts: containers.map(|one| one.restart_count).max().unwrap_or_default(),
            deletion_cost: cost.and_then(|cost| cost.parse().ok()).unwrap_or_default(),
            ports: ports.collect(),
            disrupted: disrupted(&status),
            evicted: status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted"),
            phase: status.phase.unwrap_or_default(),
            meant_for: named_node(&spec),
            ips: status.pod_ips.into_iter().flatten().map(|ip| ip.ip).collect(),
            node: spec.node_name.unwrap_or_default(),
            hostname: spec.hostname.unwrap_or_default(),
            subdomain: spec.subdomain.unwrap_or_default(),
            restart_policy: spec.restart_policy.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_default(),
        }
    }

    /// Whether it has ended for good.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether it counts as a replica: neither ended nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.deleting
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServicePortRow {
    pub name: Option<String>,
    pub protocol: String,
    pub app_protocol: Option<String>,
    pub port: i32,
    pub target: Option<IntOrString>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceRow {
    pub uid: String,
    pub labels: Labels,
    /// None: someone else makes its endpoints.
    pub selector: Option<Selector>,
    pub headless: bool,
    pub external_name: bool,
    pub publish_not_ready: bool,
    pub distribution: Distribution,
    pub families: Vec<String>,
    pub ports: Vec<ServicePortRow>,
    pub deleting: bool,
}

impl ServiceRow {
    pub fn new(service: &Service) -> Self {
        let spec = service.spec.clone().unwrap_or_default();
        let ports = spec.ports.into_iter().flatten().map(|port| ServicePortRow {
            name: port.name,
            protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: port.app_protocol,
            port: port.port,
            target: port.target_port,
        });
        Self {
            uid: service.metadata.uid.clone().unwrap_or_default(),
            labels: service.metadata.labels.clone().unwrap_or_default(),
            ports: ports.collect(),
            selector: spec.selector.filter(|labels| !labels.is_empty()).map(|labels| Selector::from_labels(&labels)),
            headless: spec.cluster_ip.as_deref() == Some("None"),
            external_name: spec.type_.as_deref() == Some("ExternalName"),
            distribution: Distribution::new(service.metadata.annotations.as_ref(), spec.traffic_distribution.as_deref()),
            publish_not_ready: spec.publish_not_ready_addresses.unwrap_or_default(),
            families: spec.ip_families.filter(|families| !families.is_empty()).unwrap_or_else(|| vec!["IPv4".to_owned()]),
            deleting: service.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// A condition of a node, as far as its life cycle looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeCondition {
    pub type_: String,
    pub status: String,
    /// When the node agent last wrote it.
    pub heartbeat: Option<Timestamp>,
}

impl readiness::Condition for NodeCondition {
    fn kind(&self) -> &str {
        &self.type_
    }

    fn status(&self) -> &str {
        &self.status
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeRow {
    pub uid: String,
    pub created: Option<Timestamp>,
    pub labels: Labels,
    pub pod_cidrs: Vec<String>,
    pub unschedulable: bool,
    /// Thousandths of processors that pods may use.
    pub cpu_millis: i64,
    pub taints: Vec<Taint>,
    pub conditions: Vec<NodeCondition>,
    pub deleting: bool,
}

impl NodeRow {
    pub fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let cpu = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get("cpu"));
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten()).map(|one| NodeCondition {
            type_: one.type_.clone(),
            status: one.status.clone(),
            heartbeat: one.last_heartbeat_time.as_ref().map(|time| time.0),
        });
        Self {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            pod_cidrs: spec.pod_cidrs.filter(|all| !all.is_empty()).unwrap_or_else(|| spec.pod_cidr.into_iter().collect()),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            cpu_millis: cpu.and_then(|cpu| Quantity::parse(&cpu.0).ok()).map_or(0, Quantity::milli_value),
            taints: spec.taints.unwrap_or_default(),
            conditions: conditions.collect(),
            deleting: node.metadata.deletion_timestamp.is_some(),
        }
    }

    /// The status of a condition, if the node has it.
    pub fn condition(&self, type_: &str) -> Option<&NodeCondition> {
        readiness::find(&self.conditions, type_)
    }
}

/// Row of a Deployment; the work itself reads the newest object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeploymentRow {
    pub uid: String,
    pub version: String,
    pub selector: Selector,
    pub replicas: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceRow {
    pub deleting: bool,
    pub deleted_at: Option<Timestamp>,
    pub finalizers: Vec<String>,
}

/// The authority's certificate as a namespace has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootCaRow {
    pub pem: Option<String>,
    /// Members that do not belong there.
    pub surplus: Vec<String>,
    /// Whether an annotation says what it is.
    pub is_described: bool,
}

impl RootCaRow {
    /// The annotation that says what it is.
    pub const DESCRIPTION: &'static str = "kubernetes.io/description";

    pub fn new(map: &ConfigMap) -> Self {
        let (data, description) = (map.data.as_ref(), map.metadata.annotations.as_ref().and_then(|all| all.get(Self::DESCRIPTION)));
        Self {
            pem: data.and_then(|data| data.get("ca.crt")).cloned(),
            surplus: data.into_iter().flat_map(|data| data.keys()).filter(|name| *name != "ca.crt").cloned().collect(),
            is_described: description.is_some_and(|text| !text.is_empty()),
        }
    }
}

/// The informers that several controllers share.
#[derive(Clone)]
pub(crate) struct Views {
    /// For readers of further kinds.
    pub api: ApiServer,
    pub pods: Informer<PodRow>,
    pub nodes: Informer<NodeRow>,
    pub services: Informer<ServiceRow>,
    pub slices: Informer<SliceRow>,
    pub deployments: Informer<DeploymentRow>,
    pub replica_sets: Informer<RsRow>,
    pub namespaces: Informer<NamespaceRow>,
    /// When each node's lease was renewed last.
    pub leases: Informer<Option<Timestamp>>,
    /// Service accounts called `default`.
    pub service_accounts: Informer<()>,
    /// Each `kube-root-ca.crt`.
    pub root_cas: Informer<RootCaRow>,
}

impl Views {
    /// Starts all informers.
    pub fn start(client: &Client, api: &ApiServer) -> Self {
        let all = || Selection::all().of(api);
        Self {
            api: api.clone(),
            pods: Informer::start(Api::<Pod>::all(client.clone()), all(), |pod| Some(PodRow::new(pod))),
            nodes: Informer::start(Api::<Node>::all(client.clone()), all(), |node| Some(NodeRow::new(node))),
            services: Informer::start(Api::<Service>::all(client.clone()), all(), |service| Some(ServiceRow::new(service))),
            slices: Informer::start(Api::<EndpointSlice>::all(client.clone()), all(), SliceRow::ours),
            deployments: Informer::start(Api::<Deployment>::all(client.clone()), all(), deployment_row),
            replica_sets: Informer::start(Api::<ReplicaSet>::all(client.clone()), all(), |set| Some(RsRow::new(set))),
            namespaces: Informer::start(Api::<Namespace>::all(client.clone()), all(), namespace_row),
            leases: Informer::start(Api::<Lease>::all(client.clone()), Selection::fields("metadata.namespace=kube-node-lease").of(api), |lease| {
                Some(lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0))
            }),
            service_accounts: Informer::start(Api::<ServiceAccount>::all(client.clone()), Selection::fields("metadata.name=default").of(api), |_| {
                Some(())
            }),
            root_cas: Informer::start(Api::<ConfigMap>::all(client.clone()), Selection::fields("metadata.name=kube-root-ca.crt").of(api), |map| {
                Some(RootCaRow::new(map))
            }),
        }
    }

    /// Waits until every informer has its first list.
    pub async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        self.services.synced().await;
        self.slices.synced().await;
        self.deployments.synced().await;
        self.replica_sets.synced().await;
        self.namespaces.synced().await;
        self.leases.synced().await;
        self.service_accounts.synced().await;
        self.root_cas.synced().await;
    }

    /// The key of an object's controller if it is of this kind (a controller lives in its object's namespace).
    pub fn controller_key(controller: Option<&Controller>, kind: &str, ns: &str) -> Option<Key> {
        controller.filter(|one| one.kind == kind).map(|one| Key::new(ns, &one.name))
    }
}

fn deployment_row(deployment: &Deployment) -> Option<DeploymentRow> {
    Some(DeploymentRow {
        uid: deployment.metadata.uid.clone()?,
        version: deployment.metadata.resource_version.clone().unwrap_or_default(),
        selector: deployment.spec.as_ref().map(|spec| Selector::new(&spec.selector)).unwrap_or_default(),
        replicas: deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
    })
}

fn namespace_row(namespace: &Namespace) -> Option<NamespaceRow> {
    Some(NamespaceRow {
        deleting: namespace.metadata.deletion_timestamp.is_some(),
        deleted_at: namespace.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        finalizers: namespace.spec.as_ref().and_then(|spec| spec.finalizers.clone()).unwrap_or_default(),
    })
}
