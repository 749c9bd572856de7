//! End-to-end tests: the binary and unmodified kubectl, as a user has them.
//!
//! One cluster serves the steps of one topic; tests of how clusters start and end have their own.
//! Environment: `MULLION_TEST_KUBECTL` and `MULLION_TEST_HELM` name kubectl and helm (default: those on PATH), `MULLION_TEST_BIN` another mullion than
//! the one built with the tests, `MULLION_TEST_TEMPLATE` another Wine template than the user's, `MULLION_TEST_GREETER`
//! the Windows program of `examples/windows-service`, `MULLION_TEST_STEP` runs only the steps whose names contain it.

#![cfg(target_os = "linux")]

mod audit;
mod automation;
mod bad_input;
mod busybox;
mod charts;
mod cluster;
mod commands;
mod controllers;
mod dual_stack;
mod footprint;
mod from_node;
mod hns_failures;
mod http;
mod images;
mod kubectl;
mod machine;
mod manifests;
mod networks;
mod outside;
mod pods;
mod policies;
mod policies_alone;
mod probes;
mod recovery;
mod registry;
mod seeds;
mod services;
mod several_clusters;
mod shutdown;
mod streams;
mod support;
mod windows;
mod workloads;

use cluster::{Cluster, Step};

/// Has a cluster of the default nodes take the steps of a topic, in their order; later ones use what earlier ones made only where they say so.
fn topic(steps: &[Step]) {
    cluster::take(&Cluster::up(""), steps);
}

#[test]
fn services_lead_to_pods_of_both_systems() {
    topic(&[
        ("IIS answers by its NodePort", services::iis_answers_by_node_port),
        ("a Linux pod reaches it by ClusterIP and by name", services::linux_pod_reaches_it),
        ("Windows pods reach pods of the same and the other node", services::windows_pods_reach_each_other),
        ("a Windows pod reaches a Linux pod", services::linux_server),
        ("a Windows node reaches ClusterIPs and NodePorts", services::windows_node_reaches_services),
        ("hns list shows networks, endpoints and load balancers", commands::hns_lists),
        ("logs, describe, get -o wide and explain answer", commands::kubectl_reads),
        ("a changed manifest is rolled out", services::changed_manifest),
        ("NodePorts are of the cluster's range", services::node_ports_are_of_the_range),
        ("host ports lead to pods of either system", services::host_ports),
        ("the proxies serve health and metrics", services::proxies_serve_health_and_metrics),
        ("packets to the outside are refused at once", outside::is_refused_at_once),
        ("deletion ends pods and NodePort", services::deletion),
    ]);
}

#[test]
fn router_joins_the_pods_of_all_nodes() {
    let steps: &[Step] = &[
        ("the router has a route to every node's pods", networks::router_has_the_routes),
        ("IIS answers by its NodePort", services::iis_answers_by_node_port),
        ("a Linux pod reaches it by ClusterIP and by name", services::linux_pod_reaches_it),
        ("Windows pods reach pods of the same and the other node", services::windows_pods_reach_each_other),
        ("a Windows pod reaches a Linux pod", services::linux_server),
        ("a Windows node reaches ClusterIPs and NodePorts", services::windows_node_reaches_services),
        ("network policies: pods reach each other without", policies::pods_run),
        ("network policies: selected peers get in", policies::selected_peers_get_in),
    ];
    cluster::take(&Cluster::up_with("", &["--network", "l3", "--network-policy"]), steps);
}

#[test]
fn both_address_families_join_pods_services_and_names() {
    let steps: &[Step] = &[
        ("nodes have addresses and ranges of both families", dual_stack::nodes_have_both),
        ("pods of both systems have both", dual_stack::pods_have_both),
        ("every pod reaches every pod in both", dual_stack::every_pair_of_pods),
        ("nodes reach pods in both", dual_stack::nodes_and_pods),
        ("what leaves the cluster has its node's address", dual_stack::outside),
        ("Services have the families of their policy", dual_stack::services_have_the_families_of_their_policy),
        ("ClusterIPs and NodePorts of both answer pods and nodes", dual_stack::services_answer_in_both_families),
        ("names have addresses of both", dual_stack::names_have_both),
        ("an old Windows has IPv4 alone, and says why", dual_stack::an_old_windows_has_one_family),
        ("other families are refused", dual_stack::other_networks_are_refused),
    ];
    let options = ["--cluster-cidr", dual_stack::CLUSTER_CIDR, "--service-cidr", dual_stack::SERVICE_CIDR];
    let mut cluster = Cluster::up_with(dual_stack::NODES, &options);
    cluster::take(&cluster, steps);
    // A restart of every host.
    let before = dual_stack::kept(&cluster);
    cluster.down().ok("mullion down");
    cluster.start("");
    assert_eq!(dual_stack::kept(&cluster), before);
    let again: &[Step] = &[
        ("again: pods have both", dual_stack::pods_have_both_again),
        ("again: every pod reaches every pod in both", dual_stack::every_pair_of_pods),
        ("again: ClusterIPs and NodePorts of both answer pods and nodes", dual_stack::services_answer_in_both_families),
    ];
    cluster::take(&cluster, again);
}

#[test]
fn bgp_joins_both_address_families() {
    let steps: &[Step] = &[
        ("every node learns the others' pods of both families from themselves", networks::nodes_learn_routes_by_bgp),
        ("pods of both systems have both", dual_stack::pods_have_both),
        ("every pod reaches every pod in both", dual_stack::every_pair_of_pods),
        ("nodes reach pods in both", dual_stack::nodes_and_pods),
        ("what leaves the cluster has its node's address", dual_stack::outside),
        ("ClusterIPs and NodePorts of both answer pods and nodes", dual_stack::services_answer_in_both_families),
    ];
    let options = ["--network", "bgp", "--cluster-cidr", dual_stack::CLUSTER_CIDR, "--service-cidr", dual_stack::SERVICE_CIDR];
    cluster::take(&Cluster::up_with(dual_stack::NODES_WITH_BOTH, &options), steps);
}

#[test]
fn router_joins_both_address_families_with_ipv6_first() {
    let steps: &[Step] = &[
        ("IPv6 is the primary family", dual_stack::ipv6_is_primary),
        ("nodes have addresses and ranges of both families", dual_stack::nodes_have_both),
        ("the router has a route to every node's pods of both families", networks::router_has_the_routes),
        ("pods of both systems have both", dual_stack::pods_have_both),
        ("every pod reaches every pod in both", dual_stack::every_pair_of_pods),
        ("nodes reach pods in both", dual_stack::nodes_and_pods),
        ("what leaves the cluster has its node's address", dual_stack::outside),
        ("ClusterIPs and NodePorts of both answer pods and nodes", dual_stack::services_answer_in_both_families),
    ];
    let options = [&["--network", "l3"][..], &dual_stack::IPV6_FIRST].concat();
    cluster::take(&Cluster::up_with(dual_stack::NODES_WITH_BOTH, &options), steps);
}

#[test]
fn overlay_joins_the_pods_of_all_nodes() {
    let steps: &[Step] = &[
        ("every node announces its tunnel", networks::nodes_announce_their_tunnels),
        ("IIS answers by its NodePort", services::iis_answers_by_node_port),
        ("a Linux pod reaches it by ClusterIP and by name", services::linux_pod_reaches_it),
        ("Windows pods reach pods of the same and the other node", services::windows_pods_reach_each_other),
        ("a Windows pod reaches a Linux pod", services::linux_server),
        ("a Windows node reaches Services of its own pods, and NodePorts", services::windows_node_reaches_services_of_its_own_pods),
        ("network policies: pods reach each other without", policies::pods_run),
        ("network policies: selected peers get in", policies::selected_peers_get_in),
    ];
    cluster::take(&Cluster::up_with("", &["--network", "vxlan", "--network-policy"]), steps);
}

#[test]
fn bgp_joins_the_pods_of_all_nodes() {
    let steps: &[Step] = &[
        ("every node learns the others' pods from themselves", networks::nodes_learn_routes_by_bgp),
        ("IIS answers by its NodePort", services::iis_answers_by_node_port),
        ("a Linux pod reaches it by ClusterIP and by name", services::linux_pod_reaches_it),
        ("Windows pods reach pods of the same and the other node", services::windows_pods_reach_each_other),
        ("a Windows pod reaches a Linux pod", services::linux_server),
        ("a Windows node reaches ClusterIPs and NodePorts", services::windows_node_reaches_services),
        ("network policies: pods reach each other without", policies::pods_run),
        ("network policies: selected peers get in", policies::selected_peers_get_in),
        ("Calico's resources take effect", networks::bgp_peers_of_calico_take_effect),
    ];
    cluster::take(&Cluster::up_with("", &["--network", "bgp", "--network-policy"]), steps);
}

#[test]
fn transparent_network_joins_the_pods_of_all_nodes() {
    let steps: &[Step] = &[
        ("Windows nodes route to the others' pods behind their second adapters", networks::windows_nodes_route_between_their_adapters),
        ("IIS answers by its NodePort", services::iis_answers_by_node_port),
        ("a Linux pod reaches it by ClusterIP and by name", services::linux_pod_reaches_it),
        ("Windows pods reach pods of the same and the other node", services::windows_pods_reach_each_other_through_relays),
        ("a Windows pod reaches a Linux pod", services::linux_server),
        ("a Windows node reaches ClusterIPs and NodePorts", services::windows_node_reaches_services),
        ("network policies: pods reach each other without", policies::pods_run),
        ("network policies: selected peers get in", policies::selected_peers_get_in),
    ];
    cluster::take(&Cluster::up_with("", &["--network", "transparent", "--network-policy"]), steps);
}

#[test]
fn network_policies_hold_between_pods_of_both_systems() {
    let steps: &[Step] = &[
        ("pods reach each other without policies", policies::pods_run),
        ("deny by default, let in by selectors", policies::selected_peers_get_in),
        ("selectors of pods and namespaces", policies::selectors_choose_peers),
        ("ports by number, range and name", policies::ports_and_names_of_ports),
        ("egress, networks, both directions, Services", policies::egress_and_services),
        ("tiers of ClusterNetworkPolicies", policies::tiers_count_before_and_after),
        ("the deciding rule is explained", policies::explained_and_reported),
    ];
    cluster::take(&Cluster::up_with("", &["--network-policy"]), steps);
}

#[test]
fn hns_failures_are_reported_and_repaired() {
    topic(&[
        ("pods whose network HNS forgot get another sandbox", hns_failures::wiped),
        ("a node whose HNS does not answer reports it", hns_failures::host_network_down),
    ]);
}

#[test]
fn pods_get_what_their_manifests_ask_for() {
    topic(&[
        ("Secrets and ConfigMaps reach the environment", pods::environment),
        ("volumes appear at Windows paths", pods::volumes),
        ("a host path is mounted read-only", pods::host_path),
        ("the other examples work", pods::examples),
        ("an image of another build is refused", pods::wrong_build),
        ("an impossible nodeSelector stays Pending", pods::impossible_selector),
        ("exec probes restart, take away and give back", probes::exec),
        ("a ConfigMap's volume is updated in place", workloads::updated_in_place),
        ("a claim of the default class is kept on its node", workloads::claimed),
        ("a Windows program runs, with its whole exit code", workloads::windows_program),
        ("extensions/v1beta1 is unknown", bad_input::old_api_group),
        ("unknown fields are refused", bad_input::unknown_fields),
        ("a namespace ends with all that is in it", pods::namespace_ends),
    ]);
}

#[test]
fn workloads_are_scaled_edited_updated_and_drained() {
    let policy = audit::policy();
    let steps: &[Step] = &[
        ("a Deployment scales from 1 to 5 to 0", pods::scales),
        ("edit changes a Deployment", workloads::edit),
        ("kubectl reads and changes an object of each main kind", kubectl::tour),
        ("the audit log has kubectl's requests", audit::requests),
        ("a rolling update fails no request", workloads::rolling_update),
        ("drain moves pods to another node", workloads::drain),
    ];
    cluster::take(&Cluster::up_with("", &["--audit-policy-file", &policy.path().to_string_lossy()]), steps);
}

/// Beside each other: most of the time both wait.
#[test]
fn stateful_sets_and_autoscalers_run_windows_pods() {
    let steps: &[Step] = &[
        ("a StatefulSet keeps order, names and claims", controllers::stateful_set),
        ("an autoscaler follows the load of a Windows program", controllers::autoscaler),
    ];
    cluster::take_at_once(&Cluster::up(""), steps);
}

#[test]
fn streams_reach_containers_of_both_systems() {
    topic(&[
        ("exec runs programs over WebSocket and SPDY", streams::exec),
        ("exec -it has a terminal", streams::terminal),
        ("exec -it has a console in a Windows container", streams::windows_console),
        ("exec leaves nothing behind when interrupted", streams::interrupted),
        ("cp copies into a pod and back", streams::copies),
        ("cp copies into a Windows pod and back", windows::copies),
        ("ipconfig shows a Windows pod's adapter", windows::adapter),
        ("run -i attaches", streams::attach),
        ("port-forward carries many connections", streams::forwards),
        ("debug puts a container into a pod", workloads::debug),
        ("the API server proxies pods and nodes for authorized users", streams::proxies),
    ]);
}

#[test]
fn images_are_managed_and_run() {
    topic(&[("images are loaded, named, listed and removed", images::managed), ("a Windows program of the user's own serves", images::own_service)]);
}

#[test]
fn charts_are_installed_upgraded_rolled_back_and_uninstalled() {
    topic(&[
        ("helm runs its starter chart on Windows pods", charts::starter),
        ("helm runs a chart with an object of every kind", charts::every_kind),
    ]);
}

#[test]
fn a_cluster_from_up_to_down() {
    let mut cluster = Cluster::up("");
    let steps: &[Step] = &[
        ("all nodes are Ready and labelled", commands::nodes_are_ready),
        ("status lists processes and nodes", commands::status_lists_processes_and_nodes),
        ("the real host's network is as before", footprint::host_network_is_untouched),
        ("top shows what nodes and pods use", workloads::top),
        ("a second cluster runs beside it", several_clusters::side_by_side),
        ("mullion logs prints what processes wrote", support::logs),
        ("mullion logs -f goes on", support::logs_follow),
        ("support-bundle holds all but secrets", support::bundle),
        ("a second up is refused", bad_input::second_up),
    ];
    cluster::take(&cluster, steps);
    footprint::down_leaves_nothing(&mut cluster);
}
