//! Ingresses (pkg/apis/networking/validation, pkg/registry/networking/ingress).

#[cfg(test)]
mod tests;

use super::typed_reference;
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, list};
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::{addresses, names};
use jiff::Timestamp;
use k8s_openapi::api::networking;
use serde_json::{Value, json};
use std::net::IpAddr;

const CLASS: &str = "kubernetes.io/ingress.class";
const HOSTS_SHOWN: usize = 3;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses", "io.k8s.api.networking.v1.Ingress")
        .described_by::<networking::v1::Ingress>()
        .short(&["ing"])
        .status()
        .metadata_with_status()
        .counts_generations()
        .validate(validate)
        .validate_status(validate_status)
        .warnings(warnings)
        .prepare_create(|ingress| object::set(ingress, "status", json!({"loadBalancer": {}})))
        .table([NAME, text("Class"), text("Hosts"), text("Address"), text("Ports"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let class = object::lookup(object, &["spec", "ingressClassName"]).and_then(Value::as_str).unwrap_or("<none>");
    let ports = if list(object, "/spec/tls").is_empty() { "80" } else { "80, 443" };
    vec![name(object), class.into(), hosts(object).into(), addresses_of(object).into(), ports.into(), age(object, now)]
}

fn hosts(object: &Value) -> String {
    let rules = list(object, "/spec/rules");
    let mut shown = Vec::new();
    let mut more = false;
    for rule in rules {
        // Upstream counts rules without a host too, once three hosts are shown.
        more |= shown.len() == HOSTS_SHOWN;
        let host = get(rule, "/host");
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.len() {
        0 => "*".into(),
        _ if more => format!("{} + {} more...", shown.join(","), rules.len() - HOSTS_SHOWN),
        _ => shown.join(","),
    }
}

fn addresses_of(object: &Value) -> String {
    let entries = list(object, "/status/loadBalancer/ingress").iter();
    let mut found: Vec<&str> = entries.map(|entry| if get(entry, "/ip").is_empty() { get(entry, "/hostname") } else { get(entry, "/ip") }).collect();
    found.retain(|address| !address.is_empty());
    found.sort_unstable();
    found.dedup();
    found.join(",")
}

fn warnings(ingress: &Field, found: &mut Vec<String>) {
    let annotated = ingress.get("metadata").get("annotations").key(CLASS).is_set();
    if annotated && !ingress.get("spec").get("ingressClassName").is_set() {
        found.push(format!("annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"));
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let before = old.map(|old| old.get("spec"));
    if before.as_ref().is_some_and(|before| before.value == spec.value) {
        return;
    }
    let (rules, backend) = (spec.get("rules"), spec.get("defaultBackend"));
    if rules.is_empty() && !backend.is_set() {
        errors.invalid(&Field { path: spec.path.clone(), value: rules.value }, "either `defaultBackend` or `rules` must be specified");
    }
    if backend.is_set() {
        check_backend(&backend, errors);
    }
    let lenient = before.as_ref().is_some_and(odd_wildcards);
    rules.items().iter().for_each(|rule| check_rule(rule, lenient, errors));
    check_tls(&spec.get("tls"), before.as_ref(), errors);
    let class = spec.get("ingressClassName");
    if class.is_set() {
        errors.invalid_each(&class, names::dns_subdomain(class.text()));
    }
    let annotation = new.get("metadata").get("annotations").get(CLASS);
    if old.is_none() && annotation.is_set() && class.is_set() && annotation.text() != class.text() {
        let field = Field { path: format!("annotations.{CLASS}"), value: annotation.value };
        errors.invalid(&field, "must match `ingressClassName` when both are specified");
    }
}

/// Whether a rule for a wildcard has paths that are not valid: it may keep them.
fn odd_wildcards(spec: &Field) -> bool {
    spec.get("rules").items().iter().any(|rule| {
        let mut found = Errors::default();
        check_paths(&rule.get("http"), &mut found);
        rule.get("host").text().contains('*') && !found.is_empty()
    })
}

fn check_rule(rule: &Field, lenient: bool, errors: &mut Errors) {
    let host = rule.get("host");
    let wildcard = host.text().contains('*');
    if !host.is_empty() && host.text().parse::<IpAddr>().is_ok() {
        errors.invalid(&host, "must be a DNS name, not an IP address");
    }
    if wildcard {
        errors.invalid_each(&host, names::wildcard_subdomain(host.text()));
    } else if !host.is_empty() {
        errors.invalid_each(&host, names::dns_subdomain(host.text()));
    }
    if !(wildcard && lenient) {
        check_paths(&rule.get("http"), errors);
    }
}

fn check_paths(http: &Field, errors: &mut Errors) {
    if !http.is_set() {
        return;
    }
    let paths = http.get("paths");
    if paths.is_empty() {
        errors.required(&paths, "");
    }
    paths.items().iter().for_each(|path| check_path(path, errors));
}

fn check_path(entry: &Field, errors: &mut Errors) {
    let (kind, path) = (entry.get("pathType"), entry.get("path"));
    if !kind.is_set() {
        return errors.required(&kind, "pathType must be specified");
    }
    let shown = path.text();
    match kind.text() {
        "Exact" | "Prefix" => {
            if !shown.starts_with('/') {
                errors.invalid_value(&path, shown, "must be an absolute path");
            }
            for sequence in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|sequence| shown.contains(sequence)) {
                errors.invalid(&path, format!("must not contain '{sequence}'"));
            }
            for suffix in ["/..", "/."].into_iter().filter(|suffix| shown.ends_with(suffix)) {
                errors.invalid(&path, format!("cannot end with '{suffix}'"));
            }
        }
        "ImplementationSpecific" if !shown.is_empty() && !shown.starts_with('/') => errors.invalid(&path, "must be an absolute path"),
        "ImplementationSpecific" => {}
        _ => errors.not_supported(&kind, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    check_backend(&entry.get("backend"), errors);
}

fn check_backend(backend: &Field, errors: &mut Errors) {
    let (resource, service) = (backend.get("resource"), backend.get("service"));
    match (resource.is_set(), service.is_set()) {
        (true, true) => return errors.invalid_value(backend, "", "cannot set both resource and service backends"),
        (true, false) => return typed_reference(&resource, errors),
        (false, false) => return errors.invalid_value(backend, "", "resource or service backend is required"),
        (false, true) => {}
    }
    let name = service.get("name");
    if name.is_empty() {
        errors.required(&name, "");
    } else {
        errors.invalid_each(&name, names::dns_label(name.text()));
    }
    let (port, number) = (service.get("port").get("name"), service.get("port").get("number"));
    match (!port.is_empty(), number.number().filter(|number| *number != 0)) {
        (true, Some(_)) => errors.invalid_value(backend, "", "cannot set both port name & port number"),
        (true, None) => errors.invalid_each(&port, names::port_name(port.text())),
        (false, Some(found)) => errors.invalid_each(&number, names::port_number(found)),
        (false, None) => errors.required(backend, "port name or number is required"),
    }
}

fn check_tls(tls: &Field, before: Option<&Field>, errors: &mut Errors) {
    let wrong_secret = |entry: &Field| match entry.get("secretName").text() {
        "" => Vec::new(),
        name => names::dns_subdomain(name),
    };
    let lenient = before.is_some_and(|before| before.get("tls").items().iter().any(|entry| !wrong_secret(entry).is_empty()));
    for entry in tls.items() {
        for host in entry.get("hosts").items() {
            let rule = if host.text().contains('*') { names::wildcard_subdomain } else { names::dns_subdomain };
            errors.invalid_each(&host, rule(host.text()));
        }
        if !lenient {
            errors.invalid_each(&entry.get("secretName"), wrong_secret(&entry));
        }
    }
}

fn validate_status(new: &Field, old: &Field, errors: &mut Errors) {
    let [entries, before] = [new, old].map(|object| object.get("status").get("loadBalancer").get("ingress").items());
    let kept: Vec<&str> = before.iter().map(|entry| entry.get("ip").text()).collect();
    for entry in entries {
        let (ip, host) = (entry.get("ip"), entry.get("hostname"));
        if !ip.is_empty() && !kept.contains(&ip.text()) {
            errors.invalid_each(&ip, addresses::ip(ip.text(), addresses::Form::Any));
        }
        if !host.is_empty() {
            errors.invalid_each(&host, names::dns_subdomain(host.text()));
            if host.text().parse::<IpAddr>().is_ok() {
                errors.invalid(&host, "must be a DNS name, not an IP address");
            }
        }
    }
}
