//! What Services are accepted with and still not as they should be (pkg/api/service/warnings.go).

use crate::validation::addresses;
use crate::validation::field::Field;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";

pub fn warnings(service: &Field, found: &mut Vec<String>) {
    let spec = service.get("spec");
    let kind = spec.get("type");
    if service.get("metadata").get("annotations").key(HINTS).is_set() {
        found.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    let is_external = kind.text() == "ExternalName";
    let address = spec.get("clusterIP");
    if !is_external && !matches!(address.text(), "" | "None") {
        found.extend(spec.get("clusterIPs").items().iter().filter_map(warning_of_ip));
    }
    let external = spec.get("externalIPs");
    let is_headless = kind.text() == "ClusterIP" && address.text() == "None";
    if is_headless {
        if !spec.get("loadBalancerIP").is_empty() {
            found.push("spec.loadBalancerIP is ignored for headless services".into());
        }
        if !external.is_empty() {
            found.push("spec.externalIPs is ignored for headless services".into());
        }
        if spec.get("sessionAffinity").text() != "None" {
            found.push("spec.SessionAffinity is ignored for headless services".into());
        }
    }
    found.extend(external.items().iter().filter_map(warning_of_ip));
    if !external.is_empty() && !is_headless && !is_external {
        found.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
    }
    let balancer = spec.get("loadBalancerIP");
    if !balancer.is_empty() {
        found.extend(warning_of_ip(&balancer));
    }
    found.extend(spec.get("loadBalancerSourceRanges").items().iter().filter_map(|range| addresses::cidr_warning(&range.path, range.text())));
    if is_external && !external.is_empty() {
        found.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !is_external && !spec.get("externalName").is_empty() {
        found.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if spec.get("trafficDistribution").text() == "PreferClose" {
        found.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into());
    }
}

fn warning_of_ip(address: &Field) -> Option<String> {
    addresses::ip_warning(&address.path, address.text())
}
