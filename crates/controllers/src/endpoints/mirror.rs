//! EndpointSlices that mirror hand-written Endpoints of a Service without a selector (upstream: `endpointslicemirroring`).

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use cluster::{Client, EventRecorder, EventType, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference};
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::{
    hints::Hints,
    legacy::MANAGED_BY,
    plan,
    rows::{Group, MOST_MIRRORED, Member, Port, Source, canonical, is_of_family},
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

/// Row of Endpoints that may be mirrored.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    uid: String,
    labels: Labels,
    annotations: Labels,
    groups: Vec<Group>,
    /// Addresses that are malformed.
    invalid: usize,
    /// Addresses beyond the most of a subset.
    surplus: usize,
}

impl Row {
    fn new(endpoints: &Endpoints) -> Option<Self> {
        let meta = &endpoints.metadata;
        let labels = meta.labels.clone().unwrap_or_default();
        let skipped = labels.get(SKIP).is_some_and(|value| value == "true") || labels.contains_key(MANAGED_BY);
        if skipped || meta.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER)) {
            return None;
        }
        let mut invalid = 0;
        // Addresses by the ports that they share.
        let mut subsets: Vec<(Vec<Port>, Vec<Member>)> = Vec::new();
        for subset in endpoints.subsets.iter().flatten() {
            let ports = ports(subset);
            let ready = subset.addresses.iter().flatten().map(|address| member(address, true));
            let waiting = subset.not_ready_addresses.iter().flatten().map(|address| member(address, false));
            let (members, bad): (Vec<_>, Vec<_>) = ready.chain(waiting).partition(Option::is_some);
            invalid += bad.len();
            let members = members.into_iter().flatten();
            match subsets.iter_mut().find(|(others, _)| *others == ports) {
                Some((_, same)) => same.extend(members),
                None => subsets.push((ports, members.collect())),
            }
        }
        let (mut groups, mut surplus) = (Vec::new(), 0);
        for (ports, members) in subsets {
            let mut members = united(members);
            if members.len() > MOST_MIRRORED {
                members.sort_by_key(|member| !member.ready);
                surplus += members.len() - MOST_MIRRORED;
                members.truncate(MOST_MIRRORED);
            }
            for family in ["IPv4", "IPv6"] {
                let members: Vec<Member> = members.iter().filter(|member| is_of_family(&member.address, family)).cloned().collect();
                if !members.is_empty() {
                    groups.push(Group { family: family.to_owned(), ports: ports.clone(), members });
                }
            }
        }
        let mut annotations = meta.annotations.clone().unwrap_or_default();
        annotations.retain(|name, _| !OWN_ANNOTATIONS.contains(&name.as_str()));
        Some(Self { uid: meta.uid.clone()?, labels, annotations, groups, invalid, surplus })
    }

    /// Warnings about addresses that are not mirrored, in upstream's words.
    fn warnings(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if self.invalid > 0 {
            all.push(("InvalidIPAddress", format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", self.invalid)));
        }
        if self.surplus > 0 {
            let skipped = self.invalid + self.surplus;
            let message = format!(
                "A max of {MOST_MIRRORED} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped"
            );
            all.push(("TooManyAddressesToMirror", message));
        }
        all
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

fn ports(subset: &EndpointSubset) -> Vec<Port> {
    let port = |port: &EndpointPort| Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
        port: port.port,
    };
    subset.ports.iter().flatten().map(port).collect()
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
    events: EventRecorder,
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
    let events = EventRecorder::new(client.clone(), "endpoint-slice-mirroring-controller", "");
    let context = Arc::new(Context { client, views, endpoints, events });
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
    for (reason, message) in row.iter().flat_map(|row| row.warnings()) {
        let object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Endpoints".to_owned()),
            namespace: Some(key.ns.clone()),
            name: Some(key.name.clone()),
            uid: row.as_ref().map(|row| row.uid.clone()),
            ..ObjectReference::default()
        };
        context.events.event(&object, EventType::Warning, reason, None, message);
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
        assert_eq!(found.warnings(), [("InvalidIPAddress", "Skipped 1 invalid IP addresses when mirroring to EndpointSlices".to_owned())]);
    }

    #[test]
    fn a_thousand_addresses_are_mirrored_in_one_slice() {
        let address = |index: u32| json!({"ip": format!("10.1.{}.{}", index / 200, index % 200)});
        let of = |range: std::ops::Range<u32>| range.map(address).collect::<Vec<Value>>();
        let subsets = json!([{"notReadyAddresses": of(0..600), "ports": [{"port": 80}]}, {"addresses": of(600..1003), "ports": [{"port": 80}]}]);
        let found = Row::new(&serde_json::from_value(json!({"metadata": {"uid": "u"}, "subsets": subsets})).unwrap()).unwrap();
        let (key, members) = (Key::new("a", "db"), &found.groups[0].members);
        assert_eq!((found.groups.len(), members.len()), (1, 1000));
        assert_eq!(members.iter().filter(|member| member.ready).count(), 403, "those that are ready come first");
        let message = "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped";
        assert_eq!(found.warnings(), [("TooManyAddressesToMirror", message.to_owned())]);
        let source = Source::endpoints(&key, "u", &found.labels, &found.annotations);
        assert_eq!(plan::plan(&key, &source, &found.groups, &[]).len(), 1);
    }
}
