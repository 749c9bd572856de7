//! What the agent's server says of usage.

use serde_json::json;

use crate::common::World;
use crate::ready_world;

const ADMIN: Option<(&str, &str)> = Some(("admin", "system:masters"));

async fn get(world: &World, path: &str) -> String {
    let (status, body) = world.get(path, ADMIN, None).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// Samples of a family whose labels contain all of these, without their times.
fn samples<'a>(text: &'a str, name: &str, labels: &[&str]) -> Vec<&'a str> {
    let of_family = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let matching = of_family.filter(|line| labels.iter().all(|label| line.contains(label)));
    matching.map(|line| line.rsplit_once("} ").map_or_else(|| &line[name.len() + 1..], |(_, value)| value).split(' ').next().unwrap()).collect()
}

#[tokio::test]
async fn cadvisors_names_are_filled_on_a_windows_node() {
    let world = ready_world().await;
    {
        let mut state = world.runtime.state.lock().unwrap();
        (state.memory_used, state.mountpoint) = (1 << 20, r"C:\".into());
    }
    let container = json!({"name": "c", "image": "serve:1", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}});
    world.pod("web", json!({"containers": [container]})).await;
    world.until_running("web").await;
    let text = get(&world, "/metrics/cadvisor").await;
    let of_container = ["container=\"c\"", "namespace=\"default\"", "pod=\"web\"", "image=\"serve:1\"", "name=\"container", "id=\"/container"];
    let of_pod = ["container=\"\"", "namespace=\"default\"", "pod=\"web\"", "name=\"sandbox"];
    for (name, labels, value) in [
        ("container_cpu_usage_seconds_total", &of_container[..], "1.5"),
        ("container_memory_working_set_bytes", &of_container, "1048576"),
        ("container_memory_usage_bytes", &of_container, "1048576"),
        ("container_spec_cpu_quota", &of_container, "50000"),
        ("container_spec_cpu_period", &of_container, "100000"),
        ("container_spec_cpu_shares", &of_container, "512"),
        ("container_spec_memory_limit_bytes", &of_container, "67108864"),
        ("container_fs_usage_bytes", &of_container, "4096"),
        ("container_network_receive_bytes_total", &of_pod, "300"),
        ("container_network_transmit_bytes_total", &of_pod, "40"),
        ("machine_cpu_cores", &["machine_id=\"machine\"", "boot_id=\"boot-0\""], "4"),
        ("machine_memory_bytes", &[], "8589934592"),
        ("container_scrape_error", &[], "0"),
        // What the agent itself has no value for comes from the runtime's own metrics, and nothing twice.
        ("container_sockets", &["id=\"/own\""], "9"),
    ] {
        assert_eq!(samples(&text, name, labels), [value], "{name} in\n{text}");
    }
    assert_eq!(samples(&text, "container_memory_working_set_bytes", &["id=\"/own\""]).len(), 0);
    let started: f64 = samples(&text, "container_start_time_seconds", &of_container)[0].parse().unwrap();
    assert!((started - jiff::Timestamp::now().as_second() as f64).abs() < 600.0, "{started}");
    assert_eq!(samples(&text, "container_last_seen", &of_container).len(), 1);
    // Who may not see metrics may not see these.
    assert_eq!(world.get("/metrics/cadvisor", Some(("nobody", "nothing")), None).await.0, 403);
}

#[tokio::test]
async fn the_summary_leaves_out_what_cannot_be_measured() {
    let world = ready_world().await;
    {
        let mut state = world.runtime.state.lock().unwrap();
        (state.memory_used, state.mountpoint) = (1 << 20, r"C:\".into());
    }
    world.config_map("words", json!({"a": "b"})).await;
    let volumes = json!([{"name": "data", "emptyDir": {}}, {"name": "words", "configMap": {"name": "words"}}]);
    world.pod("web", json!({"volumes": volumes})).await;
    world.until_running("web").await;
    let summary = async || -> serde_json::Value { serde_json::from_str(&get(&world, "/stats/summary").await).unwrap() };
    let whole = summary().await;
    let pod = &whole["pods"][0];
    assert_eq!(pod["podRef"]["name"], "web");
    assert_eq!(pod["containers"][0]["cpu"]["usageCoreNanoSeconds"], 1_500_000_000u64);
    assert_eq!(pod["network"]["interfaces"][0]["rxBytes"], 300);
    let volumes: Vec<&str> = pod["volume"].as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    assert!(volumes.contains(&"data") && volumes.contains(&"words"), "{volumes:?}");
    // The layer of the container, its log, the volumes on the disk, termination message and hosts file: files of more than a block each.
    let uid = pod["podRef"]["uid"].as_str().unwrap();
    let hosts = world.drive().join("var/lib/kubelet/pods").join(uid).join("etc-hosts");
    let used = |summary: &serde_json::Value| summary["pods"][0]["ephemeral-storage"]["usedBytes"].as_u64().unwrap();
    std::fs::write(&hosts, vec![b'#'; 1 << 20]).unwrap();
    let more = summary().await;
    assert!(used(&more) >= used(&whole) + (1 << 20) - 8192, "{} after {}", used(&more), used(&whole));
    assert_eq!(more["node"]["systemContainers"][0]["name"], "pods");
    assert!(more["node"]["runtime"]["imageFs"]["capacityBytes"].as_u64() > Some(0), "{more:#}");
    let trimmed: serde_json::Value = serde_json::from_str(&get(&world, "/stats/summary?only_cpu_and_memory=true").await).unwrap();
    assert_eq!((&trimmed["node"]["runtime"], &trimmed["pods"][0]["volume"]), (&json!(null), &json!(null)));
    assert_eq!(trimmed["node"]["memory"]["workingSetBytes"], 1 << 20);

    // The same answer of the runtime is all of a scrape.
    world.runtime.state.lock().unwrap().stats_asked = 0;
    assert_eq!(samples(&get(&world, "/metrics/resource").await, "resource_scrape_error", &[]), ["0"]);
    assert_eq!(world.runtime.state.lock().unwrap().stats_asked, 1);

    // A list that fails because of one container is asked for in pieces, and a runtime without networks costs the network alone.
    world.runtime.state.lock().unwrap().refuses.extend(["ListContainerStats", "ListPodSandboxStats"]);
    let part = summary().await;
    assert_eq!(part["pods"][0]["podRef"]["name"], "web");
    assert_eq!((&part["pods"][0]["network"], &part["pods"][0]["containers"][0]["memory"]["usageBytes"]), (&json!(null), &json!(1 << 20)));
    assert_eq!(samples(&get(&world, "/metrics/resource").await, "resource_scrape_error", &[]), ["1"]);
    let cadvisor = get(&world, "/metrics/cadvisor").await;
    assert_eq!(samples(&cadvisor, "container_scrape_error", &[]), ["1"]);
    assert_eq!(samples(&cadvisor, "container_memory_working_set_bytes", &["pod=\"web\""]), ["1048576"]);
    world.runtime.state.lock().unwrap().refuses.insert("ContainerStats");
    let part = summary().await;
    assert_eq!((&part["pods"], &part["node"]["nodeName"]), (&json!([]), &json!("win01")));
}

#[tokio::test]
async fn what_the_agent_does_is_counted_under_upstreams_names() {
    let world = ready_world().await;
    let container = json!({"name": "c", "image": "serve:1"});
    world.pod("web", json!({"containers": [container]})).await;
    world.until_running("web").await;
    get(&world, "/pods").await;
    let started = async || samples(&get(&world, "/metrics").await, "kubelet_pod_start_total_duration_seconds_count", &[]) == ["1"];
    world.eventually("the start of the pod is counted", started).await;
    let text = get(&world, "/metrics").await;
    for (name, labels, value) in [
        ("kubelet_node_name", &["node=\"win01\""][..], "1"),
        ("kubernetes_build_info", &["minor=\"36\"", "platform=\"windows/"], "1"),
        ("kubelet_running_pods", &[], "1"),
        ("kubelet_running_containers", &["container_state=\"running\""], "1"),
        ("kubelet_desired_pods", &["static=\"\""], "1"),
        ("kubelet_started_pods_total", &[], "1"),
        ("kubelet_started_containers_total", &["container_type=\"container\""], "1"),
        ("kubelet_run_podsandbox_duration_seconds_count", &["runtime_handler=\"\""], "1"),
        ("kubelet_pod_start_duration_seconds_count", &[], "1"),
        ("kubelet_pod_start_sli_duration_seconds_count", &[], "1"),
        ("kubelet_pod_worker_start_duration_seconds_count", &[], "1"),
        ("kubelet_pod_worker_duration_seconds_count", &["operation_type=\"create\""], "1"),
        ("kubelet_http_requests_total", &["path=\"pods\"", "method=\"GET\""], "1"),
        ("kubelet_http_inflight_requests", &["path=\"metrics\""], "1"),
        ("kubelet_runtime_operations_total", &["operation_type=\"run_podsandbox\""], "1"),
        ("kubelet_runtime_operations_duration_seconds_count", &["operation_type=\"start_container\""], "1"),
        ("rest_client_requests_total", &["code=\"201\"", "host=\"api:6443\"", "method=\"POST\""], "?"),
        ("rest_client_request_duration_seconds_count", &["verb=\"GET\""], "?"),
        ("kubelet_pod_status_sync_duration_seconds_count", &[], "?"),
        ("kubelet_node_startup_registration_duration_seconds", &[], "?"),
        ("process_resident_memory_bytes", &[], "?"),
    ] {
        let found = samples(&text, name, labels);
        assert_eq!(found.len(), 1, "{name} in\n{text}");
        assert!(value == "?" && found[0].parse::<f64>().unwrap() > 0.0 || found[0] == value, "{name} is {} in\n{text}", found[0]);
    }
}
