//! Tests of levels, checks and decisions: upstream's cases.

use super::*;
use crate::test_requests::{USER, request};
use crate::{Notes, Refusal, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

fn minor(minor: u64) -> Version {
    Version::Minor(minor)
}

/// What a pod violates, as messages have it.
fn violations(level: Level, version: Version, metadata: &Value, spec: &Value) -> Vec<String> {
    let all = evaluate(LevelVersion { level, version }, &Pod { metadata, spec });
    all.into_iter().map(|one| format!("{} ({})", one.reason, one.detail)).collect()
}

fn container(name: &str, context: Value) -> Value {
    json!({"name": name, "securityContext": context})
}

/// A pod that violates nothing, with members of the specification replaced.
fn restricted(change: &Value) -> Value {
    let mut spec = json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container("c", json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}))],
    });
    json_patch_merge(&mut spec, change);
    spec
}

fn json_patch_merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(members) if target.is_object() => {
            for (name, value) in members {
                json_patch_merge(&mut target[name], value);
            }
        }
        other => *target = other.clone(),
    }
}

#[test]
fn baseline_forbids_with_upstream_s_words() {
    let none = json!({});
    for (metadata, spec, expected) in [
        (
            none.clone(),
            json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
            r#"forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")"#,
        ),
        (
            json!({"annotations": {
                "container.apparmor.security.beta.kubernetes.io/": "bogus", "container.apparmor.security.beta.kubernetes.io/a": "",
                "container.apparmor.security.beta.kubernetes.io/b": "runtime/default", "container.apparmor.security.beta.kubernetes.io/c": "localhost/",
                "container.apparmor.security.beta.kubernetes.io/e": "unconfined"}}),
            none.clone(),
            concat!(
                "forbidden AppArmor profiles (annotations must not set AppArmor profile type to ",
                r#""container.apparmor.security.beta.kubernetes.io/="bogus"", "container.apparmor.security.beta.kubernetes.io/e="unconfined"")"#
            ),
        ),
        (
            none.clone(),
            json!({"containers": [container("a", json!({"capabilities": {"add": ["FOO", "CHOWN"]}})), container("b", json!({"capabilities": {"add": ["BAR"]}}))]}),
            r#"non-default capabilities (containers "a", "b" must not include "BAR", "FOO" in securityContext.capabilities.add)"#,
        ),
        (
            none.clone(),
            json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}),
            "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
        ),
        (
            none.clone(),
            json!({"volumes": [{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "emptyDir": {}}, {"name": "c", "hostPath": {}}]}),
            r#"hostPath volumes (volumes "a", "c")"#,
        ),
        (
            none.clone(),
            json!({"containers": [{"name": "a", "ports": [{"hostPort": 0}]}, {"name": "b", "ports": [{"hostPort": 20}, {"hostPort": 10}]}, {"name": "c", "ports": [{"hostPort": 10}, {"hostPort": 30}]}]}),
            r#"hostPort (containers "b", "c" use hostPorts 10, 20, 30)"#,
        ),
        (
            none.clone(),
            json!({"containers": [{"name": "valid"}, {"name": "i1", "livenessProbe": {"httpGet": {"host": "a.com"}}},
                {"name": "i2", "lifecycle": {"preStop": {"tcpSocket": {"host": "b.com"}}}, "startupProbe": {"httpGet": {"host": "a.com"}}}]}),
            r#"probe or lifecycle host (containers "i1", "i2" use probe or lifecycle hosts "a.com", "b.com")"#,
        ),
        (
            none.clone(),
            json!({"ephemeralContainers": [container("e", json!({"privileged": true}))], "initContainers": [container("i", json!({"privileged": true}))]}),
            r#"privileged (containers "i", "e" must not set securityContext.privileged=true)"#,
        ),
        (
            none.clone(),
            json!({"containers": [container("a", json!({"procMount": "Unmasked"})), container("b", json!({"procMount": "Default"}))]}),
            r#"procMount (container "a" must not set securityContext.procMount to "Unmasked")"#,
        ),
        (
            none.clone(),
            json!({"securityContext": {"seLinuxOptions": {"type": "foo", "user": "bar", "role": "baz"}},
                "containers": [container("d", json!({"seLinuxOptions": {"type": "container_engine_t"}})), container("e", json!({"seLinuxOptions": {"type": "bar"}})), container("f", json!({"seLinuxOptions": {"user": "u"}}))]}),
            r#"seLinuxOptions (pod and containers "e", "f" set forbidden securityContext.seLinuxOptions: types "bar", "foo"; user may not be set; role may not be set)"#,
        ),
        (
            none.clone(),
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}, "containers": [container("c", json!({"seccompProfile": {"type": "Unconfined"}}))]}),
            r#"seccompProfile (pod and container "c" must not set securityContext.seccompProfile.type to "Unconfined")"#,
        ),
        (
            none.clone(),
            json!({"securityContext": {"sysctls": [{"name": "a"}, {"name": "net.ipv4.tcp_rmem"}, {"name": "b"}]}}),
            "forbidden sysctls (a, b)",
        ),
        (
            none.clone(),
            json!({"securityContext": {"windowsOptions": {"hostProcess": true}}, "containers": [container("a", json!({"windowsOptions": {"hostProcess": true}}))]}),
            r#"hostProcess (pod and container "a" must not set securityContext.windowsOptions.hostProcess=true)"#,
        ),
    ] {
        assert_eq!(violations(Level::Baseline, Version::Latest, &metadata, &spec), [expected]);
        assert!(violations(Level::Privileged, Version::Latest, &metadata, &spec).is_empty(), "{expected}");
    }
}

#[test]
fn restricted_forbids_with_upstream_s_words() {
    for (change, expected) in [
        (json!({}), ""),
        (
            json!({"containers": [container("a", json!({"capabilities": {"drop": ["ALL"]}}))]}),
            r#"allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false)"#,
        ),
        (
            json!({"containers": [container("a", json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["FOO", "BAR"]}})),
                container("b", json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["NET_BIND_SERVICE", "CHOWN"], "drop": ["ALL"]}}))]}),
            r#"unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]; containers "a", "b" must not include "BAR", "CHOWN", "FOO" in securityContext.capabilities.add)"#,
        ),
        (
            json!({"volumes": [{"name": "a", "hostPath": {}}, {"name": "b", "nfs": {}}, {"name": "c", "secret": {}}, {"name": "d"}]}),
            r#"restricted volume types (volumes "a", "b", "d" use restricted volume types "hostPath", "nfs", "unknown")"#,
        ),
        (json!({"securityContext": {"runAsNonRoot": false}}), "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)"),
        (
            json!({"securityContext": {"runAsNonRoot": null}}),
            r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#,
        ),
        (json!({"securityContext": {"runAsUser": 0}}), "runAsUser=0 (pod must not set runAsUser=0)"),
        (
            json!({"securityContext": {"seccompProfile": null}}),
            r#"seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#,
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            r#"seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")"#,
        ),
    ] {
        let found = violations(Level::Restricted, Version::Latest, &json!({}), &restricted(&change));
        assert_eq!(found.join("|"), expected);
    }
}

#[test]
fn versions_decide_which_checks_apply() {
    let none = json!({});
    let count = |level, version, spec: &Value| violations(level, version, &none, spec).len();
    let tcp = json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_fin_timeout"}]}});
    assert_eq!((count(Level::Baseline, minor(28), &tcp), count(Level::Baseline, minor(29), &tcp)), (1, 0));
    let engine = json!({"securityContext": {"seLinuxOptions": {"type": "container_engine_t"}}});
    assert_eq!((count(Level::Baseline, minor(30), &engine), count(Level::Baseline, minor(31), &engine)), (1, 0));
    let probe = json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "127.0.0.1"}}}]});
    assert_eq!((count(Level::Baseline, minor(33), &probe), count(Level::Baseline, minor(34), &probe)), (0, 1));
    let user_namespace = json!({"hostUsers": false, "containers": [container("a", json!({"procMount": "Unmasked"}))]});
    assert_eq!((count(Level::Baseline, minor(34), &user_namespace), count(Level::Baseline, minor(35), &user_namespace)), (1, 0));
    let found = violations(
        Level::Restricted,
        Version::Latest,
        &none,
        &restricted(&json!({"hostUsers": false, "securityContext": {"runAsNonRoot": false, "runAsUser": 0}})),
    );
    assert!(found.is_empty(), "users of a user namespace may be root: {found:?}");
    let root = restricted(&json!({"securityContext": {"runAsUser": 0}}));
    assert_eq!((count(Level::Restricted, minor(22), &root), count(Level::Restricted, minor(23), &root)), (0, 1));
    let old = json!({"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}});
    let of_old = |version| violations(Level::Baseline, version, &old, &none);
    assert_eq!(of_old(minor(18)), [r#"seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")"#]);
    assert!(of_old(minor(19)).is_empty());
}

#[test]
fn windows_pods_need_no_linux_settings_since_v1_25() {
    let spec = json!({"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": true}, "containers": [{"name": "a"}]});
    let of = |version, spec: &Value| violations(Level::Restricted, version, &json!({}), spec);
    assert!(of(Version::Latest, &spec).is_empty());
    assert_eq!(of(minor(24), &spec).len(), 3);
    let mut linux = spec;
    linux["os"]["name"] = "linux".into();
    assert_eq!(of(Version::Latest, &linux).len(), 3);
}

#[test]
fn labels_make_a_policy() {
    let show = |labels: Value| {
        let (policy, errors) = policy_of(&labels, &Policy::default());
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        (format!("{} {} {}", policy.enforce, policy.audit, policy.warn), errors.join("|"))
    };
    let label = |name: &str| format!("pod-security.kubernetes.io/{name}");
    let valid = |labels: &[(&str, &str)], expected: &str| {
        let labels: Value = labels.iter().map(|(name, value)| (label(name), Value::from(*value))).collect::<serde_json::Map<_, _>>().into();
        assert_eq!(show(labels), (expected.to_owned(), String::new()));
    };
    valid(&[], "privileged:latest privileged:latest privileged:latest");
    valid(&[("enforce", "baseline"), ("enforce-version", "v1.20")], "baseline:v1.20 privileged:latest baseline:v1.20");
    valid(&[("enforce", "baseline"), ("warn-version", "v1.20")], "baseline:latest privileged:latest baseline:v1.20");
    valid(&[("enforce", "restricted"), ("warn", "baseline")], "restricted:latest privileged:latest baseline:latest");
    let (policy, errors) =
        show(json!({label("enforce"): "x", label("audit"): "x", label("warn"): "x", label("audit-version"): "v1.01", label("warn-version"): "1.2"}));
    assert_eq!(policy, "restricted:latest privileged:latest privileged:latest");
    assert_eq!(
        errors,
        [
            r#"metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "x": must be one of privileged, baseline, restricted"#,
            r#"metadata.labels[pod-security.kubernetes.io/audit]: Invalid value: "x": must be one of privileged, baseline, restricted"#,
            r#"metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: "v1.01": must be "latest" or "v1.x""#,
            r#"metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: "x": must be one of privileged, baseline, restricted"#,
            r#"metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: "1.2": must be "latest" or "v1.x""#,
        ]
        .join("|")
    );
}

struct Cluster {
    namespace: Option<Value>,
    pods: Vec<Value>,
    out_of_time: bool,
}

impl Source for Cluster {
    fn namespace(&self, _name: &str) -> Option<Arc<Value>> {
        self.namespace.clone().map(Arc::new)
    }

    fn pods(&self, _namespace: &str) -> Vec<Arc<Value>> {
        self.pods.iter().cloned().map(Arc::new).collect()
    }

    fn out_of_time(&self) -> bool {
        self.out_of_time
    }
}

fn namespace(labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(name, value)| (format!("pod-security.kubernetes.io/{name}"), Value::from(*value))).collect();
    json!({"metadata": {"name": "test", "labels": labels}})
}

fn privileged_pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "x", "image": "i", "securityContext": {"privileged": true}}]}})
}

fn decide(
    namespace: Option<Value>,
    resource: &str,
    object: &Value,
    old: Option<&Value>,
    user: &UserInfo,
    exemptions: Exemptions,
) -> (Result<(), Refusal>, Notes) {
    let cluster = Cluster { namespace, pods: Vec::new(), out_of_time: false };
    let mut notes = Notes::default();
    let mut request = request(resource, object, old);
    request.user = user;
    let configuration = Configuration { exemptions, ..Configuration::default() };
    (validate(&configuration, &cluster, &request, &mut notes), notes)
}

const PRIVILEGED: &str = r#"privileged (container "x" must not set securityContext.privileged=true)"#;

#[test]
fn pods_are_refused_audited_and_warned_of() {
    let pod = privileged_pod();
    let of = |labels: &[(&str, &str)]| decide(Some(namespace(labels)), "pods", &pod, None, &USER, Exemptions::default());
    let (result, notes) = of(&[("enforce", "baseline"), ("warn", "baseline"), ("audit", "baseline")]);
    assert_eq!(result, Err(Refusal::Forbidden(format!(r#"violates PodSecurity "baseline:latest": {PRIVILEGED}"#))));
    assert!(notes.warnings.is_empty(), "a refused request warns of nothing");
    assert_eq!(notes.audit["pod-security.kubernetes.io/enforce-policy"], "baseline:latest");
    assert_eq!(notes.audit["pod-security.kubernetes.io/audit-violations"], format!(r#"would violate PodSecurity "baseline:latest": {PRIVILEGED}"#));
    let (result, notes) = of(&[("warn", "baseline"), ("warn-version", "v1.20")]);
    assert_eq!((result, notes.warnings), (Ok(()), vec![format!(r#"would violate PodSecurity "baseline:v1.20": {PRIVILEGED}"#)]));
    let (result, notes) = of(&[("enforce", "nonsense")]);
    assert!(
        matches!(&result, Err(Refusal::Forbidden(why)) if why.starts_with(r#"violates PodSecurity "restricted:latest": privileged ("#)),
        "{result:?}"
    );
    assert!(notes.audit["pod-security.kubernetes.io/error"].starts_with("Failed to parse policy: metadata.labels["));
    let (result, notes) = of(&[]);
    assert_eq!((result, notes.audit["pod-security.kubernetes.io/enforce-policy"].as_str()), (Ok(()), "privileged:latest"));
    let (result, _) = decide(None, "pods", &pod, None, &USER, Exemptions::default());
    assert_eq!(result, Err(Refusal::Internal(r#"failed to lookup namespace "test""#.into())));
}

#[test]
fn exemptions_and_harmless_requests_pass() {
    let mut pod = privileged_pod();
    pod["spec"]["runtimeClassName"] = "vm".into();
    let strict = || Some(namespace(&[("enforce", "restricted")]));
    let with = |exemptions| decide(strict(), "pods", &pod, None, &USER, exemptions);
    for (exemptions, why) in [
        (Exemptions { namespaces: vec!["test".into()], ..Exemptions::default() }, "namespace"),
        (Exemptions { usernames: vec!["jane".into()], ..Exemptions::default() }, "user"),
        (Exemptions { runtime_classes: vec!["vm".into()], ..Exemptions::default() }, "runtimeClass"),
    ] {
        let (result, notes) = with(exemptions);
        assert_eq!((result, notes.audit["pod-security.kubernetes.io/exempt"].as_str()), (Ok(()), why));
    }
    assert!(with(Exemptions::default()).0.is_err());
    let refused = |resource: &str, new: &Value| decide(strict(), resource, new, Some(&pod), &USER, Exemptions::default()).0.is_err();
    let mut tolerant = pod.clone();
    tolerant["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    assert!(!refused("pods", &tolerant), "nothing that is checked changes");
    let mut other = pod.clone();
    other["spec"]["containers"][0]["image"] = "other".into();
    assert!(refused("pods", &other));
    assert!(!refused("pods/status", &other));
    let mut debugged = pod.clone();
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "i"}]);
    assert!(refused("pods/ephemeralcontainers", &debugged));
}

#[test]
fn workloads_only_warn() {
    let template = privileged_pod();
    let strict = || Some(namespace(&[("enforce", "baseline"), ("audit", "baseline")]));
    for (resource, object) in [
        ("deployments.apps", json!({"spec": {"template": template}})),
        ("replicationcontrollers", json!({"spec": {"template": template}})),
        ("cronjobs.batch", json!({"spec": {"jobTemplate": {"spec": {"template": template}}}})),
        ("podtemplates", json!({"template": template})),
    ] {
        let (result, notes) = decide(strict(), resource, &object, None, &USER, Exemptions::default());
        assert_eq!((result, notes.warnings), (Ok(()), vec![format!(r#"would violate PodSecurity "baseline:latest": {PRIVILEGED}"#)]), "{resource}");
        assert_eq!(notes.audit.len(), 1, "{resource}");
    }
    for (resource, object) in [
        ("deployments.apps/scale", json!({"spec": {"template": template}})),
        ("replicationcontrollers", json!({"spec": {}})),
        ("services", json!({"spec": {"template": template}})),
    ] {
        let (result, notes) = decide(strict(), resource, &object, None, &USER, Exemptions::default());
        assert_eq!((result, notes), (Ok(()), Notes::default()), "{resource}");
    }
}

#[test]
fn stricter_namespaces_warn_of_their_pods() {
    let pod = |name: &str, spec: Value, owner: Option<&str>| {
        let owners: Vec<Value> = owner.iter().map(|uid| json!({"uid": uid, "controller": true})).collect();
        json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": spec})
    };
    let bad = json!({"hostPID": true});
    let worse = json!({"hostPID": true, "containers": [container("x", json!({"privileged": true}))]});
    let pods = vec![
        pod("c", bad.clone(), Some("u")),
        pod("b", bad.clone(), Some("u")),
        pod("a", bad, None),
        pod("z", worse, None),
        pod("good", json!({}), None),
    ];
    let update = |new: &Value, old: &Value, pods: Vec<Value>, out_of_time: bool, exemptions: Exemptions| {
        let mut notes = Notes::default();
        let configuration = Configuration { exemptions, ..Configuration::default() };
        let result = validate(&configuration, &Cluster { namespace: None, pods, out_of_time }, &request("namespaces", new, Some(old)), &mut notes);
        result.map(|()| notes.warnings)
    };
    let (strict, open) = (namespace(&[("enforce", "baseline")]), namespace(&[]));
    let existing = r#"existing pods in namespace "test" violate the new PodSecurity enforce level "baseline:latest""#;
    let expected = [existing, "a (and 2 other pods): host namespaces", "z: host namespaces, privileged"];
    assert_eq!(update(&strict, &open, pods.clone(), false, Exemptions::default()).unwrap(), expected);
    let expected = ["new PodSecurity enforce level only checked against the first 1 of 5 existing pods", existing, "c: host namespaces"];
    assert_eq!(update(&strict, &open, pods.clone(), true, Exemptions::default()).unwrap(), expected);
    let exempt = Exemptions { namespaces: vec!["test".into()], ..Exemptions::default() };
    assert_eq!(
        update(&strict, &open, pods.clone(), false, exempt).unwrap(),
        [r#"namespace "test" is exempt from Pod Security, and the policy (enforce=baseline:latest) will be ignored"#]
    );
    for (new, old) in [(&open, &strict), (&strict, &namespace(&[("enforce", "restricted")])), (&strict, &strict)] {
        assert!(update(new, old, pods.clone(), false, Exemptions::default()).unwrap().is_empty(), "nothing gets stricter");
    }
    let wrong = namespace(&[("enforce", "x")]);
    assert!(matches!(update(&wrong, &strict, Vec::new(), false, Exemptions::default()), Err(Refusal::Invalid(_))));
    assert!(update(&wrong, &wrong, Vec::new(), false, Exemptions::default()).is_ok(), "labels that were wrong before may stay");
}
