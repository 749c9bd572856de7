//! Workloads with an identity and workloads that scale themselves, on Windows pods.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, until};
use crate::manifests;

/// Three pods of one claim each; `WORD` is the variable that an update changes.
fn database(word: &str, partition: u32) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: db}}
spec: {{clusterIP: None, selector: {{app: db}}, ports: [{{port: 80}}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  replicas: 3
  updateStrategy: {{type: RollingUpdate, rollingUpdate: {{partition: {partition}}}}}
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      nodeSelector: {{kubernetes.io/os: windows}}
      terminationGracePeriodSeconds: 5
      containers:
      - name: main
        image: mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022
        ports: [{{containerPort: 80}}]
        env: [{{name: WORD, value: {word}}}]
        readinessProbe: {{httpGet: {{path: /, port: 80}}, periodSeconds: 1}}
        volumeMounts: [{{name: data, mountPath: 'C:\\data'}}]
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
"
    )
}

/// What a command prints in a Windows pod.
#[track_caller]
fn exec(cluster: &Cluster, pod: &str, argv: &[&str]) -> String {
    cluster.kubectl(&[&["exec", pod, "--"], argv].concat()).replace('\r', "")
}

/// The pods of the StatefulSet by name, when these are all and they are Ready and run this revision of the template.
#[track_caller]
fn members(cluster: &Cluster, words: &[(&str, &str)]) -> Vec<Value> {
    until(&format!("the pods {words:?}"), PATIENCE, || {
        let mut pods = cluster.pods("db");
        pods.sort_by_key(|pod| pod["metadata"]["name"].as_str().map(str::to_owned));
        let is_leaving = pods.iter().any(|pod| pod["metadata"]["deletionTimestamp"].is_string());
        let found: Vec<(&str, &str)> = pods
            .iter()
            .filter(|pod| crate::pods::ready(pod))
            .map(|pod| {
                let word = &pod["spec"]["containers"][0]["env"][0]["value"];
                (pod["metadata"]["name"].as_str().unwrap_or_default(), word.as_str().unwrap_or_default())
            })
            .collect();
        if !is_leaving && found == words && pods.len() == words.len() { Ok(pods.clone()) } else { Err(format!("{found:?} of {} pods", pods.len())) }
    })
}

fn claims(cluster: &Cluster) -> String {
    cluster.kubectl(&["get", "pvc", "-o", "jsonpath={range .items[*]}{.metadata.name}={.status.phase} {end}"])
}

/// When a pod was created, and when it became Ready: RFC 3339 in UTC, which sorts as text.
fn times(pod: &Value) -> (&str, &str) {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").map(|condition| &condition["lastTransitionTime"]);
    (pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default(), ready.and_then(Value::as_str).unwrap_or_default())
}

/// A StatefulSet with claims: ordered start, stable names and DNS, an update down to a partition, scaling with claims that stay.
pub fn stateful_set(cluster: &Cluster) {
    cluster.apply(&database("one", 0));
    let pods = members(cluster, &[("db-0", "one"), ("db-1", "one"), ("db-2", "one")]);
    for pair in pods.windows(2) {
        let (ready, created) = (times(&pair[0]).1, times(&pair[1]).0);
        assert!(!ready.is_empty() && created >= ready, "a pod is created when the one before it is Ready: {ready} {created}");
    }
    assert_eq!(claims(cluster), "data-db-0=Bound data-db-1=Bound data-db-2=Bound ");
    // Each pod is found by the name that it has, and writes to a claim of its own.
    for (from, to) in [("db-0", "db-2"), ("db-2", "db-0")] {
        assert_eq!(exec(cluster, from, &["curl", "-s", &format!("http://{to}.db/hostname")]).trim(), to);
        exec(cluster, from, &["cmd", "/c", &format!("echo of {from}>C:\\data\\owner")]);
    }
    let node = pods[2]["spec"]["nodeName"].clone();

    cluster.apply(&database("two", 2));
    let updated = members(cluster, &[("db-0", "one"), ("db-1", "one"), ("db-2", "two")]);
    assert_eq!((&updated[2]["spec"]["nodeName"], exec(cluster, "db-2", &["cmd", "/c", "type C:\\data\\owner"]).trim()), (&node, "of db-2"));
    assert_eq!(exec(cluster, "db-0", &["curl", "-s", "http://db-2.db/hostname"]).trim(), "db-2", "the name leads to the new pod");
    let revisions = |field: &str| cluster.json(&["statefulset", "db"])["status"][field].clone();
    assert_ne!(revisions("currentRevision"), revisions("updateRevision"), "below the partition pods are as they were");
    cluster.apply(&database("two", 0));
    members(cluster, &[("db-0", "two"), ("db-1", "two"), ("db-2", "two")]);
    cluster.kubectl(&["rollout", "status", "statefulset/db", "--timeout=60s"]);

    cluster.kubectl(&["scale", "statefulset/db", "--replicas=1"]);
    members(cluster, &[("db-0", "two")]);
    assert_eq!(claims(cluster), "data-db-0=Bound data-db-1=Bound data-db-2=Bound ", "claims outlive their pods");
    cluster.kubectl(&["scale", "statefulset/db", "--replicas=3"]);
    members(cluster, &[("db-0", "two"), ("db-1", "two"), ("db-2", "two")]);
    assert_eq!(exec(cluster, "db-2", &["cmd", "/c", "type C:\\data\\owner"]).trim(), "of db-2", "a pod that comes back has its data");
    cluster.kubectl(&["delete", "statefulset,service", "db"]);
    cluster.gone("pods", "app=db");
    assert_eq!(claims(cluster), "data-db-0=Bound data-db-1=Bound data-db-2=Bound ");
    cluster.kubectl(&["delete", "pvc", "-l", "app=db"]);
}

/// A program in a pod that computes until it is told to stop.
struct Load<'a> {
    cluster: &'a Cluster,
    pod: String,
    child: Child,
}

impl<'a> Load<'a> {
    fn start(cluster: &'a Cluster, pod: String) -> Self {
        let line = "for /l %i in (1,0,2) do @if exist C:\\enough exit 0";
        let mut command = cluster.command(&["exec", &pod, "--", "cmd", "/c", line]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("kubectl exec");
        Self { cluster, pod, child }
    }

    fn stop(mut self) {
        exec(self.cluster, &self.pod, &["cmd", "/c", "echo x>C:\\enough"]);
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "the load ends by itself: {status:?}");
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An autoscaler follows the processor time of Windows pods, of a program that somebody starts in one of them, up and down.
pub fn autoscaler(cluster: &Cluster) {
    let requests = "        resources: {requests: {cpu: 100m}}";
    cluster.apply(&manifests::web("scaled", "win01", "", requests).replace("kubernetes.io/hostname: win01", "kubernetes.io/os: windows"));
    cluster.rolled_out("scaled");
    let pod = cluster.pods("scaled")[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    let load = Load::start(cluster, pod);
    cluster.apply(
        "apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaled}
spec:
  minReplicas: 1
  maxReplicas: 3
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
  behavior:
    scaleUp: {policies: [{type: Pods, value: 4, periodSeconds: 1}]}
    scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 1}]}
",
    );
    let replicas = |wanted: usize| {
        until(&format!("{wanted} Ready pods"), PATIENCE, || {
            let ready = cluster.pods("scaled").iter().filter(|pod| crate::pods::ready(pod)).count();
            if ready == wanted { Ok(()) } else { Err(cluster.kubectl(&["describe", "hpa", "scaled"])) }
        });
    };
    replicas(3);
    cluster.event("hpa", "scaled", "SuccessfulRescale", "New size: 3; reason: cpu resource utilization (percentage of request) above target");
    load.stop();
    replicas(1);
    cluster.event("hpa", "scaled", "SuccessfulRescale", "New size: 1; reason: All metrics below target");
    let status = cluster.json(&["hpa", "scaled"])["status"].clone();
    let utilization = status["currentMetrics"][0]["resource"]["current"]["averageUtilization"].as_i64();
    assert!(utilization.is_some_and(|percent| percent < 50) && status["desiredReplicas"] == 1, "{status}");
    cluster.kubectl(&["delete", "hpa,deployment,service", "scaled"]);
}
