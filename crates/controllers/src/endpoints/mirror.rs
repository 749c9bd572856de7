//! EndpointSlices that mirror hand-written Endpoints of a Service without a selector (upstream: `endpointslicemirroring`).

use std::sync::Arc;

use cluster::{Client, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints};
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::{
    hints::Hints,
    legacy::MANAGED_BY,
    plan,
    rows::{Group, Member, Port, Source, is_of_family},
};
use crate::{
    runner::{Next, Queue},
    view::Views,
};
use kube_rules::Labels;

/// Label of Endpoints that are not mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints that elect a leader hold no addresses.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// The most addresses of one subset that are mirrored (upstream: `--mirroring-max-endpoints-per-subset`).
const MOST: usize = 1000;

/// Row of Endpoints that may be mirrored.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    uid: String,
    labels: Labels,
    groups: Vec<Group>,
}

impl Row {
    fn new(endpoints: &Endpoints) -> Option<Self> {
        let meta = &endpoints.metadata;
        let labels = meta.labels.clone().unwrap_or_default();
        let skipped = labels.get(SKIP).is_some_and(|value| value == "true") || labels.contains_key(MANAGED_BY);
        if skipped || meta.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER)) {
            return None;
        }
        let mut all: Vec<Group> = Vec::new();
        for group in endpoints.subsets.iter().flatten().flat_map(groups) {
            match all.iter_mut().find(|one| one.family == group.family && one.ports == group.ports) {
                Some(same) => same.members.extend(group.members),
                None => all.push(group),
            }
        }
        Some(Self { uid: meta.uid.clone()?, labels, groups: all })
    }
}

/// One group of endpoints for each family of addresses in a subset.
fn groups(subset: &EndpointSubset) -> impl Iterator<Item = Group> {
    let ports = subset.ports.iter().flatten().map(|port| Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
        port: port.port,
    });
    let ports: Vec<Port> = ports.collect();
    let ready = subset.addresses.iter().flatten().map(|address| member(address, true));
    let waiting = subset.not_ready_addresses.iter().flatten().map(|address| member(address, false));
    let members: Vec<Member> = ready.chain(waiting).take(MOST).collect();
    ["IPv4", "IPv6"].into_iter().filter_map(move |family| {
        let members: Vec<Member> = members.iter().filter(|member| is_of_family(&member.address, family)).cloned().collect();
        (!members.is_empty()).then(|| Group { family: family.to_owned(), ports: ports.clone(), members })
    })
}

fn member(address: &EndpointAddress, ready: bool) -> Member {
    let pod = address.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
    Member {
        address: address.ip.clone(),
        ready,
        serving: ready,
        terminating: false,
        hostname: address.hostname.clone(),
        node: address.node_name.clone(),
        zone: None,
        pod: pod.and_then(|pod| pod.name.clone()).unwrap_or_default(),
        uid: pod.and_then(|pod| pod.uid.clone()).unwrap_or_default(),
        hints: Hints::default(),
    }
}

struct Context {
    client: Client,
    views: Views,
    endpoints: Informer<Row>,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, shutdown: CancellationToken) {
    let endpoints = Informer::start(Api::<Endpoints>::all(client.clone()), Selection::all().of(&views.api), Row::new);
    tokio::select! {
        () = endpoints.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    endpoints.subscribe(move |change| keys.add(change.key.clone()));
    let keys = queue.clone();
    views.services.subscribe(move |change| keys.add(change.key.clone()));
    let keys = queue.clone();
    views.slices.subscribe(move |change| {
        for slice in [change.old, change.new].into_iter().flatten().filter(|slice| slice.mirrors) {
            keys.add(Key::new(&change.key.ns, &slice.service));
        }
    });
    let context = Arc::new(Context { client, views, endpoints });
    queue.run("endpointslicemirroring", 2, shutdown, |key| sync(context.clone(), key)).await;
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let slices: Vec<_> =
        context.views.slices.in_namespace(&key.ns).into_iter().filter(|(_, slice)| slice.service == key.name && slice.mirrors).collect();
    let wanted = context.views.services.get(&key).is_some_and(|service| service.selector.is_none() && !service.deleting);
    let row = context.endpoints.get(&key).filter(|_| wanted);
    if row.is_none() && slices.is_empty() {
        return Ok(Next::Change);
    }
    let (source, desired) = match &row {
        Some(row) => (Source::endpoints(&key, &row.uid, &row.labels), row.groups.as_slice()),
        None => (Source::endpoints(&key, "", &Labels::new()), &[][..]),
    };
    for action in plan::plan(&key, &source, desired, &slices) {
        tracing::debug!(endpoints = %key, "{action}");
        super::apply(&context.client, &key, &source, &action).await?;
    }
    Ok(Next::Change)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(meta: Value) -> Option<Row> {
        let subset = json!({
            "addresses": [{"ip": "10.1.2.3"}, {"ip": "fd00::1", "hostname": "six"}],
            "notReadyAddresses": [{"ip": "10.1.2.4"}],
            "ports": [{"name": "sql", "port": 1433}],
        });
        let more = json!({"addresses": [{"ip": "10.1.2.5"}], "ports": [{"name": "sql", "port": 1433}]});
        let other = json!({"addresses": [{"ip": "10.1.2.3"}], "ports": [{"name": "http", "port": 80}]});
        Row::new(&serde_json::from_value(json!({"metadata": meta, "subsets": [subset, more, other]})).unwrap())
    }

    #[test]
    fn hand_written_endpoints_are_mirrored() {
        let found = row(json!({"uid": "u"})).unwrap();
        let actions = plan::plan(&Key::new("a", "db"), &Source::endpoints(&Key::new("a", "db"), "u", &found.labels), &found.groups, &[]);
        let printed: Vec<String> = actions.iter().map(|action| action.to_string().split_once(": ").unwrap().1.to_owned()).collect();
        assert_eq!(printed, ["10.1.2.3 10.1.2.4(not ready) 10.1.2.5", "fd00::1", "10.1.2.3"], "one slice for each family and set of ports");
        for meta in [
            json!({"uid": "u", "labels": {SKIP: "true"}}),
            json!({"uid": "u", "labels": {MANAGED_BY: "endpoint-controller"}}),
            json!({"uid": "u", "annotations": {LEADER: "{}"}}),
        ] {
            assert_eq!(row(meta.clone()), None, "{meta}");
        }
    }
}
