//! End-to-end tests: the binary and unmodified kubectl, as a user has them.
//!
//! One cluster serves the steps of one topic; tests of how clusters start and end have their own.
//! Environment: `MULLION_TEST_KUBECTL` names kubectl (default: the one on PATH), `MULLION_TEST_BIN` another mullion than
//! the one built with the tests, `MULLION_TEST_TEMPLATE` another Wine template than the user's, `MULLION_TEST_GREETER`
//! the Windows program of `examples/windows-service`, `MULLION_TEST_STEP` runs only the steps whose names contain it.

#![cfg(target_os = "linux")]

mod automation;
mod bad_input;
mod busybox;
mod cluster;
mod commands;
mod footprint;
mod hns_failures;
mod http;
mod images;
mod machine;
mod manifests;
mod outside;
mod pods;
mod probes;
mod recovery;
mod registry;
mod seeds;
mod services;
mod several_clusters;
mod streams;
mod support;
mod windows;
mod workloads;

use cluster::{Cluster, Step};

/// In this order: later steps use what earlier ones made only where they say so.
const STEPS: &[Step] = &[
    ("all nodes are Ready and labelled", commands::nodes_are_ready),
    ("status lists processes and nodes", commands::status_tells),
    ("the real host's network is as before", footprint::host_network_is_untouched),
    ("IIS answers by its NodePort", services::iis_answers_by_node_port),
    ("a Linux pod reaches it by ClusterIP and by name", services::linux_pod_reaches_it),
    ("Windows pods reach pods of the same and the other node", services::windows_pods_reach_each_other),
    ("a Windows pod reaches a Linux pod", services::linux_server),
    ("hns list shows networks, endpoints and load balancers", commands::hns_lists),
    ("logs, describe, get -o wide and explain answer", commands::kubectl_reads),
    ("a Deployment scales from 1 to 5 to 0", pods::scales),
    ("Secrets and ConfigMaps reach the environment", pods::environment),
    ("volumes appear at Windows paths", pods::volumes),
    ("a host path is mounted read-only", pods::host_path),
    ("the other examples work", pods::examples),
    ("an image of another build is refused", pods::wrong_build),
    ("an impossible nodeSelector stays Pending", pods::impossible_selector),
    ("a changed manifest is rolled out", services::changed_manifest),
    ("exec probes restart, take away and give back", probes::exec),
    ("host ports lead to pods of either system", hns_failures::host_ports),
    ("the proxies tell how they are", hns_failures::proxies_tell),
    ("pods whose network HNS forgot get another sandbox", hns_failures::wiped),
    ("a node whose HNS does not answer says so", hns_failures::host_network_down),
    ("exec runs programs over WebSocket and SPDY", streams::exec),
    ("exec -it has a terminal", streams::terminal),
    ("exec -it has a console in a Windows container", streams::windows_console),
    ("exec leaves nothing behind when interrupted", streams::interrupted),
    ("cp copies into a pod and back", streams::copies),
    ("cp copies into a Windows pod and back", windows::copies),
    ("ipconfig shows a Windows pod's adapter", windows::adapter),
    ("run -i attaches", streams::attach),
    ("port-forward carries many connections", streams::forwards),
    ("the API server leads to pods and nodes, for those who may", streams::proxies),
    ("a Windows program runs, with its whole exit code", workloads::windows_program),
    ("edit changes a Deployment", workloads::edit),
    ("top shows what nodes and pods use", workloads::top),
    ("debug puts a container into a pod", workloads::debug),
    ("a ConfigMap's volume is updated in place", workloads::updated_in_place),
    ("a claim of the default class is kept on its node", workloads::claimed),
    ("a rolling update fails no request", workloads::rolling_update),
    ("drain moves pods to another node", workloads::drain),
    ("images are loaded, named, listed and removed", images::managed),
    ("a Windows program of the user's own serves", images::own_service),
    ("a second cluster runs beside it", several_clusters::side_by_side),
    ("packets to the outside are refused at once", outside::is_refused_at_once),
    ("mullion logs prints what processes wrote", support::logs),
    ("mullion logs -f goes on", support::logs_follow),
    ("support-bundle holds all but secrets", support::bundle),
    ("deletion ends pods and NodePort", services::deletion),
    ("a namespace ends with all that is in it", pods::namespace_ends),
    ("extensions/v1beta1 is unknown", bad_input::old_api_group),
    ("unknown fields are refused", bad_input::unknown_fields),
    ("a second up is refused", bad_input::second_up),
];

#[test]
fn a_cluster_from_up_to_down() {
    let mut cluster = Cluster::up("");
    let failed = cluster::take(&cluster, STEPS);
    footprint::down_leaves_nothing(&mut cluster);
    assert!(failed.is_empty(), "{} of {} steps failed: {}", failed.len(), STEPS.len(), failed.join("; "));
}

#[test]
fn manifests_that_people_wrote() {
    let cluster = Cluster::up_with(seeds::NODES, seeds::OPTIONS);
    let failed = cluster::take(&cluster, seeds::STEPS);
    assert!(failed.is_empty(), "{} of {} steps failed: {}", failed.len(), seeds::STEPS.len(), failed.join("; "));
}

#[test]
fn a_killed_supervisor_takes_everything_with_it_and_up_resumes() {
    recovery::killed_and_resumed();
}

#[test]
fn a_cluster_without_wine_runs_stand_ins_and_leaves_no_trace_on_the_machine() {
    machine::up_and_down();
}

#[test]
fn the_demo_cluster_keeps_pods_off_its_master() {
    several_clusters::demo();
}

#[test]
fn an_interrupt_ends_a_cluster_in_the_foreground() {
    recovery::interrupted();
}

#[test]
fn pods_reach_the_outside_where_the_user_allows_it() {
    outside::is_reached();
}

#[test]
fn a_way_to_the_outside_needs_its_package() {
    outside::needs_its_package();
}

#[test]
fn a_killed_process_is_restarted_and_pods_survive() {
    recovery::restarted_processes();
}

#[test]
fn a_taken_port_is_refused() {
    bad_input::port_taken();
}

#[test]
fn unknown_node_specifications_are_refused() {
    bad_input::unknown_node_specifications();
}

#[test]
fn a_directory_of_a_newer_format_is_refused() {
    bad_input::newer_format();
}

#[test]
fn a_full_disk_is_refused() {
    bad_input::full_disk();
}

#[test]
fn missing_user_namespaces_are_refused() {
    bad_input::no_user_namespaces();
}

#[test]
fn powerless_user_namespaces_are_refused() {
    bad_input::powerless_user_namespaces();
}

#[test]
fn a_kernel_without_nftables_is_refused() {
    bad_input::no_nftables();
}

#[test]
fn down_and_status_without_a_cluster_are_refused() {
    bad_input::nothing_runs();
}

#[test]
fn wrong_command_lines_end_with_64() {
    automation::usage();
}

#[test]
fn failures_are_documents_for_those_who_ask_for_json() {
    automation::failures_as_json();
}

#[test]
fn a_cluster_that_is_not_ready_in_time_is_ended() {
    automation::timeout();
}

#[test]
fn a_cluster_keeps_the_options_that_it_was_made_with() {
    automation::options_stay();
}

#[test]
fn a_directory_of_an_earlier_version_keeps_its_port() {
    automation::old_directory();
}

#[test]
fn down_returns_when_no_process_is_left() {
    automation::down_waits();
}

#[test]
fn the_pipeline_of_the_examples_works() {
    automation::example();
}
