//! Defaults, checks, columns of CSIDrivers.

use super::*;
use crate::kinds::check::{change, defaulted, row, table, with};

fn driver() -> Value {
    defaulted(defaults, json!({"metadata": {"name": "d"}, "spec": {}}))
}

#[test]
fn defaults_are_upstream_s() {
    assert_eq!(
        driver()["spec"],
        json!({"attachRequired": true, "podInfoOnMount": false, "storageCapacity": false, "requiresRepublish": false, "seLinuxMount": false,
            "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"]})
    );
}

#[test]
fn drivers_are_checked() {
    let tokens = "spec.tokenRequests";
    table(
        validate,
        &driver(),
        &[
            ("/spec/attachRequired", Value::Null, "spec.attachedRequired: Required value"),
            (
                "/spec/fsGroupPolicy",
                json!("Some"),
                "spec.fsGroupPolicy: Unsupported value: \"Some\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
            ),
            (
                "/spec/volumeLifecycleModes",
                json!(["Forever"]),
                "spec.volumeLifecycleModes: Unsupported value: \"Forever\": supported values: \"Persistent\", \"Ephemeral\"",
            ),
            (
                "/spec/tokenRequests",
                json!([{"audience": "a", "expirationSeconds": 599}, {"audience": "a"}, {"audience": "b", "expirationSeconds": 4_294_967_297_i64}]),
                &format!(
                    "{tokens}[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes\n\
                     {tokens}[1].audience: Duplicate value: \"a\"\n\
                     {tokens}[2].expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"
                ),
            ),
            (
                "/spec/serviceAccountTokenInSecrets",
                json!(true),
                "spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified",
            ),
            (
                "/spec/nodeAllocatableUpdatePeriodSeconds",
                json!(9),
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
            ),
        ],
    );
    let of = |pointer: &str, value: Value| change(validate, &driver(), &with(&driver(), &[(pointer, value)]));
    assert_eq!(of("/spec/attachRequired", json!(false)), "spec.attachedRequired: Invalid value: false: field is immutable");
    assert_eq!(
        of("/spec/volumeLifecycleModes", json!(["Ephemeral"])),
        "spec.volumeLifecycleModes: Invalid value: [\"Ephemeral\"]: field is immutable"
    );
    assert_eq!(of("/spec/podInfoOnMount", json!(true)), "");
}

#[test]
fn changes_are_counted_and_a_feature_stays_off() {
    let mut new = with(&driver(), &[("/spec/podInfoOnMount", json!(true)), ("/spec/preventPodSchedulingIfMissing", json!(true))]);
    prepare_update(&driver(), &mut new);
    assert_eq!((&new["metadata"]["generation"], new["spec"].get("preventPodSchedulingIfMissing")), (&json!(1), None));
}

#[test]
fn columns_show_what_a_driver_wants() {
    assert_eq!(row(cells, &driver()), ["x", "true", "false", "false", "<unset>", "false", "Persistent", "2m30s"]);
    let asking = with(&driver(), &[("/spec/tokenRequests", json!([{"audience": "a"}, {"audience": "b"}]))]);
    assert_eq!(row(cells, &asking)[4], "a,b");
}
