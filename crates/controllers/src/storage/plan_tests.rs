use super::*;
use crate::storage::{
    rows::ClaimRef,
    testing::{claim, class, volume},
};

fn text(actions: &[Action]) -> Vec<String> {
    actions.iter().map(ToString::to_string).collect()
}

fn owned(name: &str, uid: &str) -> Option<ClaimRef> {
    Some(ClaimRef { key: Key::new("a", name), uid: uid.into() })
}

fn plan(claim: &ClaimRow, volumes: &[Named], class: Option<Arc<ClassRow>>, pods: &[&str]) -> Vec<String> {
    let (key, pods) = (Key::new("a", "data"), pods.iter().map(|pod| (*pod).to_owned()).collect::<Vec<_>>());
    text(&for_claim(&ClaimInput { key: &key, claim, volumes, class, waiting_pods: &pods }))
}

#[test]
fn a_claim_without_a_volume() {
    let of_class = |name: &str| claim(|row| row.class = name.to_owned());
    let local = || Some(class("mullion.io/local", true));
    let external = "report ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'mullion.io/local' or manually by \
                    the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.";
    for (what, row, volumes, class, pods, expected) in [
        (
            "nothing suits",
            claim(|_| {}),
            vec![],
            None,
            &[][..],
            &["report FailedBinding: no persistent volumes available for this claim and no storage class is set"][..],
        ),
        ("something suits", claim(|_| {}), vec![volume("v", |_| {})], None, &[], &["reserve v", "v is Bound", "name v", "the claim is Bound"]),
        ("no such class", of_class("fast"), vec![], None, &[], &["report ProvisioningFailed: storageclass.storage.k8s.io \"fast\" not found"]),
        (
            "a class that waits for a pod",
            of_class("local"),
            vec![volume("v", |row| row.class = "local".into())],
            local(),
            &[],
            &["report WaitForFirstConsumer: waiting for first consumer to be created before binding"],
        ),
        ("a pod is there", of_class("local"), vec![], local(), &["web"], &["report WaitForPodScheduled: waiting for pod web to be scheduled"]),
        (
            "the scheduler chose a node",
            claim(|row| {
                row.class = "local".into();
                row.selected_node = Some("win01".into());
            }),
            vec![],
            local(),
            &["web"],
            &["ask mullion.io/local", external],
        ),
        (
            "its volume was made",
            claim(|row| {
                row.class = "local".into();
                row.selected_node = Some("win01".into());
            }),
            vec![volume("pvc-1", |row| {
                row.class = "local".into();
                row.claim = owned("data", "claim");
            })],
            local(),
            &["web"],
            &["pvc-1 is Bound", "name pvc-1", "the claim is Bound"],
        ),
        (
            "a class nobody serves",
            of_class("old"),
            vec![],
            Some(class("kubernetes.io/gce-pd", false)),
            &[],
            &["report ProvisioningFailed: no volume plugin matched name: kubernetes.io/gce-pd"],
        ),
    ] {
        assert_eq!(plan(&row, &volumes, class, pods), expected, "{what}");
    }
}

#[test]
fn a_claim_that_names_its_volume() {
    let named = || claim(|row| row.volume = "v".into());
    for (what, row, volumes, expected) in [
        ("it does not exist yet", named(), vec![], &[][..]),
        ("it is free", named(), vec![volume("v", |_| {})], &["reserve v", "v is Bound", "name v", "the claim is Bound"]),
        (
            "it is too small",
            claim(|row| {
                row.volume = "v".into();
                row.size = 99;
            }),
            vec![volume("v", |_| {})],
            &["report VolumeMismatch: Cannot bind to requested volume \"v\": requested PV is too small"],
        ),
        (
            "it is reserved for the claim",
            named(),
            vec![volume("v", |row| row.claim = owned("data", ""))],
            &["reserve v", "v is Bound", "name v", "the claim is Bound"],
        ),
        (
            "it is another's",
            named(),
            vec![volume("v", |row| row.claim = owned("other", "x"))],
            &["report FailedBinding: volume \"v\" already bound to a different claim."],
        ),
    ] {
        assert_eq!(plan(&row, &volumes, None, &[]), expected, "{what}");
    }
}

#[test]
fn a_bound_claim() {
    let bound = |change: fn(&mut ClaimRow)| {
        claim(|row| {
            row.volume = "v".into();
            row.bind_completed = true;
            row.phase = "Bound".into();
            row.granted.0 = vec!["ReadWriteOnce".into()];
            change(row);
        })
    };
    let mine = || {
        volume("v", |row| {
            row.claim = owned("data", "claim");
            row.phase = "Bound".into();
        })
    };
    for (what, row, volumes, expected) in [
        ("all is well", bound(|_| {}), vec![mine()], &[][..]),
        (
            "its volume is gone",
            bound(|_| {}),
            vec![],
            &["the claim is Lost", "report ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"],
        ),
        (
            "it lost the volume's name",
            bound(|row| row.volume.clear()),
            vec![mine()],
            &["the claim is Lost", "report ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"],
        ),
        (
            "the volume is another's",
            bound(|_| {}),
            vec![volume("v", |row| row.claim = owned("other", "x"))],
            &["the claim is Lost", "report ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"],
        ),
        ("the volume forgot it", bound(|_| {}), vec![volume("v", |_| {})], &["reserve v", "v is Bound"]),
    ] {
        assert_eq!(plan(&row, &volumes, None, &[]), expected, "{what}");
    }
}

#[test]
fn volumes() {
    let its = |change: fn(&mut ClaimRow)| {
        Some(claim(|row| {
            row.volume = "v".into();
            change(row);
        }))
    };
    let mine = |change: fn(&mut VolumeRow)| {
        volume("v", |row| {
            row.claim = owned("data", "claim");
            row.phase = "Bound".into();
            change(row);
        })
        .1
    };
    let gone = |policy: &str, made: bool| {
        let mut row = (*mine(|row| row.phase = "Released".into())).clone();
        row.policy = policy.to_owned();
        row.provisioned_by = made.then(|| "mullion.io/local".to_owned());
        Arc::new(row)
    };
    for (what, row, claim, expected) in [
        ("a new one", volume("v", |row| row.phase = "Pending".into()).1, None, &["v is Available"][..]),
        ("one reserved by name", mine(|row| row.claim = owned("data", "")), its(|_| {}), &["v is Available"]),
        ("one that is bound", mine(|_| {}), its(|_| {}), &[]),
        ("its claim is gone", mine(|_| {}), None, &["release v"]),
        ("another claim has that name now", mine(|_| {}), its(|row| row.uid = "other".into()), &["release v"]),
        ("kept", gone("Retain", false), None, &[]),
        ("its maker removes it", gone("Delete", true), None, &[]),
        (
            "nobody can remove it",
            gone("Delete", false),
            None,
            &["v is Failed", "report VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched"],
        ),
        ("nobody recycles", gone("Recycle", false), None, &["v is Failed", "report VolumeFailedRecycle: No recycler plugin found for the volume!"]),
        ("its claim went elsewhere", mine(|row| row.by_controller = true), its(|row| row.volume = "w".into()), &["unbind v"]),
    ] {
        assert_eq!(text(&for_volume("v", &row, claim.as_ref())), expected, "{what}");
    }
}
