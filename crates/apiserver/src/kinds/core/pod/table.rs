//! Pods: the STATUS column sums up phase, reasons and every container's state.

use crate::table::text::{get, get_or, human_duration, integer, list, since, time};
use crate::table::{AGE, Column, NAME, text as column, wide};
use jiff::Timestamp;
use kube_rules::readiness;
use serde_json::{Value, json};

pub(super) fn columns() -> [Column; 9] {
    [
        NAME,
        column("Ready"),
        column("Status"),
        column("Restarts"),
        AGE,
        wide(column("IP")),
        wide(column("Node")),
        wide(column("Nominated Node")),
        wide(column("Readiness Gates")),
    ]
}

pub(super) fn condition(pod: &Value) -> Option<Value> {
    let (reason, message) = match get(pod, "/status/phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, human_duration(now.as_second() - last.as_second()))
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        get(pod, "/metadata/name").into(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        since(pod, "/metadata/creationTimestamp", now).into(),
        get_or(pod, "/status/podIPs/0/ip", get_or(pod, "/status/podIP", "<none>")).into(),
        get_or(pod, "/spec/nodeName", "<none>").into(),
        get_or(pod, "/status/nominatedNodeName", "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates.iter().filter(|gate| has_condition(pod, get(gate, "/conditionType"))).count();
    format!("{met}/{}", gates.len())
}

fn has_condition(pod: &Value, kind: &str) -> bool {
    readiness::is_true(list(pod, "/status/conditions"), kind)
}

/// What the first columns say.
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let mut summary = Summary {
            reason: get_or(pod, "/status/reason", get(pod, "/status/phase")).to_string(),
            ready: 0,
            total: list(pod, "/spec/containers").len() + list(pod, "/spec/initContainers").iter().filter(|init| is_sidecar(init)).count(),
            restarts: 0,
            last_restart: None,
        };
        let gated = |condition: &&Value| get(condition, "/type") == "PodScheduled" && get(condition, "/reason") == "SchedulingGated";
        if list(pod, "/status/conditions").iter().any(|condition| gated(&condition)) {
            summary.reason = "SchedulingGated".into();
        }
        let mut sidecars = (0, None);
        let initializing = summary.add_init_containers(pod, &mut sidecars);
        if !initializing || has_condition(pod, "Initialized") {
            (summary.restarts, summary.last_restart) = sidecars;
            summary.add_containers(pod);
        }
        if pod.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()) {
            if get(pod, "/status/reason") == "NodeLost" {
                summary.reason = "Unknown".into();
            } else if !matches!(get(pod, "/status/phase"), "Succeeded" | "Failed") {
                summary.reason = "Terminating".into();
            }
        }
        summary
    }

    /// Says whether an init container still has to finish; `sidecars` collects restarts of those that stay.
    fn add_init_containers(&mut self, pod: &Value, sidecars: &mut (i64, Option<Timestamp>)) -> bool {
        let specs = list(pod, "/spec/initContainers");
        for (index, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let (restarts, last) = restarts_of(status);
            self.restarts += restarts;
            self.last_restart = self.last_restart.max(last);
            let sidecar = specs.iter().any(|spec| is_sidecar(spec) && spec["name"] == status["name"]);
            if sidecar {
                *sidecars = (sidecars.0 + restarts, sidecars.1.max(last));
            }
            let state = &status["state"];
            if state.get("terminated").is_some() && integer(state, "/terminated/exitCode") == 0 {
                continue;
            }
            if sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            let waiting = get(state, "/waiting/reason");
            self.reason = if let Some(terminated) = state.get("terminated") {
                format!("Init:{}", end_of(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", specs.len())
            };
            return true;
        }
        false
    }

    fn add_containers(&mut self, pod: &Value) {
        let mut running = false;
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            let (restarts, last) = restarts_of(status);
            self.restarts += restarts;
            self.last_restart = self.last_restart.max(last);
            let state = &status["state"];
            let waiting = get(state, "/waiting/reason");
            if !waiting.is_empty() {
                self.reason = waiting.to_string();
            } else if let Some(terminated) = state.get("terminated") {
                self.reason = end_of(terminated);
            } else if status["ready"] == true && state.get("running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" && running {
            self.reason = if has_condition(pod, "Ready") { "Running".into() } else { "NotReady".into() };
        }
    }
}

fn is_sidecar(spec: &Value) -> bool {
    get(spec, "/restartPolicy") == "Always"
}

fn restarts_of(status: &Value) -> (i64, Option<Timestamp>) {
    (integer(status, "/restartCount"), time(status, "/lastState/terminated/finishedAt"))
}

/// How a container ended: its reason, else its signal or exit code.
fn end_of(terminated: &Value) -> String {
    match (get(terminated, "/reason"), integer(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", integer(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_string(),
    }
}
