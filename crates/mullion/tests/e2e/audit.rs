//! The audit log of a cluster, as a user switches it on.

use std::fs;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::cluster::{Cluster, PATIENCE, until};

/// A policy for one namespace, so that the log stays small.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- {level: Metadata, namespaces: [audited], verbs: [get, list, watch]}
- {level: RequestResponse, namespaces: [audited]}
";

/// The policy as a file.
pub fn policy() -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), POLICY).expect("a written file");
    file
}

/// What the log says of requests of kubectl, with their stages.
pub fn requests(cluster: &Cluster) {
    cluster.kubectl(&["create", "namespace", "audited"]);
    cluster.kubectl(&["-n", "audited", "create", "configmap", "one", "--from-literal=key=value"]);
    assert_eq!(cluster.try_kubectl(&["-n", "audited", "get", "configmap", "two"], "").code, Some(1));
    assert_eq!(cluster.try_kubectl(&["-n", "audited", "get", "pods", "--as", "nobody"], "").code, Some(1));
    let watched = cluster.kubectl(&["get", "--raw", "/api/v1/namespaces/audited/configmaps?watch=true&timeoutSeconds=1"]);
    assert!(watched.contains(r#""type":"ADDED""#), "{watched}");
    let path = cluster.place.dir().join("log").join("audit.log");
    let read = || -> Vec<Value> {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
    };
    let own = |event: &Value| event["user"]["username"] == "kubernetes-admin";
    // The line may come after kubectl's end.
    let events: Vec<Value> = until("the end of the watch is logged", PATIENCE, || {
        let events: Vec<Value> = read().into_iter().filter(own).collect();
        let ended = events.iter().any(|event| event["verb"] == "watch" && event["stage"] == "ResponseComplete");
        if ended { Ok(events) } else { Err(format!("{events:?}")) }
    });
    let of = |verb: &str, code: u16| {
        let found =
            events.iter().find(|event| event["verb"] == verb && event["responseStatus"]["code"] == code && event["stage"] == "ResponseComplete");
        found.unwrap_or_else(|| panic!("no {verb} with {code}: {events:?}"))
    };
    let made = of("create", 201);
    let object = json!({"resource": "configmaps", "namespace": "audited", "name": "one", "apiVersion": "v1"});
    assert_eq!((&made["level"], &made["objectRef"]), (&json!("RequestResponse"), &object));
    assert_eq!((&made["requestObject"]["data"], &made["responseObject"]["data"]), (&json!({"key": "value"}), &json!({"key": "value"})));
    assert!(made["userAgent"].as_str().is_some_and(|agent| agent.starts_with("kubectl/")), "{made}");
    assert_eq!(made["annotations"]["authorization.k8s.io/decision"], "allow");
    let missing = of("get", 404);
    assert_eq!((&missing["level"], &missing["objectRef"]["name"]), (&json!("Metadata"), &json!("two")));
    let refused = of("list", 403);
    assert_eq!((&refused["impersonatedUser"]["username"], &refused["objectRef"]["resource"]), (&json!("nobody"), &json!("pods")));
    let stages: Vec<&str> = events.iter().filter(|event| event["verb"] == "watch").filter_map(|event| event["stage"].as_str()).collect();
    assert_eq!(stages[..3], ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    cluster.kubectl(&["delete", "namespace", "audited"]);
}
