//! `mullion node` on containerd and runc: every feature of pods, end to end. `make containerd` (tools/containerd) runs it as root, in
//! namespaces and directories of its own; `cargo test` does not.
//!
//! One containerd and one node serve all cases. Most run at once, each with pods of its own; those that end the agent or the runtime come
//! after them, one by one.

mod cluster;
mod drivers;
mod garbage;
mod groups;
mod image;
mod limits;
mod machine;
mod newer;
mod pods;
mod pressure;
mod registry;
mod restarts;
mod runtimes;
mod security;
mod servers;
mod soak;
mod stats;
mod streams;
mod volumes;

use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt as _;
use tokio::task::{LocalSet, spawn_local};

use cluster::Cluster;

type Case = (&'static str, fn(Arc<Cluster>) -> Pin<Box<dyn Future<Output = ()>>>);

/// Cases by the names of their functions.
macro_rules! cases {
    ($($module:ident::$case:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($case)), |cluster| Box::pin($module::$case(cluster)))),*]
    };
}

const AT_ONCE: &[Case] = &cases![
    pods::init_containers_and_sidecars_start_in_order_and_end_in_reverse,
    pods::containers_restart_as_their_policy_says,
    pods::termination_messages_come_from_files_and_logs,
    pods::probes_gate_restart_and_unready_containers,
    pods::hooks_run_after_the_start_and_before_the_stop,
    pods::deadlines_end_pods,
    pods::images_are_pulled_or_named_in_the_status,
    pods::static_pods_run_and_have_mirrors,
    volumes::api_objects_are_files_that_follow_them,
    volumes::directories_of_pods_and_of_the_node,
    volumes::sub_paths_are_parts_of_volumes,
    volumes::huge_pages_are_mounted_once_and_found_again,
    streams::logs_are_read_followed_and_kept_of_the_run_before,
    streams::programs_run_inside_and_ports_are_forwarded,
    streams::ephemeral_containers_see_their_target,
    security::users_groups_and_capabilities_are_those_of_the_spec,
    security::pods_share_what_they_ask_for_with_each_other_and_the_node,
    security::names_and_resolvers_are_the_pods_own,
    limits::limits_are_in_the_control_groups,
    limits::a_program_that_takes_too_much_memory_is_killed,
    limits::containers_are_resized_in_place,
    groups::pods_have_groups_of_their_own_that_are_gone_after_them,
    groups::a_fork_bomb_ends_at_the_pods_number_of_processes,
    groups::a_pods_memory_limit_holds_for_its_containers_together,
    groups::a_resized_pods_group_has_the_new_limits,
    stats::usage_of_containers_pods_and_the_node_is_measured,
    drivers::a_csi_volume_is_staged_published_and_taken_back,
    drivers::a_csi_device_is_attached_and_in_its_container,
    drivers::a_plug_ins_device_is_in_its_container,
    registry::private_images_are_for_pods_with_a_secret,
    registry::a_credential_provider_logs_in_for_its_images,
    runtimes::a_runtime_class_chooses_the_handler,
    groups::a_runtime_classs_overhead_is_in_the_pods_group,
    runtimes::mounts_that_the_runtime_cannot_make_are_refused,
    runtimes::users_of_their_own_are_refused_by_a_runtime_without_them,
    newer::exit_codes_decide_on_restarts,
    newer::variables_come_from_a_file_of_an_earlier_container,
    newer::trusted_certificates_are_a_file,
    newer::a_grpc_health_check_gates_readiness,
    pressure::containers_that_take_more_disk_than_they_may_end_their_pods,
];

/// More would wait for each other's containers longer than a test waits.
const MOST_AT_ONCE: usize = 20;

const IN_TURN: &[Case] = &cases![
    restarts::an_agent_that_was_killed_adopts_its_pods,
    restarts::containerd_restarts_under_running_pods,
    groups::groups_are_gone_of_pods_that_end_while_no_agent_runs,
    soak::ten_kills_lose_and_double_nothing,
    garbage::logs_are_rotated_and_old_runs_removed,
    garbage::nothing_is_left_of_deleted_pods,
    // These two end whatever pods there are.
    pressure::a_full_disk_ends_the_pod_of_the_lowest_priority,
    restarts::a_shutdown_ends_pods_by_priority_and_then_the_agent,
    garbage::nothing_is_left_of_deleted_pods,
];

#[tokio::test]
async fn every_feature_of_pods_on_containerd() {
    LocalSet::new().run_until(run_all()).await;
}

/// Whether a case is asked for: all are, unless `MULLION_TEST_CASES` has parts of names, with commas between.
fn is_asked_for((name, _): &&Case) -> bool {
    let asked = std::env::var("MULLION_TEST_CASES").unwrap_or_default();
    asked.is_empty() || asked.split(',').any(|part| name.contains(part))
}

async fn run_all() {
    let cluster = Cluster::start().await;
    // A case that panics fails alone: its message stands above.
    let run = async |(name, case): &Case| {
        let ended = spawn_local(case(cluster.clone())).await;
        println!("{} {name}", if ended.is_ok() { "ok:    " } else { "FAILED:" });
        ended.is_err().then_some(*name)
    };
    let running = futures::stream::iter(AT_ONCE.iter().filter(is_asked_for)).map(&run).buffer_unordered(MOST_AT_ONCE);
    let mut failed: Vec<&str> = running.filter_map(std::future::ready).collect().await;
    for case in IN_TURN.iter().filter(is_asked_for) {
        failed.extend(run(case).await);
    }
    cluster.end();
    assert!(failed.is_empty(), "these cases failed: {failed:#?}");
}
