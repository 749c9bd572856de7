//! The pods of the campaign: those that last, those with an end, and those that come and go. Each run of a container leaves a line in a file
//! of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::Random;
use super::watch::{Unit, Watch, running};
use crate::cluster::{Cluster, MANIFESTS, NODE, condition};
use crate::image::IMAGE;
use crate::machine::ctr;

const MARKS: &str = "/var/lib/soak";
/// Pods that are there from the begin to the end, with containers that never restart.
const LASTING: [&str; 7] = ["plain", "chain", "well", "filled", "taught", "bounded", "manifest-node1"];
/// How many pods that come and go are there at once.
const MOST: usize = 6;
/// How long everything may take until it is as it should be.
const LIMIT: Duration = Duration::from_secs(180);

/// What one pod that comes and goes has to come to.
struct Passing {
    name: String,
    phase: &'static str,
    containers: Vec<&'static str>,
}

#[derive(Default)]
pub struct Pods {
    passing: Vec<Passing>,
    made: u64,
    failing: Vec<String>,
}

/// A container that marks each of its runs.
fn part(pod: &str, name: &str, then: &str) -> Value {
    let script = format!("echo run >> /marks/{pod}.{name}; {then}");
    json!({"name": name, "command": ["sh", "-c", script], "volumeMounts": [{"name": "marks", "mountPath": "/marks"}]})
}

fn with(mut container: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        if key == "volumeMounts" {
            container[key].as_array_mut().unwrap().extend(value.as_array().unwrap().iter().cloned());
        } else {
            container[key] = value.clone();
        }
    }
    container
}

/// A spec with the marks' volume, for which no taint counts.
fn spec(policy: &str, init: Vec<Value>, containers: Vec<Value>, mut volumes: Vec<Value>) -> Value {
    volumes.push(json!({"name": "marks", "hostPath": {"path": MARKS, "type": "DirectoryOrCreate"}}));
    json!({"restartPolicy": policy, "initContainers": init, "containers": containers, "volumes": volumes, "tolerations": [{"operator": "Exists"}]})
}

const LASTS: &str = "exec sleep 1000000";
/// Ends when it is told to.
const ENDS: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

/// Volumes of all kinds that need no driver, and where a container has them.
fn volumes() -> (Vec<Value>, Value) {
    let projected = json!([{"configMap": {"name": "soak-settings"}}, {"secret": {"name": "soak-password"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]);
    let all = vec![
        json!({"name": "soak-settings", "configMap": {"name": "soak-settings"}}),
        json!({"name": "soak-password", "secret": {"secretName": "soak-password"}}),
        json!({"name": "all", "projected": {"sources": projected}}),
        json!({"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}),
        json!({"name": "scratch", "emptyDir": {}}),
    ];
    let mut mounts: Vec<Value> = all.iter().map(|v| json!({"name": v["name"], "mountPath": format!("/{}", v["name"].as_str().unwrap())})).collect();
    mounts.push(json!({"name": "scratch", "mountPath": "/part", "subPath": "part"}));
    (all, json!({"volumeMounts": mounts}))
}

fn sidecar(pod: &str, name: &str) -> Value {
    let probe = json!({"exec": {"command": ["grep", "run", format!("/marks/{pod}.{name}")]}, "periodSeconds": 1});
    with(part(pod, name, ENDS), json!({"restartPolicy": "Always", "startupProbe": probe}))
}

fn hooks() -> Value {
    let exec = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
    json!({"lifecycle": {"postStart": exec("sleep 0.3"), "preStop": exec("sleep 0.5")}})
}

impl Pods {
    pub fn lasts(name: &str) -> bool {
        LASTING.contains(&name)
    }

    pub fn made(&self) -> u64 {
        self.made
    }

    /// Creates what lasts and what has an end, and waits for it.
    pub async fn start(cluster: &Cluster) -> Self {
        cluster.create("ConfigMap", "soak-settings", json!({"data": {"greeting": "hello"}})).await;
        cluster.create("Secret", "soak-password", json!({"stringData": {"word": "s3cret"}})).await;
        let (volumes, mounts) = volumes();
        let served = "mkdir /tmp/www; echo hello > /tmp/www/page; exec httpd -f -p 8080 -h /tmp/www";
        let get = json!({"httpGet": {"path": "/page", "port": 8080}, "periodSeconds": 1, "failureThreshold": 5, "timeoutSeconds": 5});
        let probes = json!({"startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 60}, "readinessProbe": get,
            "livenessProbe": {"exec": {"command": ["cat", "/tmp/www/page"]}, "periodSeconds": 1, "failureThreshold": 5, "timeoutSeconds": 5}});
        let amounts = json!({"cpu": "100m", "memory": "32Mi"});
        let init = |name: &str| part("chain", name, "sleep 0.2");
        let counted = "[ $(wc -l < /marks/thrice.c) -ge 3 ]";
        for (name, spec) in [
            ("plain", spec("Always", vec![], vec![part("plain", "a", LASTS), part("plain", "b", LASTS)], vec![])),
            ("chain", spec("Always", vec![init("first"), sidecar("chain", "side"), init("second")], vec![part("chain", "main", LASTS)], vec![])),
            ("well", spec("Always", vec![], vec![with(part("well", "web", served), probes)], vec![])),
            ("filled", spec("Always", vec![], vec![with(part("filled", "c", LASTS), mounts)], volumes)),
            ("taught", spec("Always", vec![], vec![with(part("taught", "c", ENDS), hooks())], vec![])),
            (
                "bounded",
                spec(
                    "Always",
                    vec![],
                    vec![with(part("bounded", "c", LASTS), json!({"resources": {"requests": amounts, "limits": amounts}}))],
                    vec![],
                ),
            ),
            ("mortal", spec("Always", vec![], vec![part("mortal", "c", LASTS)], vec![])),
            ("once", spec("Never", vec![], vec![part("once", "c", "exit 0")], vec![])),
            ("thrice", spec("OnFailure", vec![], vec![part("thrice", "c", counted)], vec![])),
        ] {
            cluster.pod(name, spec).await;
        }
        write_manifest("manifest");
        for name in LASTING {
            cluster.until_ready(name).await;
        }
        Self::default()
    }

    pub async fn lasting_uids(&self, cluster: &Cluster) -> Vec<String> {
        let pods = cluster.pods().list(&ListParams::default()).await.unwrap().items;
        let mirrored =
            |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.annotations.as_ref().and_then(|all| all.get("kubernetes.io/config.hash").cloned());
        let lasting = pods.into_iter().filter(|pod| pod.metadata.name.as_deref().is_some_and(Self::lasts));
        lasting.filter_map(|pod| mirrored(&pod).or(pod.metadata.uid)).collect()
    }

    /// Creates a pod and, when there are enough, deletes one in whatever state it is.
    pub async fn churn(&mut self, cluster: &Cluster, random: &mut Random) {
        self.made += 1;
        let name = format!("churn-{}", self.made);
        let n = name.as_str();
        let (volumes, mounts) = volumes();
        let (phase, containers, spec) = match random.below(6) {
            0 => ("Running", vec!["c"], spec("Always", vec![], vec![part(n, "c", ENDS)], vec![])),
            1 => {
                let init = with(part(n, "init", "cat /all/token > /scratch/token"), mounts.clone());
                ("Running", vec!["init", "c"], spec("Always", vec![init], vec![with(part(n, "c", ENDS), mounts)], volumes))
            }
            2 => ("Succeeded", vec!["c", "d"], spec("Never", vec![], vec![part(n, "c", "exit 0"), part(n, "d", "sleep 0.5")], vec![])),
            3 => ("Running", vec!["c"], spec("Always", vec![], vec![with(part(n, "c", ENDS), hooks())], vec![])),
            4 => ("Succeeded", vec!["init", "c"], spec("OnFailure", vec![part(n, "init", "sleep 0.2")], vec![part(n, "c", "exit 0")], vec![])),
            _ => ("Running", vec!["side", "c"], spec("Always", vec![sidecar(n, "side")], vec![part(n, "c", LASTS)], vec![])),
        };
        cluster.pod(n, spec).await;
        self.passing.push(Passing { name, phase, containers });
        if self.passing.len() > MOST {
            let at = random.below(self.passing.len() as u64) as usize;
            let gone = self.passing.remove(at).name;
            let forced = random.below(8) == 0;
            let params = if forced { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
            cluster.pods().delete(&gone, &params).await.unwrap();
        }
    }

    /// A pod whose start fails until [`Self::starts_succeed`].
    pub async fn failing_starts(&mut self, cluster: &Cluster) {
        self.made += 1;
        let name = format!("waits-{}", self.made);
        let volume = json!({"name": "later", "hostPath": {"path": format!("{MARKS}/later-{name}"), "type": "Directory"}});
        cluster.pod(&name, spec("Always", vec![], vec![part(&name, "c", ENDS)], vec![volume])).await;
        cluster.until_event(&name, "FailedMount").await;
        self.failing.push(name);
    }

    pub async fn starts_succeed(&mut self, cluster: &Cluster) {
        for name in std::mem::take(&mut self.failing) {
            std::fs::create_dir(format!("{MARKS}/later-{name}")).unwrap();
            cluster.until_ready(&name).await;
            cluster.delete(&name).await;
        }
    }

    /// Ends the only container of `mortal` from outside, if it runs.
    pub fn kill_the_mortal(&self) {
        let listed = ctr(&["containers", "list", "labels.\"io.kubernetes.pod.name\"==mortal,labels.\"io.kubernetes.container.name\"==c", "--quiet"]);
        for id in listed.unwrap_or_default().lines() {
            // Those that have ended have no task.
            let _ = ctr(&["tasks", "kill", "--signal", "9", id]);
        }
    }

    /// Ends it, and waits for another run.
    pub async fn mortal_restarts_by_itself(&self, watch: &Watch) {
        let runs = marks("mortal", "c");
        self.kill_the_mortal();
        wait("another run of the mortal without the API server", async || if marks("mortal", "c") > runs { Ok(()) } else { Err(String::new()) })
            .await;
        watch.verdict("a restart without the API server");
    }

    /// A static pod needs no API server.
    pub async fn static_pod_comes_and_goes(&mut self, watch: &Watch) {
        self.made += 1;
        let name = format!("static-{}", self.made);
        write_manifest(&name);
        wait("the static pod's run", async || if marks(&name, "c") == 1 { Ok(()) } else { Err(String::new()) }).await;
        remove_manifest(&name);
        let of_pod = format!("labels.\"io.kubernetes.pod.name\"=={name}-{NODE}");
        wait("the static pod's end", async || {
            let listed = ctr(&["containers", "list", &of_pod, "--quiet"])?;
            if listed.is_empty() { Ok(()) } else { Err(listed) }
        })
        .await;
        watch.verdict("a static pod's life");
    }

    /// Waits until every pod is as it should be: in the API, in the runtime and by its marks.
    pub async fn converge(&mut self, cluster: &Cluster, watch: &Watch, after: &str) {
        wait(&format!("all pods as they should be, after {after}"), async || {
            let wrong = self.wrong(cluster, watch).await?;
            if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?}\nthe agent says:\n{}", cluster.node.log())) }
        })
        .await;
        let doubled = self.doubled(cluster).await;
        assert!(doubled.is_empty(), "after {after}: {doubled:#?}");
    }

    async fn wrong(&self, cluster: &Cluster, watch: &Watch) -> Result<Vec<String>, String> {
        let pods = cluster.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let runs = running(&watch.cri).await.map_err(|error| error.to_string())?;
        let mut wrong = Vec::new();
        let mut expected: BTreeMap<&str, &str> = LASTING.iter().map(|name| (*name, "Running")).collect();
        expected.extend([("mortal", "Running"), ("once", "Succeeded")]);
        expected.extend(self.passing.iter().map(|pod| (pod.name.as_str(), pod.phase)));
        let mut uids = BTreeSet::new();
        for pod in &pods {
            let (meta, status) = (&pod.metadata, json!(pod.status));
            let name = meta.name.as_deref().unwrap();
            let own = meta.annotations.as_ref().and_then(|all| all.get("kubernetes.io/config.hash")).or(meta.uid.as_ref());
            uids.extend(own.cloned());
            match expected.remove(name) {
                Some("Running") if condition(&status, "Ready") == "True" => wrong.extend(stale(name, own.unwrap(), &status, &runs)),
                Some("Succeeded") if status["phase"] == "Succeeded" => {}
                Some("Succeeded") if status["phase"] == "Failed" && (has_lost_an_end(&status) || cut_short().contains(name)) => {}
                Some(phase) => wrong.push(format!("{name} should be {phase}: {status}")),
                None if name == "thrice" || !["churn-", "waits-", "static-"].iter().any(|own| name.starts_with(own)) => {}
                None => wrong.push(format!("{name} should be gone: {status}")),
            }
        }
        wrong.extend(expected.keys().map(|name| format!("{name} is lost")));
        wrong.extend(runs.keys().filter(|(uid, _)| !uids.contains(uid)).map(|unit| format!("{unit:?} runs and no pod is there")));
        Ok(wrong)
    }

    /// Containers that ran more often than they had to.
    async fn doubled(&self, cluster: &Cluster) -> Vec<String> {
        let (mut wrong, cut) = (Vec::new(), cut_short());
        let mut once = |pod: &str, container: &str| {
            let found = marks(pod, container);
            if found != 1 && !cut.contains(pod) {
                wrong.push(format!("{pod}/{container} ran {found} times"));
            }
        };
        for pod in &self.passing {
            pod.containers.iter().for_each(|container| once(&pod.name, container));
        }
        for (pod, containers) in [
            ("plain", &["a", "b"][..]),
            ("chain", &["first", "side", "second", "main"]),
            ("well", &["web"]),
            ("filled", &["c"]),
            ("taught", &["c"]),
            ("bounded", &["c"]),
            ("manifest", &["c"]),
            ("once", &["c"]),
        ] {
            containers.iter().for_each(|container| once(pod, container));
        }
        for pod in cluster.pods().list(&ListParams::default()).await.unwrap().items {
            let (name, status) = (pod.metadata.name.unwrap(), json!(pod.status));
            if cut.contains(&name) {
                continue;
            }
            if !LASTING.contains(&name.as_str())
                && !["mortal", "once", "thrice"].contains(&name.as_str())
                && !self.passing.iter().any(|p| p.name == name)
            {
                continue;
            }
            let all = ["containerStatuses", "initContainerStatuses"].into_iter().filter_map(|list| status[list].as_array()).flatten();
            for container in all {
                let restarts = container["restartCount"].as_u64().unwrap_or(0);
                let expected = match name.as_str() {
                    "mortal" => marks("mortal", "c") as u64 - 1,
                    "thrice" => (marks("thrice", "c") as u64).saturating_sub(1).min(2),
                    _ => 0,
                };
                if restarts != expected && name != "thrice" || restarts > expected {
                    wrong.push(format!("{name}/{} has {restarts} restarts instead of {expected}", container["name"]));
                }
            }
        }
        if marks("thrice", "c") > 3 && !cut.contains("thrice") {
            wrong.push(format!("thrice ran {} times", marks("thrice", "c")));
        }
        wrong
    }

    /// Deletes everything, the manifest too.
    pub async fn delete_all(&self, cluster: &Cluster) {
        wait("the end of the job with three runs", async || {
            let status = cluster.status("thrice").await;
            if status["phase"] == "Succeeded" && marks("thrice", "c") >= 3 { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        remove_manifest("manifest");
        cluster.pods().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
        wait("the end of all pods", async || {
            let left = cluster.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            if left.is_empty() { Ok(()) } else { Err(format!("{:?}", left.iter().map(|pod| json!(pod.metadata.name)).collect::<Vec<_>>())) }
        })
        .await;
    }
}

/// Whether containerd was killed between the end of a program and the note of it: then it tells 255, and no agent can know better.
fn has_lost_an_end(status: &Value) -> bool {
    let mut ends = status["containerStatuses"].as_array().into_iter().flatten().map(|container| &container["state"]["terminated"]);
    ends.any(|end| end["reason"] == "Unknown" && end["exitCode"] == 255)
}

/// Pods of which containerd gave up the start of a container with the agent that had asked for it, when its program may have begun: it counts
/// as a run that failed, for upstream's agent too.
fn cut_short() -> BTreeSet<String> {
    let log = std::fs::read_to_string("/run/containerd.log").unwrap_or_default();
    let after =
        |line: &str, mark: &str| line.split_once(mark).map(|(_, rest)| rest.chars().take_while(|c| !"\\\",".contains(*c)).collect::<String>());
    let cut = log.lines().filter(|line| line.contains("failed to start containerd task") && line.contains("context canceled"));
    let containers: BTreeSet<String> = cut.filter_map(|line| after(line, "StartContainer for \\\"")).collect();
    let made = log.lines().filter(|line| after(line, "returns container id \\\"").is_some_and(|id| containers.contains(&id)));
    let sandboxes: BTreeSet<String> = made.filter_map(|line| after(line, "within sandbox \\\"")).collect();
    let of = log.lines().filter(|line| after(line, "returns sandbox id \\\"").is_some_and(|id| sandboxes.contains(&id)));
    of.filter_map(|line| after(line, "PodSandboxMetadata{Name:")).collect()
}

/// Running containers that the status does not name, or the other way round.
fn stale(name: &str, uid: &str, status: &Value, runs: &BTreeMap<Unit, Vec<String>>) -> Option<String> {
    let lists = ["containerStatuses", "initContainerStatuses"].into_iter().filter_map(|list| status[list].as_array()).flatten();
    let told: BTreeSet<String> = lists
        .filter(|container| !container["state"]["running"].is_null())
        .filter_map(|container| Some(container["containerID"].as_str()?.trim_start_matches("containerd://").to_owned()))
        .collect();
    let real: BTreeSet<String> = runs.iter().filter(|((of, _), _)| of == uid).flat_map(|(_, ids)| ids.iter().cloned()).collect();
    (told != real).then(|| format!("{name} is told to run as {told:?} and runs as {real:?}"))
}

fn write_manifest(name: &str) {
    let spec = spec("Always", vec![], vec![with(part(name, "c", LASTS), json!({"image": IMAGE}))], vec![]);
    let mut manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(1);
    std::fs::write(format!("{MANIFESTS}/.{name}"), manifest.to_string()).unwrap();
    std::fs::rename(format!("{MANIFESTS}/.{name}"), format!("{MANIFESTS}/{name}.json")).unwrap();
}

pub fn remove_manifest(name: &str) {
    std::fs::remove_file(format!("{MANIFESTS}/{name}.json")).unwrap();
}

/// How often a container ran.
fn marks(pod: &str, container: &str) -> usize {
    std::fs::read_to_string(format!("{MARKS}/{pod}.{container}")).unwrap_or_default().lines().count()
}

/// Waits for a cause, at most [`LIMIT`].
async fn wait(what: &str, mut look: impl AsyncFnMut() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(seen) = look().await {
        assert!(began.elapsed() < LIMIT, "{what} did not come: {seen}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
