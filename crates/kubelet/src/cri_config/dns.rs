//! A pod's resolver settings by dnsPolicy and dnsConfig, within the limits of resolvers (upstream network/dns).

use std::collections::BTreeSet;

use cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfigOption};

use super::{NodeSide, text};
use crate::config::Resolver;
use crate::pod::is_host_network;

/// The limits of resolv.conf as upstream has them (pkg/apis/core/validation).
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Characters of all search domains with the blanks between them.
const MAX_SEARCH_LINE: usize = 2048;
/// The search domains of the cluster that pods have before the node's.
const OF_CLUSTER: usize = 3;
/// Characters of one: glibc ends programs that have a longer one.
const MAX_SEARCH: usize = 253;

/// Resolver settings, and what is to be said about them.
#[derive(Debug)]
pub(crate) struct Dns {
    pub config: v1::DnsConfig,
    /// Messages of DNSConfigForming events.
    pub cut: Vec<String>,
    /// The pod wants the cluster's servers, and the node was not told of any: the message of MissingClusterDNS events.
    pub missing: Option<&'static str>,
}

const MISSING: &str =
    "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

/// What a pod resolves names with.
pub(crate) fn dns(node: &NodeSide, pod: &Pod) -> Dns {
    let spec = pod.spec.as_ref();
    let wants_cluster = match spec.and_then(|spec| spec.dns_policy.as_deref()) {
        Some("None" | "Default") => false,
        Some("ClusterFirstWithHostNet") => true,
        _ => !is_host_network(pod),
    };
    let is_none = spec.and_then(|spec| spec.dns_policy.as_deref()) == Some("None");
    let missing = wants_cluster && node.cluster_dns.is_empty();
    let host = &node.resolver;
    let mut config = if is_none {
        v1::DnsConfig::default()
    } else if wants_cluster && !missing {
        let searches = of_cluster(&node.cluster_domain, &text(&pod.metadata.namespace), &host.searches);
        v1::DnsConfig { servers: node.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
    } else {
        let searches = if host.is_off { vec![".".to_owned()] } else { host.searches.clone() };
        v1::DnsConfig { servers: host.servers.clone(), searches, options: host.options.clone() }
    };
    if let Some(extra) = spec.and_then(|spec| spec.dns_config.clone()) {
        config.servers = once(config.servers.into_iter().chain(extra.nameservers.unwrap_or_default()));
        config.searches = once(config.searches.into_iter().chain(extra.searches.unwrap_or_default()));
        add_options(&mut config.options, &extra.options.unwrap_or_default());
    }
    let cut = limit_servers(&mut config.servers).into_iter().chain(limit_searches(&mut config.searches)).collect();
    Dns { config, cut, missing: missing.then_some(MISSING) }
}

/// The search domains of the cluster, and then the host's.
fn of_cluster(domain: &str, namespace: &str, host: &[String]) -> Vec<String> {
    if domain.is_empty() {
        return host.to_vec();
    }
    let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
    once(own.into_iter().chain(host.iter().cloned()))
}

/// Each only once, at its first place.
fn once(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    all.filter(|one| seen.insert(one.clone())).collect()
}

/// The pod's options replace others of their name.
fn add_options(options: &mut Vec<String>, extra: &[PodDNSConfigOption]) {
    for option in extra {
        let name = text(&option.name);
        options.retain(|other| other.split(':').next() != Some(&name));
        options.push(match option.value.as_deref().unwrap_or_default() {
            "" => name,
            value => format!("{name}:{value}"),
        });
    }
}

/// Why the search domains of the node's own file leave no room for those of pods (upstream `CheckLimitsForResolvConf`). None where they do, and
/// where they are from no file.
pub(crate) fn resolver_beyond_limits(resolver: &Resolver, cluster_domain: &str) -> Option<String> {
    let (file, searches) = (&resolver.file, &resolver.searches);
    let most = if cluster_domain.is_empty() { MAX_SEARCHES } else { MAX_SEARCHES - OF_CLUSTER };
    if file.is_empty() {
        None
    } else if searches.len() > most {
        Some(format!("Resolv.conf file '{file}' contains search line consisting of more than {most} domains!"))
    } else if searches.iter().any(|search| search.len() > MAX_SEARCH) {
        Some(format!("Resolv.conf file {file:?} contains a search path which length is more than allowed {MAX_SEARCH} chars!"))
    } else if searches.join(" ").len() > MAX_SEARCH_LINE {
        Some(format!("Resolv.conf file '{file}' contains search line which length is more than allowed {MAX_SEARCH_LINE} chars!"))
    } else {
        None
    }
}

fn limit_servers(servers: &mut Vec<String>) -> Option<String> {
    let cut = servers.len() > MAX_SERVERS;
    servers.truncate(MAX_SERVERS);
    cut.then(|| format!("Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}", servers.join(" ")))
}

fn limit_searches(searches: &mut Vec<String>) -> Option<String> {
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    searches.retain(|search| search.len() <= MAX_SEARCH);
    let mut length = searches.iter().map(|search| search.len() + 1).sum::<usize>().saturating_sub(1);
    while length > MAX_SEARCH_LINE {
        length = length.saturating_sub(searches.pop().map_or(length, |last| last.len() + 1));
    }
    (searches.len() < before)
        .then(|| format!("Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}", searches.join(" ")))
}

#[cfg(test)]
mod tests {
    use host::NodeOs;
    use serde_json::json;

    use super::super::tests::{node, pod};
    use super::*;

    fn shown(node: &NodeSide, spec: serde_json::Value) -> String {
        let config = dns(node, &pod(spec)).config;
        format!("{} | {} | {}", config.servers.join(" "), config.searches.join(" "), config.options.join(" "))
    }

    #[test]
    fn the_pods_own_settings_come_after_the_others_and_count_once() {
        let mut node = node(NodeOs::Linux);
        node.resolver.options = vec!["timeout:1".into(), "rotate".into()];
        let extra = json!({"nameservers": ["1.1.1.1", "9.9.9.9"], "searches": ["b", "corp", "b"],
            "options": [{"name": "timeout", "value": "3"}, {"name": "edns0", "value": ""}, {"name": "rotate"}]});
        assert_eq!(shown(&node, json!({"dnsPolicy": "Default", "dnsConfig": extra})), "1.1.1.1 9.9.9.9 | corp b | timeout:3 edns0 rotate");
        node.cluster_domain.clear();
        assert_eq!(shown(&node, json!({})), "10.96.0.10 | corp | ndots:5", "without a domain there is nothing to search in it");
    }

    #[test]
    fn a_node_without_the_clusters_servers_says_so() {
        let none = NodeSide { cluster_dns: vec![], ..node(NodeOs::Linux) };
        for (spec, is_missing) in [
            (json!({}), true),
            (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), false),
            (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), true),
            (json!({"dnsPolicy": "Default"}), false),
            (json!({"dnsPolicy": "None"}), false),
        ] {
            assert_eq!(dns(&none, &pod(spec.clone())).missing, is_missing.then_some(MISSING), "{spec}");
        }
        assert_eq!(shown(&none, json!({})), "1.1.1.1 | corp | ");
        assert_eq!(dns(&node(NodeOs::Linux), &pod(json!({}))).missing, None);
        let resolver = Resolver::off(&["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]);
        let off = NodeSide { resolver, ..node(NodeOs::Linux) };
        assert_eq!(shown(&off, json!({"dnsPolicy": "Default"})), "127.0.0.1 ::1 | . | ", "names are not looked up elsewhere");
        assert_eq!(shown(&off, json!({})), "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local | ndots:5");
    }

    #[test]
    fn a_nodes_own_search_domains_leave_room_for_the_clusters() {
        let of = |count: usize, length: usize| (0..count).map(|i| format!("{i:0length$}")).collect::<Vec<_>>();
        let (count, length) = ("consisting of more than", "which length is more than allowed");
        for (searches, domain, want) in [
            (of(29, 3), "cluster.local", None),
            (of(30, 3), "cluster.local", Some(format!("Resolv.conf file '/r' contains search line {count} 29 domains!"))),
            (of(32, 3), "", None),
            (of(33, 3), "", Some(format!("Resolv.conf file '/r' contains search line {count} 32 domains!"))),
            (of(8, 253), "", None),
            (of(1, 254), "", Some(format!("Resolv.conf file \"/r\" contains a search path {length} 253 chars!"))),
            (of(9, 253), "", Some(format!("Resolv.conf file '/r' contains search line {length} 2048 chars!"))),
        ] {
            let resolver = Resolver { searches, file: "/r".into(), ..Resolver::default() };
            assert_eq!(resolver_beyond_limits(&resolver, domain), want);
            assert_eq!(resolver_beyond_limits(&Resolver { file: String::new(), ..resolver }, domain), None, "of no file");
        }
    }

    #[test]
    fn what_resolvers_do_not_take_is_cut_and_said() {
        let node = node(NodeOs::Linux);
        let of = |servers: Vec<String>, searches: Vec<String>| {
            let config = json!({"nameservers": servers, "searches": searches});
            let dns = dns(&node, &pod(json!({"dnsPolicy": "None", "dnsConfig": config})));
            (dns.config.servers.len(), dns.config.searches.len(), dns.cut)
        };
        let servers = |n: usize| (0..n).map(|i| format!("10.0.0.{i}")).collect::<Vec<_>>();
        let searches = |n: usize, length: usize| (0..n).map(|i| format!("{i:0length$}")).collect::<Vec<_>>();
        assert_eq!(of(servers(3), searches(32, 60)), (3, 32, vec![]));
        let said = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 10.0.0.0 10.0.0.1 10.0.0.2";
        assert_eq!(of(servers(4), vec![]), (3, 0, vec![said.to_owned()]));
        let said = |left: &[String]| {
            let line = left.join(" ");
            vec![format!("Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {line}")]
        };
        assert_eq!(of(vec![], searches(33, 3)), (0, 32, said(&searches(32, 3))));
        assert_eq!(of(vec![], searches(1, 253)), (0, 1, vec![]));
        assert_eq!(of(vec![], searches(1, 254)), (0, 0, said(&[])));
        // 8 of 253 with 7 blanks are 2,031 characters; 16 more and a blank fill the line.
        let mut all = searches(8, 253);
        all.push("x".repeat(16));
        assert_eq!(of(vec![], all.clone()), (0, 9, vec![]));
        all[8].push('x');
        assert_eq!(of(vec![], all.clone()), (0, 8, said(&all[..8])));
    }
}
