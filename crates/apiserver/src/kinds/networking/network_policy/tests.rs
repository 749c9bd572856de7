//! Defaults, checks, columns of NetworkPolicies.

use super::*;
use crate::kinds::check::{change, defaulted, problems, row, with};

fn policy(ingress: Value) -> Value {
    let spec = json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [ingress], "policyTypes": ["Ingress"]});
    json!({"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
}

#[test]
fn types_follow_from_the_rules() {
    let made = |spec: Value| defaulted(defaults, json!({"spec": spec}))["spec"].clone();
    assert_eq!(made(json!({}))["policyTypes"], json!(["Ingress"]));
    let both = made(json!({"egress": [{"ports": [{"port": 53}]}]}));
    assert_eq!((&both["policyTypes"], &both["egress"][0]["ports"][0]["protocol"]), (&json!(["Ingress", "Egress"]), &json!("TCP")));
}

#[test]
fn rules_are_checked() {
    let ports = |port: Value| json!({"ports": [port]});
    let block = |block: Value| json!({"from": [{"ipBlock": block}]});
    let (port, peer) = ("spec.ingress[0].ports[0]", "spec.ingress[0].from[0]");
    for (rule, expected) in [
        (ports(json!({"protocol": "TCP", "port": 80, "endPort": 90})), String::new()),
        (
            ports(json!({"protocol": "ICMP", "port": 80})),
            format!("{port}.protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\""),
        ),
        (ports(json!({"port": 80, "endPort": 70})), format!("{port}.endPort: Invalid value: 80: must be greater than or equal to `port`")),
        (
            ports(json!({"port": "http", "endPort": 90})),
            format!("{port}.endPort: Invalid value: 90: may not be specified when `port` is non-numeric"),
        ),
        (ports(json!({"endPort": 90})), format!("{port}.endPort: Invalid value: 90: may not be specified when `port` is not specified")),
        (ports(json!({"port": 0})), format!("{port}.port: Invalid value: 0: must be between 1 and 65535, inclusive")),
        (json!({"from": [{}]}), format!("{peer}: Required value: must specify a peer")),
        (
            json!({"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}),
            format!("{peer}: Forbidden: may not specify both ipBlock and another peer"),
        ),
        (block(json!({"cidr": ""})), format!("{peer}.ipBlock.cidr: Required value")),
        (block(json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]})), String::new()),
        (
            block(json!({"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]})),
            format!("{peer}.ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`"),
        ),
        (
            block(json!({"cidr": "10.0.0.0"})),
            format!("{peer}.ipBlock.cidr: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        ),
    ] {
        assert_eq!(problems(validate, &policy(rule.clone())), expected, "{rule}");
    }
    let typed = |types: Value| problems(validate, &with(&policy(json!({})), &[("/spec/policyTypes", types)]));
    assert_eq!(typed(json!(["Both"])), "spec.policyTypes[0]: Unsupported value: \"Both\": supported values: \"Ingress\", \"Egress\"");
    assert!(typed(json!(["Ingress", "Egress", "Ingress"])).ends_with("may not specify more than two policyTypes"));
}

#[test]
fn old_networks_may_stay() {
    let odd = policy(json!({"from": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]}));
    assert!(!problems(validate, &odd).is_empty());
    assert_eq!(change(validate, &odd, &with(&odd, &[("/spec/podSelector", json!({}))])), "");
}

#[test]
fn columns_show_the_selector() {
    assert_eq!(row(cells, &policy(json!({}))), ["x", "a=b", "2m30s"]);
}
