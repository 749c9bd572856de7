//! `status.typeChecking` of ValidatingAdmissionPolicies, as the control plane writes it.

mod common;

use common::TestServer;
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

async fn status(server: &TestServer, name: &str, generation: i64) -> Value {
    let path = format!("{GROUP}/{name}");
    test_lab::until_async(format!("the status of {name} is of generation {generation}"), async || {
        let text = server.admin().request_text(http::Request::get(&path).body(Vec::new()).unwrap()).await.unwrap();
        let policy: Value = serde_json::from_str(&text).unwrap();
        (policy["status"]["observedGeneration"] == generation).then_some(policy)
    })
    .await
}

fn policy(name: &str, group: &str, resource: &str, expressions: &[&str]) -> Value {
    let rule = json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]});
    let validations: Vec<Value> = expressions.iter().map(|expression| json!({"expression": expression})).collect();
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": validations}})
}

#[tokio::test]
async fn policies_are_checked_against_the_kinds_they_name() {
    let server = TestServer::start().await;
    let schema =
        json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.unwrap();
    server.post(GROUP, &policy("good", "apps", "deployments", &["object.spec.replicas < 5"])).await.unwrap();
    server.post(GROUP, &policy("bad", "apps", "deployments", &["object.spec.replicas < 5", "object.spec.replica < 5"])).await.unwrap();
    let custom = ["object.spec.size < 5 && object.metadata.labels['a'] == 'b'", "object.spec.size == 'five'"];
    server.post(GROUP, &policy("custom", "example.com", "things", &custom)).await.unwrap();
    let good = status(&server, "good", 1).await;
    assert_eq!(good["status"], json!({"observedGeneration": 1, "typeChecking": {}}));
    let owners: Vec<&str> = good["metadata"]["managedFields"].as_array().unwrap().iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
    assert!(owners.contains(&"validatingadmissionpolicy-status-controller"), "{owners:?}");
    let mut bad = status(&server, "bad", 1).await;
    let warnings = bad["status"]["typeChecking"]["expressionWarnings"].as_array().unwrap().clone();
    assert_eq!((warnings.len(), &warnings[0]["fieldRef"]), (1, &json!("spec.validations[1].expression")));
    let text = "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replica'\n | object.spec.replica < 5\n | ...........^\n";
    assert_eq!(warnings[0]["warning"], text);
    let custom = status(&server, "custom", 1).await;
    let warnings = custom["status"]["typeChecking"]["expressionWarnings"].as_array().unwrap();
    assert_eq!((warnings.len(), &warnings[0]["fieldRef"]), (1, &json!("spec.validations[1].expression")), "{warnings:?}");
    bad["spec"]["validations"][1]["expression"] = "object.spec.replicas > 0".into();
    server.put(&format!("{GROUP}/bad"), &bad).await.unwrap();
    let repaired = status(&server, "bad", 2).await;
    assert_eq!(repaired["status"], json!({"observedGeneration": 2, "typeChecking": {}}));
    server.stop().await;
}
