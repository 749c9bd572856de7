//! The kinds without a workload: services and their endpoints, nodes, configuration, events, access.

use super::text::{count, first_three, get, get_or, host_port, integer, labels, list, or_none, since, time};
use super::{AGE, NAME, Printer, number, text, wide};
use jiff::Timestamp;
use serde_json::Value;

pub fn name(object: &Value) -> Value {
    get(object, "/metadata/name").into()
}

pub fn age(object: &Value, now: Timestamp) -> Value {
    since(object, "/metadata/creationTimestamp", now).into()
}

pub const SERVICE: Printer =
    Printer::new(&[NAME, text("Type"), text("Cluster-IP"), text("External-IP"), text("Port(s)"), AGE, wide(text("Selector"))], |object, now| {
        let ports: Vec<String> = list(object, "/spec/ports").iter().map(service_port).collect();
        vec![
            name(object),
            get(object, "/spec/type").into(),
            get_or(object, "/spec/clusterIPs/0", get_or(object, "/spec/clusterIP", "<none>")).into(),
            external_ip(object).into(),
            or_none(ports.join(",")).into(),
            age(object, now),
            labels(object, "/spec/selector").into(),
        ]
    });

fn service_port(port: &Value) -> String {
    let (number, node_port, protocol) = (integer(port, "/port"), integer(port, "/nodePort"), get(port, "/protocol"));
    if node_port > 0 { format!("{number}:{node_port}/{protocol}") } else { format!("{number}/{protocol}") }
}

fn external_ip(service: &Value) -> String {
    let texts = |pointer: &str| list(service, pointer).iter().filter_map(Value::as_str).map(str::to_string).collect::<Vec<_>>();
    let mut external = texts("/spec/externalIPs");
    match get(service, "/spec/type") {
        "ExternalName" => get(service, "/spec/externalName").to_string(),
        "LoadBalancer" => {
            let ingress = list(service, "/status/loadBalancer/ingress").iter();
            let mut found: Vec<String> = ingress.map(|entry| get_or(entry, "/ip", get(entry, "/hostname")).to_string()).collect();
            found.append(&mut external);
            if found.is_empty() { "<pending>".into() } else { found.join(",") }
        }
        _ => or_none(external.join(",")),
    }
}

pub const NODE: Printer = Printer::new(
    &[
        NAME,
        text("Status"),
        text("Roles"),
        AGE,
        text("Version"),
        wide(text("Internal-IP")),
        wide(text("External-IP")),
        wide(text("OS-Image")),
        wide(text("Kernel-Version")),
        wide(text("Container-Runtime")),
    ],
    |object, now| {
        vec![
            name(object),
            node_status(object).into(),
            node_roles(object).into(),
            age(object, now),
            get(object, "/status/nodeInfo/kubeletVersion").into(),
            node_address(object, "InternalIP").into(),
            node_address(object, "ExternalIP").into(),
            get_or(object, "/status/nodeInfo/osImage", "<unknown>").into(),
            get_or(object, "/status/nodeInfo/kernelVersion", "<unknown>").into(),
            get_or(object, "/status/nodeInfo/containerRuntimeVersion", "<unknown>").into(),
        ]
    },
);

fn node_status(node: &Value) -> String {
    let ready = list(node, "/status/conditions").iter().find(|condition| get(condition, "/type") == "Ready");
    let status = match ready.map(|condition| get(condition, "/status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    };
    let cordoned = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    if cordoned { format!("{status},SchedulingDisabled") } else { status.to_string() }
}

fn node_roles(node: &Value) -> String {
    const PREFIX: &str = "node-role.kubernetes.io/";
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix(PREFIX) {
            Some(role) => Some(role).filter(|role| !role.is_empty()),
            None if key == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()),
            None => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or_none(roles.join(","))
}

fn node_address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let address = list(node, "/status/addresses").iter().find(|address| get(address, "/type") == kind);
    address.map_or("<none>", |address| get(address, "/address"))
}

pub const NAMESPACE: Printer =
    Printer::new(&[NAME, text("Status"), AGE], |object, now| vec![name(object), get(object, "/status/phase").into(), age(object, now)]);

pub const SECRET: Printer = Printer::new(&[NAME, text("Type"), number("Data"), AGE], |object, now| {
    vec![name(object), get(object, "/type").into(), count(object, "/data").into(), age(object, now)]
});

pub const CONFIG_MAP: Printer = Printer::new(&[NAME, text("Data"), AGE], |object, now| {
    vec![name(object), (count(object, "/data") + count(object, "/binaryData")).into(), age(object, now)]
});

pub const SERVICE_ACCOUNT: Printer =
    Printer::new(&[NAME, text("Secrets"), AGE], |object, now| vec![name(object), list(object, "/secrets").len().into(), age(object, now)]);

pub const LEASE: Printer =
    Printer::new(&[NAME, text("Holder"), AGE], |object, now| vec![name(object), get(object, "/spec/holderIdentity").into(), age(object, now)]);

pub const EVENT: Printer = Printer::new(
    &[
        text("Last Seen"),
        text("Type"),
        text("Reason"),
        text("Object"),
        wide(text("Subobject")),
        wide(text("Source")),
        text("Message"),
        wide(text("First Seen")),
        wide(number("Count")),
        wide(("Name", "string", "name", 0)),
    ],
    |object, now| {
        let at = |pointer: &str| time(object, pointer).map(|_| since(object, pointer, now));
        let first = at("/firstTimestamp").unwrap_or_else(|| since(object, "/eventTime", now));
        let series = object.get("series").filter(|series| !series.is_null());
        let last = match series {
            Some(_) => since(object, "/series/lastObservedTime", now),
            None => at("/lastTimestamp").unwrap_or_else(|| first.clone()),
        };
        let count = match series {
            Some(_) => integer(object, "/series/count"),
            None => integer(object, "/count").max(1),
        };
        let kind = get(object, "/involvedObject/kind").to_lowercase();
        let target = match get(object, "/involvedObject/name") {
            "" => kind,
            name => format!("{kind}/{name}"),
        };
        vec![
            last.into(),
            get(object, "/type").into(),
            get(object, "/reason").into(),
            target.into(),
            get(object, "/involvedObject/fieldPath").into(),
            event_source(object).into(),
            get(object, "/message").trim().into(),
            first.into(),
            count.into(),
            name(object),
        ]
    },
);

/// `component, host`.
fn event_source(event: &Value) -> String {
    let component = get_or(event, "/source/component", get(event, "/reportingComponent"));
    let host = get_or(event, "/source/host", get(event, "/reportingInstance"));
    if host.is_empty() { component.to_string() } else { format!("{component}, {host}") }
}

pub const ENDPOINTS: Printer = Printer::new(&[NAME, text("Endpoints"), AGE], |object, now| {
    let mut found = Vec::new();
    for subset in list(object, "/subsets") {
        let addresses = || list(subset, "/addresses").iter().map(|address| get(address, "/ip"));
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            found.extend(addresses().map(str::to_string));
        }
        for port in ports {
            found.extend(addresses().map(|address| host_port(address, integer(port, "/port"))));
        }
    }
    vec![name(object), first_three(&found, "<none>").into(), age(object, now)]
});

pub const ENDPOINT_SLICE: Printer = Printer::new(&[NAME, text("AddressType"), text("Ports"), text("Endpoints"), AGE], |object, now| {
    let ports: Vec<String> = list(object, "/ports")
        .iter()
        .map(|port| match port.get("port").and_then(Value::as_i64) {
            Some(number) => number.to_string(),
            None => get_or(port, "/name", "*").to_string(),
        })
        .collect();
    let addresses: Vec<String> =
        list(object, "/endpoints").iter().flat_map(|endpoint| list(endpoint, "/addresses")).filter_map(Value::as_str).map(str::to_string).collect();
    vec![
        name(object),
        get(object, "/addressType").into(),
        first_three(&ports, "<unset>").into(),
        first_three(&addresses, "<unset>").into(),
        age(object, now),
    ]
});

pub const BINDING: Printer =
    Printer::new(&[NAME, text("Role"), AGE, wide(text("Users")), wide(text("Groups")), wide(text("ServiceAccounts"))], |object, now| {
        let subjects = |kind: &str| {
            let found = list(object, "/subjects").iter().filter(|subject| get(subject, "/kind") == kind);
            let names = found.map(|subject| match kind {
                "ServiceAccount" => format!("{}/{}", get(subject, "/namespace"), get(subject, "/name")),
                _ => get(subject, "/name").to_string(),
            });
            Value::from(names.collect::<Vec<_>>().join(", "))
        };
        vec![
            name(object),
            format!("{}/{}", get(object, "/roleRef/kind"), get(object, "/roleRef/name")).into(),
            age(object, now),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    });
