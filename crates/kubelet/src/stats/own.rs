//! What `/metrics` says of the process, of its calls of the runtime, and of the pods that it has.

use std::fmt;

use cri::operations::{BOUNDS, operation_type};
use k8s_openapi::api::core::v1::Pod;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::agent::Agent;

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// Which node and which program this is.
pub(super) fn identity(agent: &Agent, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut name = encoder.encode_descriptor("kubelet_node_name", "The node's name. The count is always 1.", None, MetricType::Gauge)?;
    name.encode_family(&[("node", agent.side.node_name.as_str())])?.encode_gauge(&1_u64)?;
    let help = "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and \
                compiler from which Kubernetes was built, and platform on which it is running.";
    let version = agent.facts.version.as_str();
    let (major, minor) = release(version);
    let platform = format!("{}/{}", agent.side.os.name(), agent.facts.facts.architecture);
    let labels = [("major", major), ("minor", minor), ("git_version", version), ("platform", platform.as_str()), ("compiler", "rustc")];
    encoder.encode_descriptor("kubernetes_build_info", help, None, MetricType::Gauge)?.encode_family(&labels)?.encode_gauge(&1_u64)
}

/// Major and minor version of `v1.36.2+more`.
fn release(version: &str) -> (&str, &str) {
    let mut parts = version.trim_start_matches('v').split('.');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// The calls of the runtime (upstream pkg/kubelet/kuberuntime/instrumented_services.go).
pub(super) fn operations(client: &cri::Client, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = client.operations();
    if all.is_empty() {
        return Ok(());
    }
    let all: Vec<_> = all.into_iter().map(|(call, operation)| (operation_type(call), operation)).collect();
    let help = "Cumulative number of runtime operations by operation type.";
    let samples = all.iter().map(|(name, own)| ([("operation_type", name.as_str())], own.count));
    exposition::counters(encoder, "kubelet_runtime_operations", help, samples)?;
    let help = "Cumulative number of runtime operation errors by operation type.";
    let failed = all.iter().filter(|(_, own)| own.errors > 0).map(|(name, own)| ([("operation_type", name.as_str())], own.errors));
    exposition::counters(encoder, "kubelet_runtime_operations_errors", help, failed)?;
    let help = "Duration in seconds of runtime operations. Broken down by operation type.";
    let mut family = encoder.encode_descriptor("kubelet_runtime_operations_duration_seconds", help, None, MetricType::Histogram)?;
    for (name, own) in &all {
        let bounded: u64 = own.within.iter().sum();
        let mut buckets: Vec<(f64, u64)> = BOUNDS.into_iter().zip(own.within).collect();
        buckets.push((f64::MAX, own.count.saturating_sub(bounded)));
        family.encode_family(&[("operation_type", name.as_str())])?.encode_histogram::<NoLabelSet>(own.seconds, own.count, &buckets, None)?;
    }
    Ok(())
}

/// What this process takes, under the names of Prometheus' libraries.
pub(super) fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Ok(own) = host::Process::read() else { return Ok(()) };
    let help = "Total user and system CPU time spent in seconds.";
    let mut cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
    cpu.encode_counter::<NoLabelSet, _, f64>(&(own.cpu_nanos as f64 / 1e9), None)?;
    gauge(encoder, "process_open_fds", "Number of open file descriptors.", own.open)?;
    gauge(encoder, "process_resident_memory_bytes", "Resident memory size in bytes.", own.resident)?;
    gauge(encoder, "process_virtual_memory_bytes", "Virtual memory size in bytes.", own.virtual_bytes)?;
    if let Some(most) = own.most_open {
        gauge(encoder, "process_max_fds", "Maximum number of open file descriptors.", most)?;
    }
    let help = "Start time of the process since unix epoch in seconds.";
    encoder.encode_descriptor("process_start_time_seconds", help, None, MetricType::Gauge)?.encode_gauge(&own.started)
}

/// What one pod counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    is_static: bool,
    /// Its phase is `Running`.
    runs: bool,
    /// Its phase is `Succeeded` or `Failed`.
    has_ended: bool,
    is_deleted: bool,
    /// Containers that were created, have ended, and run.
    containers: [u64; 3],
    ephemeral: u64,
}

impl Facts {
    fn of(pod: &Pod, is_static: bool) -> Self {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let mut containers = [0; 3];
        let lists = status.into_iter().flat_map(|own| [&own.container_statuses, &own.init_container_statuses, &own.ephemeral_container_statuses]);
        for own in lists.flatten().flatten() {
            let state = own.state.as_ref();
            let is = |member: fn(&k8s_openapi::api::core::v1::ContainerState) -> bool| state.is_some_and(member);
            // One that waits for its next run is there with the last one.
            let last = own.last_state.as_ref().and_then(|last| last.terminated.as_ref()).and_then(|last| last.container_id.as_ref());
            let has_ended = is(|state| state.terminated.is_some()) || (last.is_some() && last == own.container_id.as_ref());
            if is(|state| state.running.is_some()) {
                containers[2] += 1;
            } else if has_ended {
                containers[1] += 1;
            } else if own.container_id.is_some() {
                containers[0] += 1;
            }
        }
        Facts {
            is_static,
            runs: phase == "Running",
            has_ended: matches!(phase, "Succeeded" | "Failed"),
            is_deleted: pod.metadata.deletion_timestamp.is_some(),
            containers,
            ephemeral: crate::pod::ephemeral(pod).len() as u64,
        }
    }
}

/// The pods and containers of the node, by what they are. Upstream counts sandboxes and containers as the runtime lists them; these are as the
/// pods' statuses say.
pub(super) fn pods(agent: &Agent, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let is_static = |pod: &Pod| agent.statics.holds(pod.metadata.uid.as_deref().unwrap_or_default());
    let pods: Vec<Facts> = agent.all_pods().iter().map(|pod| Facts::of(pod, is_static(pod))).collect();
    encode_pods(&pods, encoder)
}

fn encode_pods(pods: &[Facts], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let number = |wanted: &dyn Fn(&Facts) -> bool| pods.iter().filter(|pod| wanted(pod)).count() as u64;
    gauge(encoder, "kubelet_running_pods", "Number of pods that have a running pod sandbox", number(&|pod| pod.runs))?;
    let mut family = encoder.encode_descriptor("kubelet_running_containers", "Number of containers currently running", None, MetricType::Gauge)?;
    for (at, state) in ["created", "exited", "running"].into_iter().enumerate() {
        let containers: u64 = pods.iter().map(|pod| pod.containers[at]).sum();
        family.encode_family(&[("container_state", state)])?.encode_gauge(&containers)?;
    }
    let desired = "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.";
    let active = "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod \
                  is not from the apiserver.";
    for (name, help, counts_all) in [("kubelet_desired_pods", desired, true), ("kubelet_active_pods", active, false)] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        // Upstream's label of pods of the API is empty.
        for (label, wanted) in [("", false), ("true", true)] {
            let number = number(&|pod| pod.is_static == wanted && (counts_all || !pod.has_ended));
            family.encode_family(&[("static", label)])?.encode_gauge(&number)?;
        }
    }
    let help = "The number of mirror pods the kubelet will try to create (one per admitted static pod)";
    gauge(encoder, "kubelet_mirror_pods", help, number(&|pod| pod.is_static))?;
    let help = "Current number of ephemeral containers in pods managed by this kubelet.";
    gauge(encoder, "kubelet_managed_ephemeral_containers", help, pods.iter().map(|pod| pod.ephemeral).sum())?;
    let help = "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only \
                (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the \
                API and consumes resources that are not otherwise visible.";
    let mut family = encoder.encode_descriptor("kubelet_working_pods", help, None, MetricType::Gauge)?;
    let phase = |pod: &Facts| match (pod.has_ended, pod.is_deleted) {
        (true, _) => "terminated",
        (false, true) => "terminating",
        (false, false) => "sync",
    };
    for lifecycle in ["sync", "terminating", "terminated"] {
        for (label, wanted) in [("", false), ("true", true)] {
            let labels = [("lifecycle", lifecycle), ("config", "desired"), ("static", label)];
            family.encode_family(&labels)?.encode_gauge(&number(&|pod| pod.is_static == wanted && phase(pod) == lifecycle))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::registry::Registry;
    use serde_json::json;

    use super::*;

    #[derive(Debug)]
    struct Shown(Vec<Facts>);

    impl Collector for Shown {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_pods(&self.0, &mut encoder)?;
            process(&mut encoder)
        }
    }

    #[test]
    fn pods_and_the_process_are_shown_under_upstreams_names() {
        let pod = |value: serde_json::Value| serde_json::from_value::<Pod>(value).unwrap();
        let container = |state: &str| json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "containerID": "x://1", "state": {state: {}}});
        let last = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let with = |last: serde_json::Value| {
            let mut own = container("waiting");
            own["lastState"] = last;
            own
        };
        let all = [container("running"), container("waiting"), with(last("x://1")), with(last("x://0"))];
        let runs = pod(json!({"status": {"phase": "Running", "containerStatuses": all}}));
        let ends = pod(json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "spec": {"containers": [],
            "ephemeralContainers": [{"name": "e"}]}, "status": {"phase": "Running"}}));
        let done = pod(json!({"status": {"phase": "Failed", "initContainerStatuses": [{"name": "i", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}]}}));
        let mut registry = Registry::default();
        let facts = vec![Facts::of(&runs, true), Facts::of(&ends, false), Facts::of(&done, false), Facts::of(&pod(json!({})), false)];
        registry.register_collector(Box::new(Shown(facts)));
        let text = exposition::encode(&registry, exposition::Format::Text);
        for line in [
            "kubelet_running_pods 2",
            "kubelet_running_containers{container_state=\"created\"} 2",
            "kubelet_running_containers{container_state=\"exited\"} 2",
            "kubelet_running_containers{container_state=\"running\"} 1",
            "kubelet_desired_pods{static=\"\"} 3",
            "kubelet_active_pods{static=\"\"} 2",
            "kubelet_active_pods{static=\"true\"} 1",
            "kubelet_mirror_pods 1",
            "kubelet_managed_ephemeral_containers 1",
            "kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"\"} 1",
            "kubelet_working_pods{lifecycle=\"terminating\",config=\"desired\",static=\"\"} 1",
            "kubelet_working_pods{lifecycle=\"terminated\",config=\"desired\",static=\"\"} 1",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is missing in\n{text}");
        }
        for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds"] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
            assert!(value.is_some(), "{name} in\n{text}");
        }
    }

    #[test]
    fn a_version_has_a_major_and_a_minor_part() {
        for (version, parts) in [("v1.36.2+mullion.0.1.0", ("1", "36")), ("v2", ("2", "")), ("", ("", ""))] {
            assert_eq!(release(version), parts, "{version}");
        }
    }
}
