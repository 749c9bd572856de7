use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod};

use serde_json::{Value, json};
use std::sync::Arc;

use super::*;
use crate::scheduler::memo::Memo;
use crate::{
    scheduler::{cache::Cache, place::place},
    storage::{
        csi::{AttachmentRow, CapacityRow, CsiNodeRow, DriverRow},
        rows::CsiSource,
        testing::{claim, class, volume},
    },
    view::PodClaim,
};
use kube_rules::{NodeSelector, NodeTerm};

fn pod(claims: &[&str]) -> PodRow {
    let mut row = PodRow::new(&Pod::default());
    row.ns = "a".into();
    row.claims = claims.iter().map(|name| PodClaim { name: (*name).into(), ephemeral: false }).collect();
    row
}

fn node(name: &str) -> NodeRow {
    let mut row = NodeRow::new(&Node::default());
    row.labels.insert("host".into(), name.into());
    row
}

fn on(host: &str) -> Option<NodeSelector> {
    let hostname = NodeSelectorRequirement { key: "host".into(), operator: "In".into(), values: Some(vec![host.into()]) };
    Some(vec![NodeTerm::new(&NodeSelectorTerm { match_expressions: Some(vec![hostname]), match_fields: None })].into())
}

fn storage(claims: Vec<(&str, ClaimRow)>, volumes: Vec<(Key, Arc<VolumeRow>)>) -> World {
    let waits = class("mullion.io/local", true);
    let fixed = class("kubernetes.io/no-provisioner", true);
    World {
        claims: claims.into_iter().map(|(name, row)| (Key::new("a", name), Arc::new(row))).collect(),
        volumes,
        classes: [("local".to_owned(), waits), ("fixed".to_owned(), fixed)].into(),
        ..World::default()
    }
}

fn bound(volume: &str) -> ClaimRow {
    claim(|row| {
        row.volume = volume.into();
        row.bind_completed = true;
        row.phase = "Bound".into();
    })
}

fn of_class(name: &str) -> ClaimRow {
    claim(|row| row.class = name.into())
}

#[test]
fn claims_that_no_node_can_satisfy_are_refused() {
    let storage = storage(
        vec![
            ("immediate", claim(|_| {})),
            (
                "lost",
                claim(|row| {
                    row.phase = "Lost".into();
                    row.volume = "v".into();
                }),
            ),
            ("going", claim(|row| row.deleting = true)),
            ("waits", of_class("local")),
        ],
        vec![],
    );
    let mut ephemeral = pod(&["web-cache"]);
    ephemeral.claims[0].ephemeral = true;
    for (pod, expected) in [
        (pod(&["task-pv-claim"]), Some("persistentvolumeclaim \"task-pv-claim\" not found")),
        (ephemeral, Some("waiting for ephemeral volume controller to create the persistentvolumeclaim \"web-cache\"")),
        (pod(&["immediate"]), Some("pod has unbound immediate PersistentVolumeClaims")),
        (pod(&["lost"]), Some("persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"v\"")),
        (pod(&["going"]), Some("persistentvolumeclaim \"going\" is being deleted")),
        (pod(&["waits"]), None),
        (pod(&[]), None),
    ] {
        assert_eq!(Volumes::of(&pod, &storage).err().as_deref(), expected);
    }
}

#[test]
fn nodes_are_filtered_by_claims_and_volumes() {
    let local = |name: &str, host: &str, class: &str| {
        let class = class.to_owned();
        let affinity = on(host);
        volume(name, |row| {
            row.affinity = affinity;
            row.class = class;
        })
    };
    let chosen = || {
        claim(|row| {
            row.class = "local".into();
            row.selected_node = Some("win02".into());
        })
    };
    for (what, claims, volumes, host, expected) in [
        ("its volume is here", vec![("data", bound("v"))], vec![local("v", "win01", "")], "win01", Ok(&[][..])),
        (
            "its volume is elsewhere",
            vec![("data", bound("v"))],
            vec![local("v", "win01", "")],
            "win02",
            Err("node(s) didn't match PersistentVolume's node affinity"),
        ),
        (
            "its volume is gone",
            vec![("data", bound("v"))],
            vec![],
            "win01",
            Err("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
        ),
        ("one can be made", vec![("data", of_class("local"))], vec![], "win01", Ok(&["have a volume made for a/data"])),
        ("a free one is here", vec![("data", of_class("fixed"))], vec![local("v", "win01", "fixed")], "win01", Ok(&["give v to a/data"])),
        (
            "none is here, and none can be made",
            vec![("data", of_class("fixed"))],
            vec![local("v", "win01", "fixed")],
            "win02",
            Err("node(s) didn't find available persistent volumes to bind"),
        ),
        (
            "one volume is not enough for two",
            vec![("data", of_class("fixed")), ("logs", of_class("fixed"))],
            vec![local("v", "win01", "fixed")],
            "win01",
            Err("node(s) didn't find available persistent volumes to bind"),
        ),
        ("it was to be made here", vec![("data", chosen())], vec![], "win02", Ok(&["have a volume made for a/data"])),
        ("it was to be made elsewhere", vec![("data", chosen())], vec![], "win01", Err("node(s) didn't find available persistent volumes to bind")),
    ] {
        let names: Vec<&str> = claims.iter().map(|(name, _)| *name).collect();
        let (pod, storage) = (pod(&names), storage(claims, volumes));
        let (volumes, node) = (Volumes::of(&pod, &storage).unwrap(), node(host));
        let refusal = volumes.refuse(&pod, (host, &node, &Usage::default()));
        match expected {
            Ok(steps) => {
                assert_eq!(refusal, None, "{what}");
                let found: Vec<String> = volumes.steps(host, &node).unwrap().iter().map(ToString::to_string).collect();
                assert_eq!(found, steps, "{what}");
            }
            Err(reason) => assert_eq!(refusal, Some(Refusal::all_hopeless(&[reason])), "{what}"),
        }
    }
}

#[test]
fn a_volume_that_was_given_away_is_not_given_twice() {
    let mut storage = storage(vec![("data", of_class("fixed"))], vec![volume("v", |row| row.class = "fixed".into())]);
    storage.given.insert("v".into(), Key::new("a", "other"));
    let pod = pod(&["data"]);
    assert!(Volumes::of(&pod, &storage).unwrap().steps("win01", &node("win01")).is_err());
    storage.given.insert("v".into(), Key::new("a", "data"));
    assert!(Volumes::of(&pod, &storage).unwrap().steps("win01", &node("win01")).is_ok(), "its own attempt does not stand in its way");
}

#[test]
fn binding_progress_of_claims() {
    let win01 = node("win01");
    let selected = |host: &str| {
        let host = host.to_owned();
        claim(|row| row.selected_node = Some(host))
    };
    let here = || volume("v", |row| row.affinity = on("win01"));
    let there = || volume("v", |row| row.affinity = on("win02"));
    for (row, volumes, expected) in [
        (bound("v"), vec![here()], Progress::Done),
        (bound("v"), vec![there()], Progress::Lost),
        (bound("v"), vec![], Progress::Lost),
        (selected("win01"), vec![], Progress::Waiting),
        (selected("win02"), vec![], Progress::Lost),
        (claim(|_| {}), vec![], Progress::Lost),
    ] {
        let storage = storage(vec![("data", row)], volumes);
        assert_eq!(progress(&pod(&["data"]), &storage, "win01", Some(&win01)), expected);
    }
    assert_eq!(progress(&pod(&[]), &storage(vec![], vec![]), "win01", None), Progress::Lost, "the node went away");
}

#[test]
fn a_claim_for_one_pod_alone() {
    let alone = claim(|row| {
        row.modes = vec!["ReadWriteOncePod".into()];
        row.volume = "v".into();
        row.bind_completed = true;
    });
    let storage = storage(vec![("data", alone)], vec![volume("v", |_| {})]);
    let mut cache = Cache::default();
    let mut host = node("win01");
    host.allocatable.insert("pods".into(), 10);
    cache.set_node("win01", Some(Arc::new(host)));
    let web = pod(&["data"]);
    assert!(place(&web, &storage, cache.nodes(), &mut Memo::default()).is_ok());
    cache.assume(&Key::new("a", "first"), &web, "win01");
    let why = place(&web, &storage, cache.nodes(), &mut Memo::default()).unwrap_err().to_string();
    let reason = "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
                  already in-use by another pod.";
    assert!(why.starts_with(reason), "{why}");
}

fn csi(name: &str, handle: &str) -> (Key, Arc<VolumeRow>) {
    volume(name, |row| row.csi = Some(CsiSource { driver: "csi.example".into(), handle: handle.into() }))
}

#[test]
fn drivers_limit_the_volumes_of_a_node() {
    let storage = |limit: i64, attached: &[&str]| {
        let claims = vec![("data", bound("v")), ("more", bound("w")), ("made", of_class("local"))];
        let mut storage = storage(claims, vec![csi("v", "h1"), csi("w", "h2"), csi("x", "h3")]);
        storage.csi_nodes.insert("win01".into(), Arc::new(CsiNodeRow { limits: [("csi.example".to_owned(), limit)].into() }));
        storage.classes.insert("local".into(), class("csi.example", true));
        let attachment = |volume: &&str| AttachmentRow {
            attacher: "csi.example".into(),
            node: "win01".into(),
            volume: Some((*volume).into()),
            attached: true,
            deleting: false,
            attach_error: None,
            detach_error: None,
        };
        storage.attachments = attached.iter().map(|volume| Arc::new(attachment(volume))).collect();
        storage
    };
    let full = Some(Refusal::curable("node(s) exceed max volume count"));
    for (what, limit, attached, present, wanted, expected) in [
        ("one of one", 1, &[][..], &[][..], &["data"][..], None),
        ("two of one", 1, &[], &[], &["data", "more"], full.clone()),
        ("another pod holds the only one", 1, &[], &["more"], &["data"], full.clone()),
        ("the same volume counts once", 1, &[], &["data"], &["data"], None),
        ("an attached volume counts", 1, &["x"], &[], &["data"], full.clone()),
        ("an attached volume of a pod counts once", 2, &["w"], &["more"], &["data"], None),
        ("a volume still to be made counts", 1, &[], &["data"], &["made"], full),
    ] {
        let (storage, mut cache) = (storage(limit, attached), Cache::default());
        cache.set_node("win01", Some(Arc::new(node("win01"))));
        if !present.is_empty() {
            cache.assume(&Key::new("a", "other"), &pod(present), "win01");
        }
        let wants = pod(wanted);
        let candidate = cache.nodes().next().unwrap();
        assert_eq!(Volumes::of(&wants, &storage).unwrap().refuse(&wants, candidate), expected, "{what}");
    }
}

#[test]
fn volumes_of_another_zone_are_refused() {
    let (beta, zone) = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    for (volume_label, places, node_label, place, fits) in [
        (zone, "a", zone, "a", true),
        (zone, "a__b", zone, "b", true),
        (zone, "a", zone, "b", false),
        (beta, "a", zone, "a", true),
        (beta, "a", zone, "b", false),
        (beta, "a", beta, "b", false),
        (zone, "a", "topology.kubernetes.io/region", "r", false),
        (zone, "a", "rack", "b", true),
    ] {
        let labelled = volume("v", |row| _ = row.labels.insert(volume_label.into(), places.into()));
        let storage = storage(vec![("data", bound("v"))], vec![labelled]);
        let mut host = node("win01");
        host.labels.insert(node_label.into(), place.into());
        let wants = pod(&["data"]);
        let refusal = Volumes::of(&wants, &storage).unwrap().refuse(&wants, ("win01", &host, &Usage::default()));
        let expected = (!fits).then(|| Refusal::hopeless("node(s) had no available volume zone"));
        assert_eq!(refusal, expected, "{volume_label}={places} on {node_label}={place}");
    }
}

#[test]
fn used_up_storage_refuses_volumes_that_must_be_made() {
    let capacity = |class: &str, size: &str, topology: Value| {
        let object = json!({"metadata": {"name": "c"}, "storageClassName": class, "capacity": size, "nodeTopology": topology});
        Arc::new(CapacityRow::new(&serde_json::from_value(object).unwrap()))
    };
    let here = || json!({"matchLabels": {"kubernetes.io/hostname": "win01"}});
    for (what, published, capacities, fits) in [
        ("the driver publishes nothing", false, vec![], true),
        ("nothing is left", true, vec![], false),
        ("enough is left", true, vec![capacity("made", "10", here())], true),
        ("too little is left", true, vec![capacity("made", "0", here())], false),
        ("of another class", true, vec![capacity("other", "10", here())], false),
        ("elsewhere", true, vec![capacity("made", "10", json!({"matchLabels": {"kubernetes.io/hostname": "win02"}}))], false),
        ("for no node", true, vec![capacity("made", "10", Value::Null)], false),
    ] {
        let mut storage = storage(vec![("data", of_class("made"))], vec![]);
        storage.classes.insert("made".into(), class("csi.example", true));
        storage.drivers.insert("csi.example".into(), Arc::new(DriverRow { attaches: true, publishes_capacity: published }));
        storage.capacities = capacities;
        let (wants, mut host) = (pod(&["data"]), node("win01"));
        host.labels.insert("kubernetes.io/hostname".into(), "win01".into());
        let refusal = Volumes::of(&wants, &storage).unwrap().refuse(&wants, ("win01", &host, &Usage::default()));
        assert_eq!(refusal, (!fits).then(|| Refusal::hopeless("node(s) did not have enough free storage")), "{what}");
    }
}
