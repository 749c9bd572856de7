//! IPAddresses: which Service has which address (pkg/apis/networking/validation, pkg/registry/networking/ipaddress).

#[cfg(test)]
mod tests;

use super::path_segment;
use crate::kind::Kind;
use crate::object;
use crate::table::text::get;
use crate::table::{NAME, name, text};
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use k8s_openapi::api::networking;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses", "io.k8s.api.networking.v1.IPAddress")
        .described_by::<networking::v1::IPAddress>()
        .cluster()
        .short(&["ip"])
        .name_rule(|name| addresses::ip(name, Form::Canonical))
        .validate(validate)
        .table([NAME, text("ParentRef")], |object, _| vec![name(object), parent(object).into()])
}

fn parent(object: &Value) -> String {
    let Some(parent) = object::lookup(object, &["spec", "parentRef"]) else { return "<none>".into() };
    let group = get(parent, "/group");
    let dot = if group.is_empty() { "" } else { "." };
    let namespace = get(parent, "/namespace");
    let slash = if namespace.is_empty() { "" } else { "/" };
    let resource = format!("{}{dot}{group}", get(parent, "/resource")).to_lowercase();
    format!("{resource}{slash}{namespace}/{}", get(parent, "/name"))
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let parent = new.get("spec").get("parentRef");
    if !parent.is_set() {
        errors.required(&parent, "");
    } else {
        let (group, namespace) = (parent.get("group"), parent.get("namespace"));
        if !group.is_empty() {
            errors.invalid_each(&group, names::dns_subdomain(group.text()));
        }
        path_segment(&parent.get("resource"), errors);
        path_segment(&parent.get("name"), errors);
        if !namespace.is_empty() {
            errors.invalid_each(&namespace, names::path_segment(namespace.text()));
        }
    }
    if let Some(old) = old {
        errors.immutable(&parent, &old.get("spec").get("parentRef"));
    }
}
