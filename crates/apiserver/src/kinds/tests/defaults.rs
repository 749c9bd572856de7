//! Each kind's defaults, and that applying them twice is applying them once.

use crate::kinds::by_resource;
use serde_json::{Value, json};

fn applied(group: &str, plural: &str, mut object: Value) -> Value {
    let info = by_resource(group, "v1", plural).unwrap();
    info.apply_defaults(&mut object);
    let mut again = object.clone();
    info.apply_defaults(&mut again);
    assert_eq!(again, object, "not idempotent");
    object
}

#[test]
fn a_minimal_pod_is_filled_in() {
    let pod = applied("", "pods", json!({"spec": {"containers": [{"name": "a", "image": "nginx", "ports": [{"containerPort": 80}]}]}}));
    assert_eq!(
        pod["spec"],
        json!({
            "containers": [{
                "name": "a", "image": "nginx", "ports": [{"containerPort": 80, "protocol": "TCP"}], "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {},
            }],
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "schedulerName": "default-scheduler", "enableServiceLinks": true,
        })
    );
}

#[test]
fn what_the_client_said_stays() {
    let spec = json!({"spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "enableServiceLinks": false, "dnsPolicy": "None",
        "containers": [{"name": "a", "image": "a:1", "imagePullPolicy": "Never", "livenessProbe": {"httpGet": {"port": 1, "path": "/x"}, "periodSeconds": 5}}],
    }});
    let pod = applied("", "pods", spec)["spec"].clone();
    assert_eq!(
        (&pod["restartPolicy"], &pod["terminationGracePeriodSeconds"], &pod["enableServiceLinks"]),
        (&json!("Never"), &json!(0), &json!(false))
    );
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "Never");
    assert_eq!(
        pod["containers"][0]["livenessProbe"],
        json!({"httpGet": {"port": 1, "path": "/x", "scheme": "HTTP"}, "periodSeconds": 5, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3})
    );
}

#[test]
fn parts_of_pods_are_filled_in() {
    let cases = [
        ("/volumes/0", json!({"volumes": [{"name": "v"}]}), json!({"name": "v", "emptyDir": {}})),
        ("/volumes/0/secret", json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}), json!({"secretName": "s", "defaultMode": 420})),
        ("/volumes/0/hostPath", json!({"volumes": [{"name": "v", "hostPath": {"path": "C:\\x"}}]}), json!({"path": "C:\\x", "type": ""})),
        (
            "/volumes/0/projected",
            json!({"volumes": [{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]}}]}),
            json!({"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace", "apiVersion": "v1"}}]}},
            ]}),
        ),
        (
            "/containers/0/resources",
            json!({"containers": [{"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}]}),
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}),
        ),
        (
            "/containers/0/ports/0",
            json!({"hostNetwork": true, "containers": [{"ports": [{"containerPort": 80}]}]}),
            json!({"containerPort": 80, "protocol": "TCP", "hostPort": 80}),
        ),
        (
            "/containers/0/env/0/valueFrom",
            json!({"containers": [{"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}]}),
            json!({"fieldRef": {"fieldPath": "status.podIP", "apiVersion": "v1"}}),
        ),
        ("/serviceAccount", json!({"serviceAccountName": "x"}), json!("x")),
        ("/serviceAccountName", json!({"serviceAccount": "x"}), json!("x")),
    ];
    for (pointer, spec, expected) in cases {
        let pod = applied("", "pods", json!({"spec": spec}));
        assert_eq!(pod["spec"].pointer(pointer), Some(&expected), "{pointer}");
    }
}

#[test]
fn deployments_get_their_strategy_and_template() {
    let object = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b:1", "resources": {"limits": {"cpu": "1"}}}]}}}});
    let spec = applied("apps", "deployments", object)["spec"].clone();
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["strategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}));
    assert_eq!((&spec["revisionHistoryLimit"], &spec["progressDeadlineSeconds"]), (&json!(10), &json!(600)));
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Always");
    assert!(pod.get("enableServiceLinks").is_none(), "only pods get it");
    assert!(pod["containers"][0]["resources"].get("requests").is_none(), "only pods get requests from limits");
    let recreate = applied("apps", "deployments", json!({"spec": {"replicas": 0, "strategy": {"type": "Recreate"}}}))["spec"].clone();
    assert_eq!((&recreate["replicas"], &recreate["strategy"]), (&json!(0), &json!({"type": "Recreate"})));
}

#[test]
fn services_get_type_ports_and_policies() {
    let spec = |object: Value| applied("", "services", json!({"spec": object}))["spec"].clone();
    assert_eq!(
        spec(json!({"ports": [{"port": 80}]})),
        json!({
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "sessionAffinity": "None", "type": "ClusterIP",
            "internalTrafficPolicy": "Cluster",
        })
    );
    assert_eq!(spec(json!({"type": "NodePort"}))["externalTrafficPolicy"], "Cluster");
    assert!(spec(json!({"type": "ExternalName"})).get("internalTrafficPolicy").is_none());
    assert_eq!(spec(json!({"type": "LoadBalancer"}))["allocateLoadBalancerNodePorts"], true);
    assert_eq!(spec(json!({"sessionAffinity": "ClientIP"}))["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    assert_eq!(spec(json!({"ports": [{"port": 80, "targetPort": "web"}]}))["ports"][0]["targetPort"], "web");
}

#[test]
fn the_small_kinds_get_theirs() {
    assert_eq!(applied("", "secrets", json!({}))["type"], "Opaque");
    assert_eq!(applied("", "nodes", json!({"status": {"capacity": {"cpu": "8"}}}))["status"]["allocatable"], json!({"cpu": "8"}));
    assert_eq!(applied("", "namespaces", json!({"metadata": {"name": "a"}}))["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "a"}));
    let slice = applied("discovery.k8s.io", "endpointslices", json!({"ports": [{"port": 80}]}));
    assert_eq!(slice["ports"][0], json!({"port": 80, "name": "", "protocol": "TCP"}));
    let binding = json!({"subjects": [{"kind": "User", "name": "a"}, {"kind": "ServiceAccount", "name": "b"}], "roleRef": {"kind": "Role"}});
    let binding = applied("rbac.authorization.k8s.io", "rolebindings", binding);
    assert_eq!(binding["subjects"][0]["apiGroup"], "rbac.authorization.k8s.io");
    assert!(binding["subjects"][1].get("apiGroup").is_none());
}
