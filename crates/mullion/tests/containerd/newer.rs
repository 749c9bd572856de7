//! What newer versions of Kubernetes added to pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::json;

use crate::cluster::{Cluster, NODE_IP, condition, container};
use crate::servers::serve;

pub async fn exit_codes_decide_on_restarts(cluster: Arc<Cluster>) {
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
    let script = "[ -e /all/again ] && exit 7; touch /all/again; exit 42";
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule], "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "all", "mountPath": "/all"}]}],
        "volumes": [{"name": "all", "emptyDir": {}}],
    });
    cluster.pod("ruled", spec).await;
    let status = cluster.until_phase("ruled", "Failed").await;
    let c = container(&status, "c");
    let codes = [&c["lastState"], &c["state"]].map(|state| state["terminated"]["exitCode"].as_i64());
    assert_eq!((c["restartCount"].as_i64(), codes), (Some(1), [Some(42), Some(7)]), "{c}");
}

pub async fn variables_come_from_a_file_of_an_earlier_container(cluster: Arc<Cluster>) {
    let key = |name: &str, key: &str, optional: bool| json!({"name": name, "valueFrom": {"fileKeyRef": {"volumeName": "made", "path": "deep/made.env", "key": key, "optional": optional}}});
    let write = "mkdir /made/deep; printf \"GREETING='hello world'\\nOTHER='x'\\n\" > /made/deep/made.env";
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "maker", "command": ["sh", "-c", write], "volumeMounts": [{"name": "made", "mountPath": "/made"}]}],
        "containers": [{"name": "c", "command": ["sh", "-c", "echo \"$WORDS, ${NONE-unset}\"; ls /made 2>/dev/null || echo no volume"],
            "env": [key("WORDS", "GREETING", false), key("NONE", "ABSENT", true)]}],
        "volumes": [{"name": "made", "emptyDir": {}}],
    });
    cluster.pod("from-file", spec).await;
    assert_eq!(cluster.output("from-file").await, "hello world, unset\nno volume\n");
}

pub async fn trusted_certificates_are_a_file(cluster: Arc<Cluster>) {
    let certificate = std::fs::read_to_string("/run/ca.crt").unwrap();
    let bundle = json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle", "metadata": {"name": "tests"},
        "spec": {"trustBundle": certificate}});
    cluster.create_whole(bundle).await;
    let sources = json!([{"clusterTrustBundle": {"name": "tests", "path": "ca.pem"}}]);
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{"name": "c", "command": ["cat", "/trust/ca.pem"], "volumeMounts": [{"name": "trust", "mountPath": "/trust"}]}],
        "volumes": [{"name": "trust", "projected": {"sources": sources}}],
    });
    cluster.pod("trusting", spec).await;
    assert_eq!(cluster.output("trusting").await.trim(), certificate.trim());
}

/// `grpc.health.v1.HealthCheckResponse.status`.
const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;

/// The test answers in the place of a program of the pod, which has the node's network.
pub async fn a_grpc_health_check_gates_readiness(cluster: Arc<Cluster>) {
    const PORT: u16 = 7070;
    let health = Arc::new(AtomicU8::new(NOT_SERVING));
    let given = health.clone();
    let answer = move |request: &http::Request<hyper::body::Incoming>| {
        let asked = request.uri().path() == "/grpc.health.v1.Health/Check";
        // Not compressed, two bytes long: field 1, the status.
        let message = Bytes::from(vec![0, 0, 0, 0, 2, 0x08, given.load(Ordering::SeqCst)]);
        let code = HeaderValue::from_static(if asked { "0" } else { "12" });
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), code)]);
        let body = Full::new(message).with_trailers(std::future::ready(Some(Ok(trailers))));
        Response::builder().header(CONTENT_TYPE, "application/grpc").body(body).unwrap()
    };
    serve(&format!("{NODE_IP}:{PORT}"), answer).await;
    let probe = json!({"grpc": {"port": PORT, "service": "web"}, "periodSeconds": 1, "failureThreshold": 1});
    let spec = json!({"hostNetwork": true, "containers": [{"name": "c", "command": ["sleep", "1000"], "readinessProbe": probe}]});
    cluster.pod("healthy", spec).await;
    cluster.until_event("healthy", "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")").await;
    assert_eq!(condition(&cluster.status("healthy").await, "Ready"), "False");
    health.store(SERVING, Ordering::SeqCst);
    cluster.until_ready("healthy").await;
    health.store(NOT_SERVING, Ordering::SeqCst);
    cluster.until_status("healthy", "no readiness", |status| condition(status, "Ready") == "False").await;
}
