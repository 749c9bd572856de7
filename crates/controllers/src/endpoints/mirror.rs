//! EndpointSlices that mirror hand-written Endpoints of a Service without a selector (upstream: `endpointslicemirroring`).

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use cluster::{Client, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints};
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::{
    hints::Hints,
    legacy::MANAGED_BY,
    plan,
    rows::{Group, Member, Port, Source, canonical, is_of_family},
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
/// Annotations of Endpoints that their mirrors do not get.
const OWN_ANNOTATIONS: [&str; 2] = ["endpoints.kubernetes.io/last-change-trigger-time", "kubectl.kubernetes.io/last-applied-configuration"];
/// The most addresses of one subset that are mirrored (upstream: `--mirroring-max-endpoints-per-subset`).
const MOST: usize = 1000;

/// Row of Endpoints that may be mirrored.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    uid: String,
    labels: Labels,
    annotations: Labels,
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
        all.iter_mut().for_each(|group| group.members = united(std::mem::take(&mut group.members)));
        let mut annotations = meta.annotations.clone().unwrap_or_default();
        annotations.retain(|name, _| !OWN_ANNOTATIONS.contains(&name.as_str()));
        Some(Self { uid: meta.uid.clone()?, labels, annotations, groups: all })
    }
}

/// Each address once; it is ready when no subset says that it is not (upstream: `RepackSubsets`).
fn united(members: Vec<Member>) -> Vec<Member> {
    let mut all: Vec<Member> = Vec::with_capacity(members.len());
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    for member in members {
        match places.entry((member.address.clone(), member.uid.clone())) {
            Entry::Occupied(place) => all[*place.get()].ready &= member.ready,
            Entry::Vacant(place) => {
                place.insert(all.len());
                all.push(member);
            }
        }
    }
    all
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
    let members: Vec<Member> = ready.chain(waiting).flatten().take(MOST).collect();
    ["IPv4", "IPv6"].into_iter().filter_map(move |family| {
        let members: Vec<Member> = members.iter().filter(|member| is_of_family(&member.address, family)).cloned().collect();
        (!members.is_empty()).then(|| Group { family: family.to_owned(), ports: ports.clone(), members })
    })
}

/// The member of an address; none of one that is malformed.
fn member(address: &EndpointAddress, ready: bool) -> Option<Member> {
    let pod = address.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
    Some(Member {
        address: canonical(&address.ip)?,
        ready,
        serving: false,
        terminating: false,
        hostname: address.hostname.clone(),
        node: address.node_name.clone(),
        zone: None,
        pod: pod.and_then(|pod| pod.name.clone()).unwrap_or_default(),
        uid: pod.and_then(|pod| pod.uid.clone()).unwrap_or_default(),
        hints: Hints::default(),
    })
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
        Some(row) => (Source::endpoints(&key, &row.uid, &row.labels, &row.annotations), row.groups.as_slice()),
        None => (Source::endpoints(&key, "", &Labels::new(), &Labels::new()), &[][..]),
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
    use crate::endpoints::rows;

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
        let source = Source::endpoints(&Key::new("a", "db"), "u", &found.labels, &found.annotations);
        let actions = plan::plan(&Key::new("a", "db"), &source, &found.groups, &[]);
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

    #[test]
    fn mirrors_have_the_annotations_of_their_endpoints_and_say_no_more_than_they() {
        let found = row(json!({"uid": "u", "annotations": {"team": "shop", OWN_ANNOTATIONS[0]: "now", OWN_ANNOTATIONS[1]: "{}"}})).unwrap();
        let key = Key::new("a", "db");
        let source = Source::endpoints(&key, &found.uid, &found.labels, &found.annotations);
        let slice = rows::object(&key, &source, "db-1", &found.groups[0], None);
        assert_eq!(slice.metadata.annotations, Some(Labels::from([("team".to_owned(), "shop".to_owned())])));
        let conditions = slice.endpoints.as_ref().unwrap()[0].conditions.clone().unwrap();
        assert_eq!((conditions.ready, conditions.serving, conditions.terminating), (Some(true), None, None));
        let stored = rows::SliceRow::ours(&slice).unwrap();
        assert!(source.describes(&stored) && stored.slice == found.groups[0], "nothing is left to do");
        let changed = Source::endpoints(&key, &found.uid, &found.labels, &Labels::new());
        assert!(!changed.describes(&stored));
    }

    #[test]
    fn an_address_of_several_subsets_is_one_endpoint() {
        let subsets = json!([
            {"addresses": [{"ip": "10.1.2.3"}, {"ip": "FD00::1"}], "ports": [{"port": 80}]},
            {"addresses": [{"ip": "10.1.2.4"}], "notReadyAddresses": [{"ip": "10.1.2.3"}, {"ip": "fd00::1"}, {"ip": "x"}], "ports": [{"port": 80}]},
        ]);
        let found = Row::new(&serde_json::from_value(json!({"metadata": {"uid": "u"}, "subsets": subsets})).unwrap()).unwrap();
        let texts = |group: &Group| group.members.iter().map(|member| format!("{} {}", member.address, member.ready)).collect::<Vec<_>>();
        assert_eq!(found.groups.iter().map(texts).collect::<Vec<_>>(), [vec!["10.1.2.3 false", "10.1.2.4 true"], vec!["fd00::1 false"]]);
    }
}
