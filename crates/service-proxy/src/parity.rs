//! The table of features in docs/service-proxy.md: each row names the tests that prove it, and they must exist.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A feature: what upstream's Windows proxy, ours on HNS, nftables and user space make of it, and the proofs.
struct Row(&'static str, [&'static str; 4], &'static [&'static str]);

const YES: &str = "yes";
const NO: &str = "no";

const ROWS: &[Row] = &[
    Row(
        "ClusterIP, NodePort, external address, load-balancer address",
        [YES, YES, YES, YES],
        &[
            "external_policy_cluster_uses_everybody_and_hides_the_client",
            "a_service_listens_everywhere_it_says",
            "cluster_ips_reach_pods_from_everywhere",
            "connections_are_carried_both_ways_and_addresses_come_and_go",
            "documents_carry_upstreams_flags",
            "bridges_are_served_and_restarts_change_nothing",
            "overlays_are_served_and_restarts_change_nothing",
            "tunnels_are_served_and_restarts_change_nothing",
        ],
    ),
    Row("TCP and UDP", [YES, YES, YES, YES], &["udp_is_answered_from_the_service_address", "datagrams_find_their_way_back_and_follow_their_service"]),
    Row(
        "SCTP",
        ["sent to HNS, undocumented", "sent to HNS, undocumented", YES, "no: named as not served"],
        &["sctp_is_led_to_its_backend_and_refused_without_one", "dead_backends_are_passed_over_and_odd_fronts_say_why_they_are_not_served"],
    ),
    Row(
        "IPv6 and dual stack",
        ["not on overlays", "not on overlays", YES, YES],
        &["families_do_not_mix", "ipv6_services_are_served_like_ipv4_ones", "both_families_are_served_with_policy_local_and_never_mixed"],
    ),
    Row(
        "Several ports; back ends of one port at several target ports",
        ["one target port", "the port that most have; told", YES, YES],
        &["one_port_may_have_backends_at_several_target_ports", "ports_meet_by_name_and_protocol", "what_hns_cannot_do_is_said"],
    ),
    Row(
        "Session affinity",
        ["HNS 12 and later", "HNS 12 and later; told", YES, YES],
        &[
            "sticky_clients_stay_and_move_when_their_backend_goes",
            "sticky_clients_leave_backends_that_went_while_no_proxy_ran",
            "clients_stick_until_time_or_their_backend_goes",
            "windows_annotation_and_affinity_reach_the_front_ends",
        ],
    ),
    Row("Its timeout", [NO, "no: told", YES, YES], &["clients_stick_until_time_or_their_backend_goes", "what_hns_cannot_do_is_said"]),
    Row("internalTrafficPolicy Local", [YES, YES, YES, YES], &["internal_policy_local_follows_local_endpoints_alone"]),
    Row(
        "externalTrafficPolicy Local: only back ends of the node",
        [YES, YES, YES, YES],
        &[
            "external_policy_local_leaves_the_cluster_ip_alone_and_asks_for_health",
            "node_ports_follow_the_traffic_policy",
            "policies_and_ranges_decide_who_is_heard",
        ],
    ),
    Row(
        "… and they see the client's address",
        ["with DSR", "with DSR; told", YES, "no"],
        &[
            "node_ports_follow_the_traffic_policy",
            "what_hns_cannot_do_is_said",
            "bridges_are_served_and_restarts_change_nothing",
            "overlays_are_served_and_restarts_change_nothing",
            "tunnels_are_served_and_restarts_change_nothing",
            "without_direct_server_return_the_client_is_lost_and_that_is_told",
            "a_lost_client_address_is_an_event_of_the_service_that_asked_for_it",
        ],
    ),
    Row(
        "… and clients inside the cluster reach every back end",
        [NO, "no: told", YES, YES],
        &["node_ports_follow_the_traffic_policy", "policies_and_ranges_decide_who_is_heard", "what_hns_cannot_do_is_said"],
    ),
    Row("healthCheckNodePort", [YES, YES, YES, YES], &["load_balancers_hear_what_upstream_says"]),
    Row(
        "Health checks forwarded at the load balancer's address",
        [YES, YES, "not needed", "not needed"],
        &["forwarded_health_checks_exist_where_the_address_is_served"],
    ),
    Row(
        "Terminating back ends as a last resort",
        ["ingress addresses only", YES, YES, YES],
        &[
            "when_nobody_is_ready_those_that_still_serve_answer_at_every_front_end",
            "terminating_endpoints_serve_only_when_nobody_is_ready",
            "local_policy_falls_back_to_local_terminating_ones",
        ],
    ),
    Row("publishNotReadyAddresses", [NO, YES, YES, YES], &["unready_endpoints_that_are_published_count_as_ready"]),
    Row(
        "Topology hints: trafficDistribution, PreferSameZone, PreferSameNode",
        [NO, YES, YES, YES],
        &["hints_keep_traffic_in_the_zone_or_on_the_node"],
    ),
    Row(
        "loadBalancerSourceRanges",
        [NO, "no: told", YES, "yes, by resets"],
        &["source_ranges_guard_load_balancer_addresses_alone", "source_ranges_keep_others_out", "policies_and_ranges_decide_who_is_heard"],
    ),
    Row(
        "nodePortAddresses",
        [NO, "no: told at the start", YES, "of the node's own"],
        &[
            "what_hns_cannot_do_of_the_options_is_told",
            "node_ports_listen_where_they_are_told_to",
            "node_ports_listen_on_chosen_addresses_and_on_localhost",
        ],
    ),
    Row(
        "NodePorts on localhost",
        [NO, "no: told at the start", "127.0.0.1", "127.0.0.1"],
        &[
            "what_hns_cannot_do_of_the_options_is_told",
            "node_ports_listen_on_chosen_addresses_and_on_localhost",
            "connections_are_carried_both_ways_and_addresses_come_and_go",
        ],
    ),
    Row(
        "A Service without back ends refuses at once",
        [NO, NO, YES, YES],
        &["cluster_ips_reach_pods_from_everywhere", "connections_are_carried_both_ways_and_addresses_come_and_go"],
    ),
    Row(
        "A client that is its own back end",
        ["with DSR only by the loopback policy", "with DSR only by the loopback policy; its absence is told", YES, YES],
        &["pods_nodes_and_neighbours_reach_services", "cluster_ips_reach_pods_from_everywhere"],
    ),
    Row(
        "UDP clients that never pause follow the Service",
        [NO, NO, YES, YES],
        &[
            "clients_of_udp_that_never_pause_follow_their_service",
            "flows_are_stale_when_their_backend_is_no_answerer",
            "datagrams_find_their_way_back_and_follow_their_service",
        ],
    ),
    Row("Annotation preserve-destination", [YES, YES, "Windows only", "Windows only"], &["windows_annotation_and_affinity_reach_the_front_ends"]),
    Row("Labels service-proxy-name and headless", [YES, YES, YES, YES], &["slices_of_others_are_left_out", "odd_services_need_no_proxy"]),
    Row(
        "A change costs its own Service only",
        [NO, YES, YES, YES],
        &[
            "any_sequence_of_events_ends_where_starting_anew_would",
            "any_sequence_of_changes_ends_where_a_full_pass_would",
            "a_change_costs_the_same_however_many_services_there_are",
            "a_change_is_small_connections_live_and_a_restart_adopts",
        ],
    ),
    Row(
        "A restart changes nothing that is right",
        ["everything is wiped", YES, YES, "connections drain"],
        &[
            "a_restart_adopts_writes_nothing_and_removes_only_its_own_leftovers",
            "overlays_are_served_and_restarts_change_nothing",
            "a_change_is_small_connections_live_and_a_restart_adopts",
            "connections_outlive_changes_and_draining_waits_for_them",
        ],
    ),
    Row("What others damage is repaired", [NO, YES, YES, YES], &["damage_is_repaired", "what_a_killed_proxy_left_is_taken_over_or_away"]),
    Row("Clean-up on request", [NO, YES, YES, "at its end"], &["cleanup_leaves_nothing", "connections_outlive_changes_and_draining_waits_for_them"]),
];

fn table() -> String {
    let mut text = String::from("| feature | upstream on Windows | HNS | nftables | user space |\n| --- | --- | --- | --- | --- |\n");
    for Row(feature, [upstream, hns, nftables, user], _) in ROWS {
        let _ = writeln!(text, "| {feature} | {upstream} | {hns} | {nftables} | {user} |");
    }
    text
}

pub fn sources(dir: &Path, into: &mut String) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_feature_has_a_proof_that_exists() {
    let mut text = String::new();
    for part in ["src", "../mullion/src/kube_proxy"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(part), &mut text);
    }
    for Row(feature, _, proofs) in ROWS {
        assert!(!proofs.is_empty(), "{feature}");
        for proof in *proofs {
            assert!(text.contains(&format!("fn {proof}(")), "{feature}: there is no test {proof}");
        }
    }
}

/// `UPDATE_DOCS=1` writes the table into the page.
#[test]
fn the_page_has_this_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/service-proxy.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("<!-- features: begin -->\n").expect("a mark where the table begins");
    let (there, after) = rest.split_once("<!-- features: end -->").expect("a mark where the table ends");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&page, format!("{before}<!-- features: begin -->\n{}<!-- features: end -->{after}", table())).unwrap();
    } else {
        assert_eq!(there, table(), "docs/service-proxy.md is out of date: run this test with UPDATE_DOCS=1");
    }
}
