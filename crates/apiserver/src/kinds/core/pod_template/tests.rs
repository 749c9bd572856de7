//! Defaults, checks, columns of PodTemplates.

use super::*;
use crate::kinds::check::{change, defaulted, row, table, template as sample, with};
use serde_json::json;

fn template_object() -> Value {
    json!({"metadata": {"name": "t", "namespace": "default"}, "template": sample("Never")})
}

#[test]
fn templates_get_a_pod_s_defaults() {
    let made = defaulted(template, json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}));
    assert_eq!(made["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!(made["template"]["spec"]["containers"][0]["imagePullPolicy"], "Always");
}

#[test]
fn templates_are_checked() {
    table(
        validate,
        &template_object(),
        &[
            ("/template/spec/containers", json!([]), "template.spec.containers: Required value"),
            (
                "/template/spec/restartPolicy",
                json!("Sometimes"),
                "template.spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ),
        ],
    );
    let broken = with(&template_object(), &[("/template/spec/containers", json!([]))]);
    assert_eq!(change(validate, &template_object(), &broken), "template.spec.containers: Required value");
}

#[test]
fn columns_show_the_template() {
    assert_eq!(row(cells, &template_object()), ["x", "c", "i", "a=b"]);
}
