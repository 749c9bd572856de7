//! Nobody gives what they do not have: escalation, bindings, impersonation.

use super::{RBAC, answered, made, posted};
use crate::common::TestServer;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

const LOCAL: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

/// Gives a user rules in the namespace `default`, or everywhere.
async fn hold(server: &TestServer, user: &str, everywhere: bool, rules: Value) {
    let (place, role, binding, kind) =
        if everywhere { (RBAC, "clusterroles", "clusterrolebindings", "ClusterRole") } else { (LOCAL, "roles", "rolebindings", "Role") };
    made(server, &format!("{place}/{role}"), &json!({"metadata": {"name": user}, "rules": rules})).await;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": user});
    let subjects = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]);
    made(server, &format!("{place}/{binding}"), &json!({"metadata": {"name": user}, "roleRef": role, "subjects": subjects})).await;
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

const RBAC_GROUP: &[&str] = &["rbac.authorization.k8s.io"];

#[tokio::test]
async fn a_role_grants_only_what_its_writer_holds() {
    let server = TestServer::start().await;
    let writes = || rule(RBAC_GROUP, &["roles", "clusterroles"], &["create"], &[]);
    let own = json!([writes(), rule(&[""], &["pods", "services/*"], &["get", "list"], &[]), rule(&["apps"], &["deployments"], &["*"], &["web"])]);
    hold(&server, "clerk", false, own).await;
    hold(&server, "paths", true, json!([writes(), {"nonResourceURLs": ["/debug/*"], "verbs": ["get"]}])).await;
    hold(&server, "escalator", false, json!([rule(RBAC_GROUP, &["roles"], &["create", "escalate"], &[])])).await;
    let roles = format!("{LOCAL}/roles");
    let clusters = format!("{RBAC}/clusterroles");
    let cases = [
        ("clerk", &roles, rule(&[""], &["pods"], &["get"], &[]), true),
        ("clerk", &roles, rule(&[""], &["pods"], &["get"], &["one"]), true),
        ("clerk", &roles, rule(&[""], &["pods", "services/proxy"], &["get", "list"], &[]), false),
        ("clerk", &roles, rule(&[""], &["pods"], &["get", "delete"], &[]), false),
        ("clerk", &roles, rule(&[""], &["pods/log"], &["get"], &[]), false),
        ("clerk", &roles, rule(&[""], &["*"], &["get"], &[]), false),
        ("clerk", &roles, rule(&["*"], &["pods"], &["get"], &[]), false),
        ("clerk", &roles, rule(&["", "apps"], &["pods"], &["get"], &[]), false),
        ("clerk", &roles, rule(&[""], &["pods"], &["*"], &[]), false),
        ("clerk", &roles, rule(&["apps"], &["deployments"], &["delete"], &["web"]), true),
        ("clerk", &roles, rule(&["apps"], &["deployments"], &["*"], &["web"]), true),
        ("clerk", &roles, rule(&["apps"], &["deployments"], &["get"], &["web", "other"]), false),
        ("clerk", &roles, rule(&["apps"], &["deployments"], &["get"], &[]), false),
        ("escalator", &roles, rule(&["*"], &["*"], &["*"], &[]), true),
        ("paths", &clusters, json!({"nonResourceURLs": ["/debug/pprof"], "verbs": ["get"]}), true),
        ("paths", &clusters, json!({"nonResourceURLs": ["/debug/pprof/*"], "verbs": ["get"]}), true),
        ("paths", &clusters, json!({"nonResourceURLs": ["/*"], "verbs": ["get"]}), false),
        ("paths", &clusters, json!({"nonResourceURLs": ["/debug/pprof"], "verbs": ["post"]}), false),
        ("paths", &clusters, rule(&[""], &["pods"], &["get"], &[]), false),
    ];
    for (user, path, rule, allowed) in cases {
        let role = json!({"metadata": {"generateName": "made-"}, "rules": [rule]});
        let (code, answer) = posted(&server, user, &[], path, &role).await;
        assert_eq!(code, if allowed { 201 } else { 403 }, "{user} grants {rule}: {answer}");
        if !allowed {
            let message = answer["message"].as_str().unwrap();
            assert!(
                message.contains(&format!(
                    "user \"{user}\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:"
                )),
                "{message}"
            );
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_binding_grants_only_what_its_writer_holds_or_may_bind() {
    let server = TestServer::start().await;
    let writes = || rule(RBAC_GROUP, &["rolebindings", "clusterrolebindings"], &["create"], &[]);
    hold(&server, "clerk", false, json!([writes(), rule(&[""], &["pods"], &["get"], &[])])).await;
    hold(&server, "binder", false, json!([writes(), rule(RBAC_GROUP, &["clusterroles"], &["bind"], &["edit"])])).await;
    hold(&server, "everywhere", true, json!([writes(), rule(RBAC_GROUP, &["clusterroles"], &["bind"], &[])])).await;
    for (name, resource) in [("reader", "pods"), ("secrets", "secrets")] {
        made(&server, &format!("{LOCAL}/roles"), &json!({"metadata": {"name": name}, "rules": [rule(&[""], &[resource], &["get"], &[])]})).await;
    }
    let (bindings, cluster) = (format!("{LOCAL}/rolebindings"), format!("{RBAC}/clusterrolebindings"));
    let cases = [
        ("clerk", &bindings, "Role", "reader", 201),
        ("clerk", &bindings, "Role", "secrets", 403),
        ("clerk", &bindings, "ClusterRole", "view", 403),
        ("clerk", &bindings, "Role", "missing", 404),
        ("clerk", &cluster, "ClusterRole", "view", 403),
        ("binder", &bindings, "ClusterRole", "edit", 201),
        ("binder", &bindings, "ClusterRole", "view", 403),
        ("binder", &bindings, "Role", "reader", 403),
        ("binder", &cluster, "ClusterRole", "edit", 403),
        ("everywhere", &cluster, "ClusterRole", "cluster-admin", 201),
        ("everywhere", &bindings, "ClusterRole", "admin", 201),
        ("everywhere", &bindings, "Role", "secrets", 403),
    ];
    for (user, path, kind, name, expected) in cases {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        let subjects = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}]);
        let binding = json!({"metadata": {"generateName": "made-"}, "roleRef": role, "subjects": subjects});
        let (code, answer) = posted(&server, user, &[], path, &binding).await;
        assert_eq!(code, expected, "{user} binds {kind} {name} by {path}: {answer}");
    }
    server.stop().await;
}

/// Who asks, the headers that name another identity, and the user that acts or the words of the refusal.
type Case<'c> = (&'c str, &'c [(&'c str, &'c str)], Result<&'c str, &'c str>);

/// Each part of an identity needs its own right, and the identity that results is the one that acts.
#[tokio::test]
async fn who_acts_as_another_needs_the_right_to_each_part_of_the_identity() {
    let server = TestServer::start().await;
    let rules = json!([
        rule(&[""], &["users"], &["impersonate"], &["bob"]),
        rule(&[""], &["groups"], &["impersonate"], &["devs"]),
        rule(&["authentication.k8s.io"], &["uids"], &["impersonate"], &["7"]),
        rule(&["authentication.k8s.io"], &["userextras/scopes"], &["impersonate"], &["view"]),
    ]);
    hold(&server, "agent", true, rules).await;
    hold(&server, "local", false, json!([rule(&[""], &["serviceaccounts"], &["impersonate"], &["robot"])])).await;
    let cases: [Case; 11] = [
        ("agent", &[("impersonate-user", "bob")], Ok("bob")),
        ("agent", &[("impersonate-user", "bob"), ("impersonate-group", "devs")], Ok("bob")),
        ("agent", &[("impersonate-user", "bob"), ("impersonate-uid", "7")], Ok("bob")),
        ("agent", &[("impersonate-user", "bob"), ("impersonate-extra-scopes", "view")], Ok("bob")),
        ("agent", &[("impersonate-user", "alice")], Err("cannot impersonate resource \"users\" in API group \"\" at the cluster scope")),
        ("agent", &[("impersonate-user", "bob"), ("impersonate-group", "system:masters")], Err("cannot impersonate resource \"groups\"")),
        (
            "agent",
            &[("impersonate-user", "bob"), ("impersonate-uid", "8")],
            Err("cannot impersonate resource \"uids\" in API group \"authentication.k8s.io\""),
        ),
        ("agent", &[("impersonate-user", "bob"), ("impersonate-extra-scopes", "edit")], Err("cannot impersonate resource \"userextras/scopes\"")),
        ("local", &[("impersonate-user", "system:serviceaccount:default:robot")], Ok("system:serviceaccount:default:robot")),
        (
            "local",
            &[("impersonate-user", "system:serviceaccount:kube-system:robot")],
            Err("cannot impersonate resource \"serviceaccounts\" in API group \"\" in the namespace \"kube-system\""),
        ),
        ("local", &[("impersonate-user", "bob")], Err("cannot impersonate resource \"users\"")),
    ];
    for (user, headers, expected) in cases {
        let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews").header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let (code, answer) = answered(&server, user, &[], request.body(Full::new("{}".into())).unwrap()).await;
        match expected {
            Ok(name) => assert_eq!((code, &answer["status"]["userInfo"]["username"]), (201, &json!(name)), "{headers:?}: {answer}"),
            Err(why) => {
                let message = answer["message"].as_str().unwrap_or_default();
                assert!(code == 403 && message.contains(&format!("User \"{user}\" {why}")), "{headers:?}: {answer}");
            }
        }
    }
    server.stop().await;
}
