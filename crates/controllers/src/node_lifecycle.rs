//! Node life cycle: detects nodes without heartbeat, keeps the taints that follow from conditions, and evicts pods that do not
//! tolerate them.
//!
//! Inputs: nodes, their Leases, pods. Outputs: node conditions and taints, pod conditions, deletions, Events. Mirrors
//! `pkg/controller/nodelifecycle` and `pkg/controller/tainteviction`.
//! Guarantees: silence is measured by this process's clock from what it saw itself, so that a control plane that was away gives every node
//! its full grace; nothing is evicted while no node at all is ready, and the nodes of a zone are evicted one after the other; taints of others
//! stay.

mod census;
mod evict;
mod plan;
mod zones;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use cluster::{Client, EventRecorder, EventType, Key, is_conflict, is_not_found, update_with_retry};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Clock, Timing,
    runner::{Next, Queue},
    view::{NodeRow, Views},
};
use census::{Census, Count};
use plan::{Evictions, plan};
use zones::{Turn, Zones, zone};

/// By how much longer a node that never said whether it is ready may be silent (upstream: `--node-startup-grace-period`, 60 s beside 50).
const STARTUP: (u32, u32) = (6, 5);
/// Nodes with this label do not count when it is decided whether evictions go on.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

struct Context {
    client: Client,
    views: Views,
    events: EventRecorder,
    heard: Arc<Heard>,
    grace: Duration,
    census: Arc<Mutex<Census>>,
    zones: Mutex<Zones>,
}

/// When each node was last heard of.
struct Heard {
    clock: Clock,
    at: Mutex<HashMap<String, Instant>>,
}

impl Heard {
    fn at(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, node: &str) {
        let now = (self.clock)();
        self.at().insert(node.to_owned(), now);
    }

    /// For how long a node has been silent. One that was never heard of is silent from now on.
    fn silent(&self, node: &str) -> Duration {
        let now = (self.clock)();
        now.saturating_duration_since(*self.at().entry(node.to_owned()).or_insert(now))
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, timing: Timing, shutdown: CancellationToken) {
    let queue = Queue::<String>::default();
    let Timing { node_grace: grace, clock } = timing;
    let heard = Arc::new(Heard { clock, at: Mutex::default() });
    let events = EventRecorder::new(client.clone(), "node-controller", "");
    let census = Arc::new(Mutex::default());
    watch(&views, &queue, &heard, &census, &events);
    let context = Arc::new(Context { client: client.clone(), views: views.clone(), events, heard, grace, census, zones: Mutex::default() });
    tokio::join!(queue.run("nodelifecycle", 8, shutdown.clone(), |node| sync(context.clone(), node)), evict::run(client, views, shutdown),);
}

fn locked(census: &Mutex<Census>) -> MutexGuard<'_, Census> {
    census.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(views: &Views, queue: &Queue<String>, heard: &Arc<Heard>, census: &Arc<Mutex<Census>>, events: &EventRecorder) {
    let (keys, heard_of, nodes, census, events) = (queue.clone(), heard.clone(), views.nodes.clone(), census.clone(), events.clone());
    views.nodes.subscribe(move |change| {
        let name = &change.key.name;
        let told = match (change.old, change.new) {
            (None, Some(node)) => Some((node, "RegisteredNode", format!("Registered Node {name} in Controller"))),
            (Some(node), None) => Some((node, "RemovingNode", format!("Removing Node {name} from Controller"))),
            _ => None,
        };
        if let Some((node, reason, message)) = told {
            events.event(&reference(name, &node.uid), EventType::Normal, reason, None, message);
        }
        let beat = |row: &NodeRow| row.condition("Ready").and_then(|one| one.heartbeat);
        match (change.old, change.new) {
            (_, None) => {
                heard_of.at().remove(name);
            }
            (None, Some(_)) => heard_of.hear(name),
            (Some(old), Some(new)) if beat(old) != beat(new) => heard_of.hear(name),
            _ => {}
        }
        let others = {
            let mut census = locked(&census);
            // Read within the lock: the newest state is the last one that is counted.
            census.set(name, nodes.get(change.key).as_deref())
        };
        keys.add(name.clone());
        keys.extend(others);
    });
    let heard_of = heard.clone();
    views.leases.subscribe(move |change| {
        if change.new.is_some() {
            heard_of.hear(&change.key.name);
        }
    });
    // A node that fell silent has pods that must not look ready.
    let (keys, nodes) = (queue.clone(), views.nodes.clone());
    views.pods.subscribe(move |change| {
        let Some(pod) = change.new.filter(|pod| pod.ready.is_some()) else { return };
        if nodes.get(Key::cluster(&pod.node)).is_some_and(|node| plan::is_unknown(&node)) {
            keys.add(pod.node.clone());
        }
    });
}

async fn sync(context: Arc<Context>, name: String) -> anyhow::Result<Next> {
    let Some(node) = context.views.nodes.get(Key::cluster(&name)) else { return Ok(Next::Change) };
    let grace = if node.condition("Ready").is_some() { context.grace } else { context.grace * STARTUP.0 / STARTUP.1 };
    let left = grace.saturating_sub(context.heard.silent(&name));
    let (evictions, turn) = evictions(&context, &node);
    let plan = plan(&node, left.is_zero(), evictions);
    if !plan.is_empty() {
        tracing::debug!(node = name, "{plan}");
    }
    if !plan.unknown.is_empty() {
        mark_unknown(&context, &name, &node, &plan.unknown).await?;
    }
    if plan.taints.is_some() {
        write_taints(&context, &name, evictions).await?;
    }
    if !plan.labels.is_empty() {
        let labels: BTreeMap<&str, &str> = plan.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let patch = Patch::Merge(json!({"metadata": {"uid": node.uid, "labels": labels}}));
        match Api::<Node>::all(context.client.clone()).patch(&name, &PatchParams::default(), &patch).await {
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            other => other.map(|_| ()).with_context(|| format!("labelling node {name}"))?,
        }
    }
    if plan.silence_pods {
        silence_pods(&context, &name).await?;
    }
    let grace = (!left.is_zero()).then_some(left);
    Ok([grace, turn].into_iter().flatten().min().map_or(Next::Change, Next::Within))
}

/// Whether the node's pods may be evicted, and when to ask again. A node that is lost takes its turn among those of its zone.
fn evictions(context: &Context, node: &NodeRow) -> (Evictions, Option<Duration>) {
    let place = zone(&node.labels);
    let (stops, Count { ready, unready }) = {
        let census = locked(&context.census);
        (census.none_is_ready(), census.zone(&place))
    };
    if stops {
        return (Evictions::Stop, None);
    }
    if !plan::awaits_eviction(node) {
        return (Evictions::Hold, None);
    }
    let now = (context.heard.clock)();
    let turn = context.zones.lock().unwrap_or_else(PoisonError::into_inner).turn(&place, ready, unready, now);
    match turn {
        Turn::Now => (Evictions::Go, None),
        Turn::In(left) => (Evictions::Hold, Some(left)),
        // It is looked at again when the pace of its zone changes.
        Turn::Stopped => (Evictions::Hold, None),
    }
}

fn reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference { kind: Some("Node".to_owned()), name: Some(name.to_owned()), uid: Some(uid.to_owned()), ..Default::default() }
}

fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

async fn mark_unknown(context: &Context, name: &str, node: &NodeRow, conditions: &[String]) -> anyhow::Result<()> {
    let condition = |type_: &String| {
        let (reason, message, heartbeat) = match node.condition(type_) {
            Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status.", None),
            None => ("NodeStatusNeverUpdated", "Kubelet never posted node status.", node.created),
        };
        let mut condition = json!({"type": type_, "status": "Unknown", "reason": reason, "message": message, "lastTransitionTime": now()});
        if let Some(heartbeat) = heartbeat {
            condition["lastHeartbeatTime"] = json!(Time(heartbeat));
        }
        condition
    };
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let patch = json!({"metadata": {"uid": node.uid}, "status": {"conditions": conditions}});
    let nodes: Api<Node> = Api::all(context.client.clone());
    match nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(error) if is_not_found(&error) || is_conflict(&error) => return Ok(()),
        other => other.with_context(|| format!("noting that node {name} fell silent"))?,
    };
    tracing::warn!(node = name, "the node fell silent");
    let message = format!("Node {name} status is now: NodeNotReady");
    context.events.event(&reference(name, &node.uid), EventType::Normal, "NodeNotReady", None, message);
    Ok(())
}

async fn write_taints(context: &Context, name: &str, evictions: Evictions) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let written = update_with_retry(&nodes, name, |live| {
        let row = NodeRow::new(live);
        let Some(mut taints) = plan::taints(&row, evictions) else { return false };
        for taint in taints.iter_mut().filter(|taint| !row.taints.contains(taint)) {
            taint.time_added = Some(now());
        }
        live.spec.get_or_insert_default().taints = (!taints.is_empty()).then_some(taints);
        true
    })
    .await;
    match written {
        Err(cluster::Error::Request { source, .. }) if is_not_found(&source) => Ok(()),
        other => other.map(|_| ()).with_context(|| format!("writing the taints of node {name}")),
    }
}

/// Takes readiness from the pods of a silent node, so that no Service leads to them.
async fn silence_pods(context: &Context, name: &str) -> anyhow::Result<()> {
    for (key, pod) in context.views.pods.snapshot() {
        if pod.node != name || pod.ready.is_none() {
            continue;
        }
        let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": now()});
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.ns);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if is_not_found(&error) || is_conflict(&error) => continue,
            other => other.with_context(|| format!("noting that {key} is not ready"))?,
        };
        let object = ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(key.ns.clone()),
            name: Some(key.name.clone()),
            uid: Some(pod.uid.clone()),
            ..Default::default()
        };
        context.events.event(&object, EventType::Warning, "NodeNotReady", None, "Node is not ready");
    }
    Ok(())
}
