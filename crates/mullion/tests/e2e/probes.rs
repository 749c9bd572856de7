//! Probes that run a program in the container, on nodes of both systems.

use serde_json::{Value, json};

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};

/// The manifest of the same pod for one system.
struct System {
    pod: &'static str,
    os: &'static str,
    image: &'static str,
    idle: &'static [&'static str],
    /// Fails while there is no file `ready`.
    ready: &'static [&'static str],
    /// Fails while there is a file `sick`.
    alive: &'static [&'static str],
    slow: &'static [&'static str],
    /// What the event about a program that is not there contains.
    missing: &'static str,
    make_ready: &'static [&'static str],
    make_unready: &'static [&'static str],
    make_sick: &'static [&'static str],
}

const SYSTEMS: [System; 2] = [
    System {
        pod: "probed-linux",
        os: "linux",
        image: busybox::IMAGE,
        idle: &["sleep", "100000"],
        ready: &["sh", "-c", "[ -e /ready ] || { echo no file ready; echo on both outputs >&2; exit 3; }"],
        alive: &["sh", "-c", "[ ! -e /sick ] || { echo there is a file sick; exit 1; }"],
        slow: &["sleep", "47110815"],
        missing: "executable file not found",
        make_ready: &["sh", "-c", "echo x > /ready"],
        make_unready: &["busybox", "rm", "/ready"],
        make_sick: &["sh", "-c", "echo x > /sick"],
    },
    System {
        pod: "probed-windows",
        os: "windows",
        image: "mcr.microsoft.com/windows/nanoserver:ltsc2022",
        idle: &["cmd", "/c", "ping -t localhost > nul"],
        ready: &["cmd", "/c", "if not exist C:\\ready (echo no file ready& echo on both outputs>&2& exit 300)"],
        alive: &["cmd", "/c", "if exist C:\\sick (echo there is a file sick& exit 1)"],
        slow: &["ping", "-n", "47110815", "127.0.0.1"],
        missing: "The system cannot find the file specified",
        make_ready: &["cmd", "/c", "echo x> C:\\ready"],
        make_unready: &["cmd", "/c", "del C:\\ready"],
        make_sick: &["cmd", "/c", "echo x> C:\\sick"],
    },
];

impl System {
    fn manifest(&self) -> Value {
        let probe = |command: &[&str], timeout: u32| json!({"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": timeout});
        let container = |name: &str, probes: Value| {
            let mut container = json!({"name": name, "image": self.image, "imagePullPolicy": "IfNotPresent", "command": self.idle});
            container.as_object_mut().expect("members").extend(probes.as_object().cloned().unwrap_or_default());
            container
        };
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.pod},
            "spec": {
                "nodeSelector": {"kubernetes.io/os": self.os},
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    // Time enough for a busy machine.
                    container("main", json!({"readinessProbe": probe(self.ready, 20), "livenessProbe": probe(self.alive, 20)})),
                    container("slow", json!({"readinessProbe": probe(self.slow, 1)})),
                    container("odd", json!({"livenessProbe": probe(&["nosuch"], 20)})),
                ],
            },
        })
    }

    fn status(&self, cluster: &Cluster, container: &str) -> Value {
        let status = cluster.json(&["pod", self.pod])["status"]["containerStatuses"].clone();
        status.as_array().into_iter().flatten().find(|status| status["name"] == container).cloned().unwrap_or_default()
    }

    /// Waits until a container is ready, or is not.
    #[track_caller]
    fn main_is(&self, cluster: &Cluster, ready: bool) {
        until(&format!("{}: ready {ready}", self.pod), PATIENCE, || match self.status(cluster, "main") {
            status if status["ready"] == ready && status["state"]["running"].is_object() => Ok(()),
            status => Err(status.to_string()),
        });
    }

    fn run(&self, cluster: &Cluster, command: &[&str]) {
        cluster.kubectl(&[&["exec", self.pod, "-c", "main", "--"], command].concat());
    }

    /// Waits for an event about a container whose message the predicate accepts; returns how often it came.
    #[track_caller]
    fn event(&self, cluster: &Cluster, reason: &str, container: &str, is_it: impl Fn(&str) -> bool) -> u64 {
        let fields = format!("involvedObject.name={},reason={reason}", self.pod);
        until(&format!("{reason} of {} in {}", container, self.pod), PATIENCE, || {
            let events = cluster.json(&["events", "--field-selector", &fields]);
            let about = format!("spec.containers{{{container}}}");
            let own = events["items"].as_array().into_iter().flatten().filter(|event| event["involvedObject"]["fieldPath"] == *about);
            let found = own.clone().find(|event| event["message"].as_str().is_some_and(|message| is_it(&message.replace('\r', ""))));
            found
                .map(|event| event["count"].as_u64().unwrap_or(1))
                .ok_or_else(|| format!("{:?}", own.map(|event| &event["message"]).collect::<Vec<_>>()))
        })
    }
}

/// How many processes of this machine run the slow probe's program.
fn slow_programs(system: &System) -> usize {
    crate::footprint::running(system.slow[0], "47110815").len()
}

/// What the program says is in the event, its exit code decides, its time is bounded, and what cannot be run counts for nothing.
pub fn exec(cluster: &Cluster) {
    busybox::load(cluster);
    for system in &SYSTEMS {
        cluster.try_kubectl(&["apply", "-f", "-"], &system.manifest().to_string()).ok("kubectl apply");
    }
    for system in &SYSTEMS {
        system.event(cluster, "Unhealthy", "main", |message| message == "Readiness probe failed: no file ready\non both outputs");
        system.main_is(cluster, false);
        system.run(cluster, system.make_ready);
    }
    for system in &SYSTEMS {
        system.main_is(cluster, true);
        system.run(cluster, system.make_unready);
    }
    for system in &SYSTEMS {
        system.main_is(cluster, false);
        assert_eq!(system.status(cluster, "main")["restartCount"], 0, "readiness restarts nothing");
        system.run(cluster, system.make_sick);
    }
    for system in &SYSTEMS {
        system.event(cluster, "Unhealthy", "main", |message| message == "Liveness probe failed: there is a file sick");
        system.event(cluster, "Killing", "main", |message| message == "Container main failed liveness probe, will be restarted");
        until("a restart", PATIENCE, || match system.status(cluster, "main") {
            status if status["restartCount"] == 1 && status["state"]["running"].is_object() => Ok(()),
            status => Err(status.to_string()),
        });
    }
    for system in &SYSTEMS {
        let timed_out = format!("Readiness probe failed: command timed out: \"{}\" timed out after 1s", system.slow.join(" "));
        until("three tries of the slow program", PATIENCE, || match system.event(cluster, "Unhealthy", "slow", |message| message == timed_out) {
            count if count >= 3 => Ok(()),
            count => Err(format!("{count}")),
        });
        // One may be on its way; those before it were ended.
        until("the end of programs whose time is up", PATIENCE, || match slow_programs(system) {
            0 | 1 => Ok(()),
            count => Err(format!("{count} run")),
        });
        assert_eq!(system.status(cluster, "slow")["ready"], false);
        system.event(cluster, "Unhealthy", "odd", |message| {
            message.starts_with("Liveness probe errored and resulted in unknown state: ") && message.contains(system.missing)
        });
        let odd = system.status(cluster, "odd");
        assert_eq!((&odd["ready"], &odd["restartCount"]), (&true.into(), &0.into()), "what cannot be tried restarts nothing: {odd}");
    }
    cluster.kubectl(&["delete", "pod/probed-linux", "pod/probed-windows"]);
}
