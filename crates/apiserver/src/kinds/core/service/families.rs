//! `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`: what follows from what a client wrote and from the families of the cluster
//! (pkg/registry/core/service/storage/{alloc,storage}.go: `normalizeClusterIPs`, `initIPFamilyFields`, `updateClusterIPs`).

use super::{needs_cluster_ip, service_type};
use crate::kinds::core::service::validation::cluster_ips;
use crate::object;
use crate::validation::FieldError;
use crate::validation::field::{Errors, Field};
use serde_json::{Value, json};

const POLICY: &str = "spec.ipFamilyPolicy";

/// A list of texts of the specification.
fn texts(service: &Value, member: &str) -> Vec<String> {
    object::list(service, &["spec", member]).iter().filter_map(Value::as_str).map(str::to_string).collect()
}

fn policy(service: &Value) -> &str {
    object::text(service, &["spec", "ipFamilyPolicy"])
}

fn set(service: &mut Value, member: &str, value: Value) {
    object::map_mut(service, "spec").insert(member.into(), value);
}

/// A headless Service without a selector may have any families, also ones that the cluster has no addresses of.
fn is_free(service: &Value) -> bool {
    let selector = object::lookup(service, &["spec", "selector"]).and_then(Value::as_object);
    object::text(service, &["spec", "clusterIP"]) == "None" && selector.is_none_or(serde_json::Map::is_empty)
}

fn same(old: &Value, new: &Value, member: &str) -> bool {
    texts(old, member) == texts(new, member)
}

fn reduced(old: &Value, new: &Value, member: &str) -> bool {
    let count = texts(new, member).len();
    count > 0 && count < texts(old, member).len()
}

/// Fills in what Services lack that were stored before there were several families (`defaultOnReadService`).
pub fn complete_stored(service: &mut Value, default_family: &str) {
    normalize(None, service);
    if !needs_cluster_ip(service) || !texts(service, "ipFamilies").is_empty() {
        return;
    }
    let (families, policy) = if is_free(service) {
        (vec![default_family, other(default_family)], "RequireDualStack")
    } else if object::text(service, &["spec", "clusterIP"]) == "None" {
        (vec![default_family], "SingleStack")
    } else {
        let families: Vec<&str> = texts(service, "clusterIPs").iter().map(|ip| family_of(ip)).collect();
        let policy = if families.len() == 2 { "RequireDualStack" } else { "SingleStack" };
        (families, policy)
    };
    set(service, "ipFamilies", json!(families));
    set(service, "ipFamilyPolicy", policy.into());
}

/// Makes `clusterIPs` follow `clusterIP` where a client wrote only that.
pub fn normalize(old: Option<&Value>, new: &mut Value) {
    let ip = object::text(new, &["spec", "clusterIP"]).to_string();
    let Some(old) = old else {
        if !ip.is_empty() && texts(new, "clusterIPs").is_empty() {
            set(new, "clusterIPs", json!([ip]));
        }
        return;
    };
    let before = object::text(old, &["spec", "clusterIP"]);
    if before == ip {
        if texts(new, "clusterIPs").is_empty() && !texts(old, "clusterIPs").is_empty() {
            set(new, "clusterIPs", json!(texts(old, "clusterIPs")));
        }
    } else if same(old, new, "clusterIPs") {
        let ips = if ip.is_empty() { json!([]) } else { json!([ip]) };
        set(new, "clusterIPs", ips);
    }
}

/// Whether nothing about the addresses changes: a Service that prefers both families keeps what it has when the cluster's families change.
fn is_settled(old: Option<&Value>, new: &Value) -> bool {
    old.is_some_and(|old| {
        let prefers = |service: &Value| policy(service) == "PreferDualStack";
        service_type(old) == service_type(new)
            && matches!(service_type(new), "ClusterIP" | "NodePort" | "LoadBalancer")
            && prefers(new)
            && (prefers(old) || policy(old).is_empty())
            && same(old, new, "clusterIPs")
            && same(old, new, "ipFamilies")
    })
}

/// Sets policy and families of a new Service, or of a changed one. `configured` are the families that the cluster has addresses of, the
/// default one first.
pub fn init(old: Option<&Value>, service: &mut Value, configured: &[&str]) -> Result<(), Vec<FieldError>> {
    if !needs_cluster_ip(service) || is_settled(old, service) {
        return Ok(());
    }
    if policy(service).is_empty() {
        let inherited = old.map(policy).filter(|policy| !policy.is_empty());
        let policy = inherited.unwrap_or(if is_free(service) { "RequireDualStack" } else { "SingleStack" });
        set(service, "ipFamilyPolicy", policy.into());
    }
    let mut errors = Errors::default();
    cluster_ips(&Field::root(service), old.map(Field::root).as_ref(), &mut errors);
    if !errors.is_empty() {
        return Err(errors.into_list());
    }
    let mut errors = Vec::new();
    if let Some(old) = old {
        release(old, service, &mut errors);
    }
    if policy(service) == "SingleStack" {
        refuse_two(service, &mut errors);
    }
    infer_families(service, configured, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    complete(service, configured)
}

/// Drops the second address and family of a Service that is to have one only.
fn release(old: &Value, service: &mut Value, errors: &mut Vec<FieldError>) {
    if policy(service) == "SingleStack" {
        for member in ["clusterIPs", "ipFamilies"] {
            let values = texts(service, member);
            if same(old, service, member) && values.len() > 1 {
                set(service, member, json!(values[..1]));
            }
        }
        return;
    }
    for (member, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        if reduced(old, service, member) {
            errors.push(FieldError::invalid(POLICY, policy(service).into(), &format!("must be 'SingleStack' to release the secondary {what}")));
        }
    }
}

fn refuse_two(service: &Value, errors: &mut Vec<FieldError>) {
    for (member, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if texts(service, member).len() == 2 {
            let detail = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            errors.push(FieldError::invalid(POLICY, policy(service).into(), &detail));
        }
    }
}

fn infer_families(service: &mut Value, configured: &[&str], errors: &mut Vec<FieldError>) {
    let ips = texts(service, "clusterIPs");
    let mut families = texts(service, "ipFamilies");
    for (index, ip) in ips.iter().enumerate().take_while(|(_, ip)| *ip != "None") {
        let family = family_of(ip);
        if index < families.len() {
            continue;
        }
        if configured.contains(&family) {
            families.push(family.to_string());
        } else {
            let detail = format!("{family} is not configured on this cluster");
            errors.push(FieldError::invalid(&format!("spec.clusterIPs[{index}]"), json!(ips), &detail));
        }
    }
    if !families.is_empty() {
        set(service, "ipFamilies", json!(families));
    }
}

/// Adds the families that the policy asks for.
fn complete(service: &mut Value, configured: &[&str]) -> Result<(), Vec<FieldError>> {
    let mut families = texts(service, "ipFamilies");
    let several = policy(service) != "SingleStack";
    let free = is_free(service);
    let mut errors = Vec::new();
    if !free {
        if policy(service) == "RequireDualStack" && configured.len() < 2 {
            errors.push(FieldError::invalid(POLICY, policy(service).into(), "this cluster is not configured for dual-stack services"));
        }
        for (index, family) in families.iter().enumerate().filter(|(_, family)| !configured.contains(&family.as_str())) {
            errors.push(FieldError::invalid(&format!("spec.ipFamilies[{index}]"), family.as_str().into(), "not configured on this cluster"));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if families.is_empty() {
        families.extend(configured.first().map(|family| (*family).to_string()));
    }
    if let [only] = families.as_slice()
        && several
        && (free || configured.len() == 2)
    {
        let second = other(only).to_string();
        families.push(second);
    }
    set(service, "ipFamilies", json!(families));
    Ok(())
}

/// Addresses that a Service is to have and does not hold yet: their place in `clusterIPs`, family, and the address if it is chosen.
pub fn missing(old: Option<&Value>, service: &mut Value) -> Vec<(usize, String, Option<String>)> {
    if !needs_cluster_ip(service) || is_settled(old, service) {
        return Vec::new();
    }
    let (mut ips, families) = (texts(service, "clusterIPs"), texts(service, "ipFamilies"));
    if ips.first().is_some_and(|ip| ip == "None") {
        return Vec::new();
    }
    let from = match old.filter(|old| service_type(old) != "ExternalName") {
        None => 0,
        Some(old) if texts(old, "clusterIPs").first().is_some_and(|ip| ip == "None") => return Vec::new(),
        Some(old) if texts(old, "ipFamilies").len() == 1 && families.len() == 2 => 1,
        Some(_) => return Vec::new(),
    };
    if ips.len() < families.len() {
        ips.resize(families.len(), String::new());
        set(service, "clusterIPs", json!(ips));
    }
    let wanted = |index: usize| ips.get(index).filter(|ip| !ip.is_empty()).cloned();
    families.into_iter().enumerate().skip(from).map(|(index, family)| (index, family, wanted(index))).collect()
}

/// Writes an address into `clusterIPs`, and the first one into `clusterIP`.
pub fn put(service: &mut Value, index: usize, address: &str) {
    let spec = object::map_mut(service, "spec");
    if index == 0 {
        spec.insert("clusterIP".into(), address.into());
    }
    if let Some(slot) = object::array_mut(spec, "clusterIPs").get_mut(index) {
        *slot = address.into();
    }
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

fn family_of(ip: &str) -> &'static str {
    if ip.contains(':') { "IPv6" } else { "IPv4" }
}
