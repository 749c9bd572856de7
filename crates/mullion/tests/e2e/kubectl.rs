//! Unmodified kubectl on an object of each main kind: apply, get, describe, explain, patch, wait, rollout, delete. No node runs anything.

use serde_json::Value;

use crate::cluster::Cluster;

/// Objects that no controller needs a node for.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: tour}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: tour}
data: {key: value}
---
apiVersion: v1
kind: Secret
metadata: {name: one, namespace: tour}
data: {key: dmFsdWU=}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: one, namespace: tour}
---
apiVersion: v1
kind: Service
metadata: {name: one, namespace: tour}
spec: {selector: {app: one}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: one, namespace: tour}
spec: {replicas: 0, selector: {matchLabels: {app: one}}, template: {metadata: {labels: {app: one}}, spec: {containers: [{name: web, image: "microsoft/iis:1"}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: one, namespace: tour}
spec: {replicas: 0, serviceName: one, selector: {matchLabels: {app: one}}, template: {metadata: {labels: {app: one}}, spec: {containers: [{name: web, image: "microsoft/iis:1"}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: one, namespace: tour}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: web, image: "microsoft/iis:1"}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: one, namespace: tour}
spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: web, image: "microsoft/iis:1"}]}}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: one, namespace: tour}
spec: {defaultBackend: {service: {name: one, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: one, namespace: tour}
spec: {podSelector: {}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: one, namespace: tour}
spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: one}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: one, namespace: tour}
spec: {minAvailable: 1, selector: {matchLabels: {app: one}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: one, namespace: tour}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: one, namespace: tour}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: one}
subjects: [{kind: ServiceAccount, name: one, namespace: tour}]
"#;

/// A resource as kubectl names it, and what its description must say.
const KINDS: [(&str, &str); 14] = [
    ("configmap", "value"),
    ("secret", "key:  5 bytes"),
    ("serviceaccount", "Image pull secrets:"),
    ("service", "Selector:"),
    ("deployment", "StrategyType:"),
    ("statefulset", "Pod Template:"),
    ("job", "Parallelism:"),
    ("cronjob", "Schedule:"),
    ("ingress", "Default backend:"),
    ("networkpolicy", "Allowing ingress traffic:"),
    ("hpa", "Max replicas:"),
    ("pdb", "Min available:"),
    ("role", "PolicyRule:"),
    ("rolebinding", "Subjects:"),
];

pub fn tour(cluster: &Cluster) {
    let kubectl = |args: &[&str]| cluster.kubectl(&[&["-n", "tour"], args].concat());
    let first = cluster.apply(OBJECTS);
    assert_eq!(first.lines().filter(|line| line.ends_with(" created")).count(), 15, "{first}");
    // kubectl sends the selector of a PodDisruptionBudget whenever it is there: its patch strategy is "replace".
    let again = cluster.apply(OBJECTS);
    let changed: Vec<&str> = again.lines().filter(|line| !line.ends_with(" unchanged")).collect();
    assert_eq!(changed, ["poddisruptionbudget.policy/one configured"], "{again}");
    let generation = kubectl(&["get", "pdb", "one", "-o", "jsonpath={.metadata.generation}"]);
    assert_eq!((again.lines().count(), generation.as_str()), (15, "1"), "the same selector changes nothing");
    let server_side = cluster.try_kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], OBJECTS).ok("apply --server-side");
    assert_eq!(server_side.lines().filter(|line| line.ends_with(" serverside-applied")).count(), 15, "{server_side}");
    for (kind, described) in KINDS {
        let table = kubectl(&["get", kind, "one", "-o", "wide"]);
        assert!(table.starts_with("NAME") && table.lines().nth(1).is_some_and(|line| line.starts_with("one ")), "{kind}: {table}");
        let text = kubectl(&["describe", kind, "one"]);
        assert!(text.starts_with("Name:") && text.contains(described), "{kind}: {text}");
        assert!(kubectl(&["explain", kind]).contains("FIELDS:"), "{kind}");
        for (format, patch) in [
            ("merge", r#"{"metadata":{"labels":{"by":"merge"}}}"#),
            ("strategic", r#"{"metadata":{"labels":{"by":"strategic"}}}"#),
            ("json", r#"[{"op":"replace","path":"/metadata/labels/by","value":"json"}]"#),
        ] {
            kubectl(&["patch", kind, "one", "--type", format, "-p", patch]);
            assert_eq!(kubectl(&["get", kind, "one", "-o", "jsonpath={.metadata.labels.by}"]), format, "{kind}");
        }
        kubectl(&["wait", kind, "one", "--for=jsonpath={.metadata.labels.by}=json", "--timeout=60s"]);
        kubectl(&["label", kind, "one", "by-"]);
        assert_eq!(kubectl(&["get", kind, "one", "-o", "jsonpath={.metadata.labels.by}"]), "", "{kind}");
        let list: Value = serde_json::from_str(&kubectl(&["get", kind, "-o", "json"])).expect("JSON");
        assert!(list["items"].as_array().is_some_and(|items| items.iter().any(|item| item["metadata"]["name"] == "one")), "{list}");
    }
    rolls_out(cluster);
    for (kind, _) in KINDS {
        assert!(kubectl(&["delete", kind, "one", "--wait=true"]).contains("deleted"), "{kind}");
        let gone = cluster.try_kubectl(&["-n", "tour", "get", kind, "one"], "");
        assert!(gone.code == Some(1) && gone.err.contains("(NotFound)") && gone.err.contains("\"one\" not found"), "{kind}: {gone:?}");
    }
    cluster.kubectl(&["delete", "namespace", "tour"]);
}

/// Revisions of the Deployment, which has no pods.
fn rolls_out(cluster: &Cluster) {
    let kubectl = |args: &[&str]| cluster.kubectl(&[&["-n", "tour"], args].concat());
    let image = || kubectl(&["get", "deployment", "one", "-o", "jsonpath={.spec.template.spec.containers[0].image}"]);
    kubectl(&["rollout", "status", "deployment/one", "--timeout=60s"]);
    kubectl(&["set", "image", "deployment/one", "web=microsoft/iis:2"]);
    kubectl(&["rollout", "status", "deployment/one", "--timeout=60s"]);
    assert_eq!(image(), "microsoft/iis:2");
    let history = kubectl(&["rollout", "history", "deployment/one"]);
    assert!(history.contains("REVISION") && history.lines().any(|line| line.starts_with('2')), "{history}");
    kubectl(&["rollout", "undo", "deployment/one"]);
    kubectl(&["rollout", "status", "deployment/one", "--timeout=60s"]);
    assert_eq!(image(), "microsoft/iis:1");
    kubectl(&["rollout", "pause", "deployment/one"]);
    kubectl(&["rollout", "resume", "deployment/one"]);
    kubectl(&["rollout", "restart", "deployment/one"]);
    let stamp = kubectl(&["get", "deployment", "one", "-o", "jsonpath={.spec.template.metadata.annotations}"]);
    assert!(stamp.contains("kubectl.kubernetes.io/restartedAt"), "{stamp}");
    kubectl(&["scale", "deployment", "one", "--replicas=0", "--current-replicas=0"]);
}
