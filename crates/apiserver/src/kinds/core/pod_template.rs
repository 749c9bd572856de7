//! PodTemplates (pkg/apis/core/validation, pkg/registry/core/podtemplate).

#[cfg(test)]
mod tests;

use crate::defaults::template;
use crate::kind::Kind;
use crate::table::text::{get, labels, list};
use crate::table::{NAME, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::{pod, warnings};
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("", "v1", "PodTemplate", "podtemplates", "io.k8s.api.core.v1.PodTemplate")
        .described_by::<core::v1::PodTemplate>()
        .counts_generations_by(|old, new| old.get("template") != new.get("template"))
        .defaults(template)
        .validate(validate)
        .warnings(|object, found| warnings::pod(&object.get("template"), found))
        .table([NAME, text("Containers"), text("Images"), text("Pod Labels")], cells)
}

fn cells(object: &Value, _: Timestamp) -> Vec<Value> {
    let containers = list(object, "/template/spec/containers");
    let joined = |member: &str| containers.iter().map(|container| get(container, member)).collect::<Vec<_>>().join(",");
    vec![name(object), joined("/name").into(), joined("/image").into(), labels(object, "/template/metadata/labels").into()]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let template = new.get("template");
    if old.is_none_or(|old| old.get("template").value != template.value) {
        pod::template(&template, errors);
    }
}
