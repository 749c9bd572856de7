//! Defaults, checks, columns of StatefulSets.

use super::*;
use crate::kinds::check::{change, defaulted, problems, row, status_change, table, template, updates, with};

fn set() -> Value {
    json!({"metadata": {"name": "s", "namespace": "default"}, "spec": {
        "podManagementPolicy": "OrderedReady", "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}, "replicas": 1,
        "selector": {"matchLabels": {"a": "b"}}, "template": template("Always"), "serviceName": "web", "revisionHistoryLimit": 10,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"}}})
}

#[test]
fn defaults_fill_in_strategy_policies_and_claims() {
    let set = defaulted(defaults, json!({"spec": {"template": {"spec": {"containers": []}}, "volumeClaimTemplates": [{"metadata": {"name": "d"}}]}}));
    let spec = &set["spec"];
    assert_eq!(spec["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
    assert_eq!((&spec["podManagementPolicy"], &spec["replicas"], &spec["revisionHistoryLimit"]), (&json!("OrderedReady"), &json!(1), &json!(10)));
    assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], json!({"whenDeleted": "Retain", "whenScaled": "Retain"}));
    assert_eq!(
        spec["volumeClaimTemplates"][0],
        json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "d"}, "spec": {"volumeMode": "Filesystem"},
            "status": {"phase": "Pending"}})
    );
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    let on_delete = defaulted(defaults, json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}));
    assert_eq!(on_delete["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    let bare = defaulted(defaults, json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}}));
    assert_eq!(bare["spec"]["updateStrategy"], json!({"type": "RollingUpdate"}), "a partition only where there is a rolling update");
}

#[test]
fn new_sets_are_checked() {
    table(
        validate,
        &set(),
        &[
            (
                "/spec/podManagementPolicy",
                json!("Random"),
                "spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'",
            ),
            ("/spec/podManagementPolicy", Value::Null, "spec.podManagementPolicy: Required value"),
            (
                "/spec/updateStrategy",
                json!({"type": "Never"}),
                "spec.updateStrategy: Invalid value: {\"Type\":\"Never\",\"RollingUpdate\":null}: must be 'RollingUpdate' or 'OnDelete'",
            ),
            (
                "/spec/updateStrategy/type",
                json!("OnDelete"),
                "spec.updateStrategy.rollingUpdate: Invalid value: {\"Partition\":0,\"MaxUnavailable\":null}: only allowed for updateStrategy \
                 'RollingUpdate'",
            ),
            (
                "/spec/updateStrategy/rollingUpdate/partition",
                json!(-1),
                "spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/updateStrategy/rollingUpdate/maxUnavailable",
                json!("0%"),
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": cannot be 0",
            ),
            (
                "/spec/updateStrategy/rollingUpdate/maxUnavailable",
                json!("101%"),
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            ),
            (
                "/spec/persistentVolumeClaimRetentionPolicy/whenScaled",
                json!("Keep"),
                "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Keep\": supported values: \"Retain\", \"Delete\"",
            ),
            (
                "/spec/volumeClaimTemplates",
                json!([{"metadata": {"name": "d"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]),
                "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
            ),
            ("/spec/replicas", json!(-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
            ("/spec/ordinals", json!({"start": -2}), "spec.ordinals.start: Invalid value: -2: must be greater than or equal to 0"),
            ("/spec/selector", json!({"matchLabels": {}}), "spec.selector: Invalid value: {}: empty selector is invalid for statefulset"),
            (
                "/spec/selector/matchLabels",
                json!({"a": "c"}),
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
            ),
            (
                "/spec/template/spec/activeDeadlineSeconds",
                json!(5),
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in StatefulSet is not Supported",
            ),
            (
                "/spec/template/spec/restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            ("/spec/template/spec/hostname", json!("Not_A_Name"), ""),
        ],
    );
    assert!(
        problems(validate, &with(&set(), &[("/spec/serviceName", json!("Web"))]))
            .starts_with("spec.serviceName: Invalid value: \"Web\": a lowercase RFC")
    );
    assert_eq!(
        problems(validate, &with(&set(), &[("/spec/selector", Value::Null)])),
        "spec.selector: Required value\n\
         spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"
    );
}

#[test]
fn claims_are_volumes_of_the_pods() {
    let claim = json!({"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let mount = ("/spec/template/spec/containers/0/volumeMounts", json!([{"name": "d", "mountPath": "/d"}]));
    let lacking = problems(validate, &with(&set(), std::slice::from_ref(&mount)));
    assert!(lacking.contains("volumeMounts[0].name: Not found: \"d\""), "{lacking}");
    assert_eq!(problems(validate, &with(&set(), &[mount, ("/spec/volumeClaimTemplates", json!([claim]))])), "");
}

#[test]
fn updates_change_some_members_alone() {
    let forbidden = format!("spec: Forbidden: {FIXED}");
    updates(
        validate,
        &set(),
        &[
            ("/spec/replicas", json!(3), ""),
            ("/spec/template/spec/containers/0/image", json!("j"), ""),
            ("/spec/minReadySeconds", json!(3), ""),
            ("/spec/ordinals", json!({"start": 2}), ""),
            ("/spec/revisionHistoryLimit", json!(3), ""),
            ("/spec/updateStrategy", json!({"type": "OnDelete"}), ""),
            ("/spec/persistentVolumeClaimRetentionPolicy/whenDeleted", json!("Delete"), ""),
            ("/spec/serviceName", json!("Other_"), &forbidden),
            ("/spec/podManagementPolicy", json!("Parallel"), &forbidden),
            ("/spec/volumeClaimTemplates", json!([{"metadata": {"name": "d"}}]), &forbidden),
            ("/spec/replicas", json!(-3), "spec.replicas: Invalid value: -3: must be greater than or equal to 0"),
        ],
    );
    // A template that was invalid already may stay.
    let old = with(&set(), &[("/spec/template/spec/containers", json!([]))]);
    assert_eq!(change(validate, &old, &with(&old, &[("/spec/replicas", json!(0))])), "");
}

#[test]
fn statuses_add_up() {
    let status = |status: Value| with(&set(), &[("/status", status)]);
    let old = status(json!({"replicas": 3, "collisionCount": 2}));
    let cases = [
        (json!({"replicas": 3, "readyReplicas": 2, "availableReplicas": 2, "collisionCount": 2}), ""),
        (
            json!({"replicas": 1, "readyReplicas": 2, "collisionCount": 2}),
            "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
        ),
        (
            json!({"replicas": -1, "collisionCount": 2}),
            "status.replicas: Invalid value: -1: must be greater than or equal to 0\n\
            status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas\n\
            status.currentReplicas: Invalid value: 0: cannot be greater than status.replicas\n\
            status.updatedReplicas: Invalid value: 0: cannot be greater than status.replicas\n\
            status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
        ),
        (
            json!({"replicas": 3, "readyReplicas": 1, "availableReplicas": 2, "collisionCount": 2}),
            "status.availableReplicas: Invalid value: 2: cannot be greater than status.readyReplicas",
        ),
        (json!({"replicas": 3, "collisionCount": 1}), "status.collisionCount: Invalid value: 1: cannot be decremented"),
    ];
    for (new, expected) in cases {
        assert_eq!(status_change(validate_status, &old, &status(new.clone())), expected, "{new}");
    }
}

#[test]
fn an_unavailable_limit_is_dropped_as_upstream_s_feature_is_off() {
    let limited = with(&set(), &[("/spec/updateStrategy/rollingUpdate/maxUnavailable", json!(2))]);
    let mut new = limited.clone();
    prepare_create(&mut new);
    assert_eq!(new["spec"], set()["spec"]);
    let mut added = limited.clone();
    prepare_update(&set(), &mut added);
    assert_eq!(added, set());
    let mut kept = limited.clone();
    prepare_update(&limited, &mut kept);
    assert_eq!(kept, limited);
}

#[test]
fn columns_show_how_many_are_ready() {
    let object = with(&set(), &[("/status", json!({"replicas": 1, "readyReplicas": 1}))]);
    assert_eq!(row(cells, &object), ["x", "1/1", "2m30s", "c", "i"]);
}
