//! Checks, columns of VolumeAttachments.

use super::*;
use crate::kinds::check::{change, problems, row, table, with};

fn attachment() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"attacher": "d.io", "source": {"persistentVolumeName": "pv"}, "nodeName": "n"}})
}

#[test]
fn attachments_are_checked() {
    table(
        validate,
        &attachment(),
        &[
            ("/spec/attacher", json!(""), "spec.attacher: Required value"),
            ("/spec/source", json!({}), "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"),
            (
                "/spec/source/inlineVolumeSpec",
                json!({}),
                "spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ),
            (
                "/spec/source",
                json!({"inlineVolumeSpec": {"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete"}}),
                "spec.source.inlineVolumeSpec.capacity: Forbidden: may not be specified in the context of inline volumes\n\
                 spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes\n\
                 spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy: Forbidden: may only be Retain in the context of inline volumes",
            ),
            ("/spec/source", json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.io", "volumeHandle": "h"}}}), ""),
            (
                "/status",
                json!({"attached": false, "attachError": {"message": "m".repeat(1025), "errorCode": -1}}),
                "status.attachError.message: Too long: may not be more than 262144 bytes\n\
                 status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ),
        ],
    );
    assert!(problems(validate, &with(&attachment(), &[("/spec/nodeName", json!("N"))])).starts_with("spec.nodeName: Invalid value: \"N\""));
    let moved = change(validate, &attachment(), &with(&attachment(), &[("/spec/nodeName", json!("m"))]));
    assert!(moved.starts_with("spec: Invalid value: ") && moved.ends_with("field is immutable"), "{moved}");
}

#[test]
fn columns_show_volume_and_node() {
    assert_eq!(row(cells, &with(&attachment(), &[("/status", json!({"attached": true}))])), ["x", "d.io", "pv", "n", "true", "2m30s"]);
}
