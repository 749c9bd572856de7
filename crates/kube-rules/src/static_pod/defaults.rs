//! What the API server would have filled into a pod (upstream pkg/apis/core/v1/defaults.go).

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe};

/// Fills members that are left out.
pub(super) fn apply(spec: &mut PodSpec) {
    spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".to_owned());
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.scheduler_name.get_or_insert_with(|| "default-scheduler".to_owned());
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    let on_host = spec.host_network == Some(true);
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        of_container(container, on_host);
    }
}

fn of_container(container: &mut Container, on_host: bool) {
    let image = container.image.clone().unwrap_or_default();
    container.image_pull_policy.get_or_insert_with(|| pull_policy(&image).to_owned());
    container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".to_owned());
    container.termination_message_policy.get_or_insert_with(|| "File".to_owned());
    for port in container.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
        if on_host {
            port.host_port.get_or_insert(port.container_port);
        }
    }
    if let Some(resources) = &mut container.resources {
        // What is limited and not requested is requested in full.
        for (name, limit) in resources.limits.iter().flatten() {
            resources.requests.get_or_insert_default().entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe].into_iter().flatten() {
        of_probe(probe);
    }
}

/// Only a tag `latest`, or none, is asked for anew each time.
fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or_default();
    match (image.contains('@'), name.split_once(':')) {
        (true, _) => "IfNotPresent",
        (false, None | Some((_, "latest"))) => "Always",
        (false, Some(_)) => "IfNotPresent",
    }
}

fn of_probe(probe: &mut Probe) {
    probe.timeout_seconds.get_or_insert(1);
    probe.period_seconds.get_or_insert(10);
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
}
