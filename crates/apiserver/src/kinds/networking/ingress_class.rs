//! IngressClasses (pkg/apis/networking, pkg/registry/networking/ingressclass).

#[cfg(test)]
mod tests;

use super::typed_reference;
use crate::defaults::{inner, is_text, set};
use crate::kind::Kind;
use crate::object;
use crate::table::text::get;
use crate::table::{AGE, NAME, age, text};
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use jiff::Timestamp;
use k8s_openapi::api::networking;
use serde_json::{Map, Value};

const LONGEST_CONTROLLER: usize = 250;
const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses", "io.k8s.api.networking.v1.IngressClass")
        .described_by::<networking::v1::IngressClass>()
        .cluster()
        .counts_generations()
        .defaults(defaults)
        .validate(validate)
        .table([NAME, text("Controller"), text("Parameters"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let is_default = object::text(object, &["metadata", "annotations", DEFAULT]) == "true";
    let parameters = object::lookup(object, &["spec", "parameters"]).map_or_else(
        || "<none>".to_string(),
        |parameters| {
            let group = object::lookup(parameters, &["apiGroup"]).and_then(Value::as_str).map(|group| format!(".{group}")).unwrap_or_default();
            format!("{}{group}/{}", get(parameters, "/kind"), get(parameters, "/name"))
        },
    );
    let name = format!("{}{}", object::name(object), if is_default { " (default)" } else { "" });
    vec![name.into(), get(object, "/spec/controller").into(), parameters.into(), age(object, now)]
}

fn defaults(object: &mut Map<String, Value>) {
    if let Some(parameters) = inner(object, "spec").and_then(|spec| inner(spec, "parameters"))
        && !is_text(parameters, "scope", "")
    {
        set(parameters, "scope", || "Cluster".into());
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let controller = spec.get("controller");
    if let Some(old) = old {
        if old.get("spec").value == spec.value {
            return;
        }
        errors.immutable(&controller, &old.get("spec").get("controller"));
    }
    if controller.text().len() > LONGEST_CONTROLLER {
        errors.too_long(&controller, LONGEST_CONTROLLER);
    }
    meta::domain_path(&controller, errors);
    let parameters = spec.get("parameters");
    if parameters.is_set() {
        typed_reference(&parameters, errors);
        check_scope(&parameters, errors);
    }
}

fn check_scope(parameters: &Field, errors: &mut Errors) {
    let (scope, namespace) = (parameters.get("scope"), parameters.get("namespace"));
    if !scope.is_set() {
        return errors.required(&scope, "");
    }
    match scope.text() {
        "Namespace" if !namespace.is_set() => errors.required(&namespace, "`parameters.scope` is set to 'Namespace'"),
        "Namespace" => errors.invalid_each(&namespace, names::dns_label(namespace.text())),
        "Cluster" if namespace.is_set() => errors.forbidden(&namespace, "`parameters.scope` is set to 'Cluster'"),
        "Cluster" => {}
        _ => errors.not_supported(&scope, &["Cluster", "Namespace"]),
    }
}
