//! Families, checks, warnings, and what updates keep and drop.

use super::families::{complete_stored, init, missing, normalize};
use super::update::{drop_type_dependent, keep_allocated};
use super::*;
use crate::kinds::check::{change, defaulted, problems, status_change, table, warned, with};

const SINGLE: &[&str] = &["IPv4"];
const DUAL: &[&str] = &["IPv4", "IPv6"];

/// What a creation makes of a specification, in short: policy, families, addresses; or the errors.
fn created(spec: Value, configured: &[&str]) -> String {
    let mut service = json!({"metadata": {"name": "s"}, "spec": spec});
    normalize(None, &mut service);
    shown(init(None, &mut service, configured).err(), service)
}

fn updated(old: &Value, spec: Value, configured: &[&str]) -> String {
    let mut service = json!({"metadata": {"name": "s"}, "spec": spec});
    keep_allocated(old, &mut service);
    normalize(Some(old), &mut service);
    let errors = init(Some(old), &mut service, configured).err();
    missing(Some(old), &mut service);
    shown(errors, service)
}

fn shown(errors: Option<Vec<crate::validation::FieldError>>, service: Value) -> String {
    if let Some(errors) = errors {
        return errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    }
    let texts = |member: &str| {
        let list = object::list(&service, &["spec", member]).iter().map(|text| text.as_str().unwrap());
        list.collect::<Vec<_>>().join(",")
    };
    format!("{} {} [{}]", object::text(&service, &["spec", "ipFamilyPolicy"]), texts("ipFamilies"), texts("clusterIPs"))
}

#[test]
fn families_of_new_services() {
    let selected = |mut spec: Value| {
        spec["selector"] = json!({"a": "b"});
        spec["type"] = "ClusterIP".into();
        spec
    };
    for (spec, single, dual) in [
        (json!({}), "SingleStack IPv4 []", "SingleStack IPv4 []"),
        (json!({"ipFamilyPolicy": "PreferDualStack"}), "PreferDualStack IPv4 []", "PreferDualStack IPv4,IPv6 []"),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            "RequireDualStack IPv4,IPv6 []",
        ),
        (json!({"ipFamilies": ["IPv6"]}), "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster", "SingleStack IPv6 []"),
        (
            json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "PreferDualStack"}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            "PreferDualStack IPv6,IPv4 []",
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are \
             specified",
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are \
             specified",
        ),
        (
            json!({"clusterIP": "fd00::1"}),
            "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
            "SingleStack IPv6 [fd00::1]",
        ),
        (
            json!({"clusterIP": "300.1.1.1"}),
            "spec.clusterIPs[0]: Invalid value: \"300.1.1.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            "spec.clusterIPs[0]: Invalid value: \"300.1.1.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (json!({"clusterIP": "None"}), "SingleStack IPv4 [None]", "SingleStack IPv4 [None]"),
        (json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"}), "PreferDualStack IPv4 [None]", "PreferDualStack IPv4,IPv6 [None]"),
        (
            json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]}),
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ),
        (
            json!({"clusterIPs": ["10.0.0.1"]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\"]: must be empty when `clusterIP` is not specified",
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\"]: must be empty when `clusterIP` is not specified",
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "10.0.0.2"], "ipFamilyPolicy": "PreferDualStack"}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family",
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family",
        ),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None", "10.0.0.2"]}),
            "spec.clusterIPs: Invalid value: [\"None\",\"10.0.0.2\"]: 'None' must be the first and only value",
            "spec.clusterIPs: Invalid value: [\"None\",\"10.0.0.2\"]: 'None' must be the first and only value",
        ),
    ] {
        assert_eq!(created(selected(spec.clone()), SINGLE), single, "{spec} with one family");
        assert_eq!(created(selected(spec.clone()), DUAL), dual, "{spec} with two families");
    }
}

#[test]
fn headless_services_without_a_selector_may_have_any_family() {
    for (spec, expected) in [
        (json!({"clusterIP": "None"}), "RequireDualStack IPv4,IPv6 [None]"),
        (json!({"clusterIP": "None", "ipFamilyPolicy": "SingleStack"}), "SingleStack IPv4 [None]"),
        (json!({"clusterIP": "None", "ipFamilies": ["IPv6"]}), "RequireDualStack IPv6,IPv4 [None]"),
        (json!({"clusterIP": "None", "ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}), "SingleStack IPv6 [None]"),
    ] {
        assert_eq!(created(spec.clone(), SINGLE), expected, "{spec}");
        assert_eq!(created(spec.clone(), DUAL), expected, "{spec}");
    }
}

fn stored(policy: &str, families: &[&str], ips: &[&str]) -> Value {
    json!({"spec": {"type": "ClusterIP", "selector": {"a": "b"}, "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families,
        "ipFamilyPolicy": policy}})
}

#[test]
fn services_get_and_lose_a_second_family() {
    let single = stored("SingleStack", &["IPv4"], &["10.0.0.1"]);
    let dual = stored("RequireDualStack", &["IPv4", "IPv6"], &["10.0.0.1", "fd00::1"]);
    let spec = |old: &Value, changes: &[(&str, Value)]| with(old, changes)["spec"].clone();
    let to = |policy: &str| ("/spec/ipFamilyPolicy", json!(policy));
    for (old, changes, expected) in [
        (&single, vec![to("RequireDualStack")], "RequireDualStack IPv4,IPv6 [10.0.0.1,]"),
        (&single, vec![to("PreferDualStack")], "PreferDualStack IPv4,IPv6 [10.0.0.1,]"),
        (
            &single,
            vec![to("RequireDualStack"), ("/spec/clusterIPs", json!(["10.0.0.1", "fd00::9"]))],
            "RequireDualStack IPv4,IPv6 [10.0.0.1,fd00::9]",
        ),
        (&single, vec![("/spec/ipFamilyPolicy", Value::Null)], "SingleStack IPv4 [10.0.0.1]"),
        (&dual, vec![to("SingleStack")], "SingleStack IPv4 [10.0.0.1]"),
        (&dual, vec![to("SingleStack"), ("/spec/clusterIPs", json!(["10.0.0.1"]))], "SingleStack IPv4 [10.0.0.1]"),
        (&dual, vec![to("PreferDualStack")], "PreferDualStack IPv4,IPv6 [10.0.0.1,fd00::1]"),
        (
            &dual,
            vec![("/spec/clusterIPs", json!(["10.0.0.1"]))],
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP",
        ),
        (
            &dual,
            vec![("/spec/ipFamilies", json!(["IPv4"]))],
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family",
        ),
        (&dual, vec![("/spec/clusterIPs", Value::Null), ("/spec/clusterIP", json!(""))], "RequireDualStack IPv4,IPv6 [10.0.0.1,fd00::1]"),
    ] {
        assert_eq!(updated(old, spec(old, &changes), DUAL), expected, "{changes:?} of {old}");
    }
    let preferred = stored("PreferDualStack", &["IPv4"], &["10.0.0.1"]);
    let same = preferred["spec"].clone();
    assert_eq!(updated(&preferred, same, DUAL), "PreferDualStack IPv4 [10.0.0.1]", "nothing changes because the cluster has changed");
}

#[test]
fn external_names_become_services_with_addresses_and_back() {
    let name = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    assert_eq!(updated(&name, json!({"type": "ClusterIP", "selector": {"a": "b"}}), DUAL), "SingleStack IPv4 []");
    let mut service = json!({"spec": {"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"}});
    init(Some(&name), &mut service, DUAL).unwrap();
    let found: Vec<String> = missing(Some(&name), &mut service).into_iter().map(|(index, family, _)| format!("{index} {family}")).collect();
    assert_eq!(found, ["0 IPv4", "1 IPv6"]);
    let old = stored("SingleStack", &["IPv4"], &["10.0.0.1"]);
    let mut new = with(&old, &[("/spec/type", json!("ExternalName")), ("/spec/externalName", json!("example.com"))]);
    drop_type_dependent(&old, &mut new);
    assert_eq!(new["spec"], json!({"type": "ExternalName", "selector": {"a": "b"}, "externalName": "example.com"}));
}

#[test]
fn old_objects_get_the_members_that_they_lack() {
    for (spec, expected) in [
        (json!({"clusterIP": "10.0.0.1"}), "SingleStack IPv4 [10.0.0.1]"),
        (json!({"clusterIP": "None", "selector": {"a": "b"}}), "SingleStack IPv6 [None]"),
        (json!({"clusterIP": "None"}), "RequireDualStack IPv6,IPv4 [None]"),
        (json!({"type": "ExternalName"}), "  []"),
    ] {
        let mut service = json!({"spec": spec});
        complete_stored(&mut service, "IPv6");
        assert_eq!(shown(None, service), expected, "{spec}");
    }
}

#[test]
fn an_update_keeps_what_it_leaves_out() {
    let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
        "ports": [{"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 81, "nodePort": 30081}]}});
    let mut new = json!({"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 8080}, {"name": "c", "port": 81}]}});
    keep_allocated(&old, &mut new);
    assert_eq!((&new["spec"]["clusterIP"], &new["spec"]["clusterIPs"]), (&json!("10.96.0.9"), &json!(["10.96.0.9"])));
    assert_eq!(new["spec"]["ports"], json!([{"name": "a", "port": 8080, "nodePort": 30080}, {"name": "c", "port": 81}]), "by name");
    let mut moved = json!({"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "c", "port": 81, "nodePort": 30080}]}});
    keep_allocated(&old, &mut moved);
    assert!(moved["spec"]["ports"][0].get("nodePort").is_none(), "another port has it now");
}

#[test]
fn a_change_of_type_drops_what_no_longer_applies() {
    let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30080}]}});
    let mut new = with(&old, &[("/spec/type", json!("ClusterIP"))]);
    drop_type_dependent(&old, &mut new);
    assert!(new["spec"]["ports"][0].get("nodePort").is_none());
    assert_eq!(new["spec"]["clusterIP"], "10.96.0.9");
    let mut asked = with(&old, &[("/spec/type", json!("ClusterIP")), ("/spec/ports/0/nodePort", json!(30099))]);
    drop_type_dependent(&old, &mut asked);
    assert_eq!(asked["spec"]["ports"][0]["nodePort"], 30099, "a port that was changed along with the type is for validation to refuse");
}

#[test]
fn a_load_balancer_becomes_a_service_of_another_type() {
    let spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "a/b", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000, "ports": []});
    let old = json!({"spec": spec, "status": {"loadBalancer": {"ingress": [{"ip": "10.241.0.1"}]}}});
    let mut new = with(&old, &[("/spec/type", json!("NodePort"))]);
    drop_type_dependent(&old, &mut new);
    assert_eq!(new["spec"], json!({"type": "NodePort", "externalTrafficPolicy": "Local", "ports": []}));
    assert_eq!(new["status"], json!({"loadBalancer": {}}));
    // What was changed along with the type is left for validation to refuse.
    let mut new = with(&old, &[("/spec/type", json!("ClusterIP")), ("/spec/loadBalancerClass", json!("a/c"))]);
    drop_type_dependent(&old, &mut new);
    assert_eq!(new["spec"], json!({"type": "ClusterIP", "loadBalancerClass": "a/c", "ports": []}));
}

fn service(spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}});
    for (member, value) in spec.as_object().unwrap() {
        service["spec"][member] = value.clone();
    }
    defaulted(defaults, service)
}

#[test]
fn services_are_checked() {
    let balancer = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000});
    table(
        validation::validate,
        &service(balancer),
        &[
            ("/spec/ports", json!([]), "spec.ports: Required value"),
            ("/spec/healthCheckNodePort", json!(0), "spec.healthCheckNodePort: Required value"),
            ("/spec/loadBalancerSourceRanges", json!([" 10.0.0.0/8 "]), ""),
            (
                "/spec/loadBalancerSourceRanges",
                json!(["10.0.0.1/8"]),
                "spec.LoadBalancerSourceRanges[0]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length",
            ),
            (
                "/spec/loadBalancerClass",
                json!("a b"),
                "spec.loadBalancerClass: Invalid value: \"a b\": name part must consist of \
              alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
              '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
            (
                "/spec/externalIPs",
                json!(["127.0.0.1"]),
                "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            ),
            (
                "/spec/trafficDistribution",
                json!("Near"),
                "spec.trafficDistribution: Unsupported value: \"Near\": supported values: \"PreferClose\", \"PreferSameZone\", \"PreferSameNode\"",
            ),
            ("/spec/ipFamilies", json!(["IPv4", "IPv4"]), "spec.ipFamilies[1]: Duplicate value: \"IPv4\""),
            ("/spec/ipFamilies", json!(["IPv5"]), "spec.ipFamilies[0]: Unsupported value: \"IPv5\": supported values: \"IPv4\", \"IPv6\""),
        ],
    );
    let headless = service(json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": null}));
    table(
        validation::validate,
        &headless,
        &[(
            "/spec/type",
            json!("NodePort"),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services\nspec.externalTrafficPolicy: Required value",
        )],
    );
    let both = json!({"service.kubernetes.io/topology-aware-hints": "Auto", "service.kubernetes.io/topology-mode": "Disabled"});
    let annotated = with(&service(json!({})), &[("/metadata/annotations", both)]);
    assert_eq!(
        problems(validation::validate, &annotated),
        "metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: \"Disabled\": must match \
         annotations[service.kubernetes.io/topology-aware-hints] when both are specified"
    );
}

#[test]
fn addresses_stay_once_set() {
    let single = service(json!({}));
    let dual = service(json!({"clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}));
    let changed = |old: &Value, changes: &[(&str, Value)]| change(validation::validate, old, &with(old, changes));
    assert_eq!(
        changed(&single, &[("/spec/clusterIP", json!("10.0.0.2")), ("/spec/clusterIPs", json!(["10.0.0.2"]))]),
        "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"
    );
    assert_eq!(
        changed(&dual, &[("/spec/clusterIPs", json!(["10.0.0.1", "fd00::2"]))]),
        "spec.clusterIPs[1]: Invalid value: [\"10.0.0.1\",\"fd00::2\"]: may not change once set"
    );
    assert_eq!(
        changed(&dual, &[("/spec/clusterIPs", json!(["10.0.0.1"])), ("/spec/ipFamilies", json!(["IPv4"]))]),
        "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be set to 'SingleStack' when releasing the secondary clusterIP\n\
         spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be set to 'SingleStack' when releasing the secondary ipFamily"
    );
    assert_eq!(
        changed(&single, &[("/spec/clusterIP", json!("")), ("/spec/clusterIPs", json!([]))]),
        "spec.clusterIPs[0]: Invalid value: []: primary clusterIP can not be unset"
    );
    let balancer =
        service(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000, "loadBalancerClass": "a/b"}));
    assert_eq!(changed(&balancer, &[("/spec/healthCheckNodePort", json!(31001))]), "spec.healthCheckNodePort: Forbidden: field is immutable");
    assert_eq!(
        changed(&balancer, &[("/spec/loadBalancerClass", json!("a/c"))]),
        "spec.loadBalancerClass: Invalid value: \"a/c\": may not change once set"
    );
    assert_eq!(
        changed(&balancer, &[("/spec/loadBalancerClass", Value::Null)]),
        "spec.loadBalancerClass: Invalid value: \"null\": may not change once set"
    );
}

#[test]
fn statuses_are_checked() {
    let balancer = service(json!({"type": "LoadBalancer"}));
    let of = |service: &Value, ingress: Value| {
        let new = with(service, &[("/status", json!({"loadBalancer": {"ingress": [ingress]}}))]);
        status_change(validation::status, service, &new)
    };
    assert_eq!(of(&balancer, json!({"ip": "10.241.0.1", "ipMode": "VIP"})), "");
    assert_eq!(of(&balancer, json!({"hostname": "a.example"})), "");
    for (ingress, expected) in [
        (json!({"ip": "x", "ipMode": "VIP"}), "ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        (json!({"ip": "10.241.0.1"}), "ipMode: Required value: must be specified when `ip` is set"),
        (json!({"ipMode": "VIP"}), "ipMode: Forbidden: may not be specified when `ip` is not set"),
        (json!({"ip": "10.241.0.1", "ipMode": "X"}), "ipMode: Unsupported value: \"X\": supported values: \"Proxy\", \"VIP\""),
        (json!({"hostname": "10.0.0.1"}), "hostname: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address"),
    ] {
        assert_eq!(of(&balancer, ingress), format!("status.loadBalancer.ingress[0].{expected}"));
    }
    let inside = service(json!({}));
    assert_eq!(
        of(&inside, json!({"hostname": "a.example"})),
        "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"
    );
    let mut served = with(&balancer, &[("/status", json!({"loadBalancer": {"ingress": [{"ip": "10.241.0.1"}, {"hostname": "a"}]}}))]);
    defaults(served.as_object_mut().unwrap());
    assert_eq!(served["status"]["loadBalancer"]["ingress"], json!([{"ip": "10.241.0.1", "ipMode": "VIP"}, {"hostname": "a"}]));
}

#[test]
fn what_has_no_effect_is_warned_of() {
    let of = |spec: Value| warned(warnings::warnings, &service(spec));
    assert!(of(json!({})).is_empty());
    assert_eq!(
        of(json!({"clusterIP": "None", "clusterIPs": ["None"], "externalIPs": ["1.2.3.4"], "sessionAffinity": "ClientIP"})),
        ["spec.externalIPs is ignored for headless services", "spec.SessionAffinity is ignored for headless services"]
    );
    assert_eq!(
        of(json!({"externalIPs": ["1.2.3.4"], "externalName": "a"})),
        [
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
            "spec.externalName is ignored when spec.type is not \"ExternalName\""
        ]
    );
    assert_eq!(
        of(json!({"trafficDistribution": "PreferClose"})),
        ["spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""]
    );
}
