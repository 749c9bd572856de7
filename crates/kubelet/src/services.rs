//! Service variables (upstream pkg/kubelet/envvars): `X_SERVICE_HOST`, `X_SERVICE_PORT` and the
//! docker-link forms.

use std::collections::BTreeMap;

use cluster::Informer;
use k8s_openapi::api::core::v1::Service;

/// What the agent keeps of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub ip: String,
    /// (name, protocol, port).
    pub ports: Vec<(String, String, i32)>,
}

/// Keeps Services that have a cluster address.
pub(crate) fn row(service: &Service) -> Option<Row> {
    let spec = service.spec.as_ref()?;
    let ip = spec.cluster_ip.clone().filter(|ip| !ip.is_empty() && ip != "None")?;
    let ports = spec
        .ports
        .iter()
        .flatten()
        .map(|p| {
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
            (p.name.clone().unwrap_or_default(), protocol, p.port)
        })
        .collect();
    Some(Row { ip, ports })
}

/// Variables for a pod of `ns`: always of `default/kubernetes`, of the namespace's own services
/// if `links`.
pub(crate) fn variables(services: &Informer<Row>, ns: &str, links: bool) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    if let Some(row) = services.get(cluster::Key::new("default", "kubernetes")) {
        add(&mut out, "kubernetes", &row);
    }
    if links {
        for (key, row) in services.in_namespace(ns) {
            add(&mut out, &key.name, &row);
        }
    }
    out
}

fn add(out: &mut BTreeMap<String, String>, service: &str, row: &Row) {
    let name = |s: &str| s.replace('-', "_").to_uppercase();
    let service = name(service);
    let Some((_, protocol, port)) = row.ports.first() else {
        return;
    };
    let host = if row.ip.contains(':') { format!("[{}]", row.ip) } else { row.ip.clone() };
    let url = |protocol: &str, port: i32| format!("{}://{host}:{port}", protocol.to_lowercase());
    out.insert(format!("{service}_SERVICE_HOST"), row.ip.clone());
    out.insert(format!("{service}_SERVICE_PORT"), port.to_string());
    out.insert(format!("{service}_PORT"), url(protocol, *port));
    for (port_name, protocol, port) in &row.ports {
        if !port_name.is_empty() {
            out.insert(format!("{service}_SERVICE_PORT_{}", name(port_name)), port.to_string());
        }
        let prefix = format!("{service}_PORT_{port}_{}", protocol.to_uppercase());
        out.insert(prefix.clone(), url(protocol, *port));
        out.insert(format!("{prefix}_PROTO"), protocol.to_lowercase());
        out.insert(format!("{prefix}_PORT"), port.to_string());
        out.insert(format!("{prefix}_ADDR"), row.ip.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let mut out = BTreeMap::new();
        let row = Row { ip: "10.96.3.4".into(), ports: vec![("http".into(), "TCP".into(), 80), (String::new(), "UDP".into(), 53)] };
        add(&mut out, "my-web", &row);
        let text: Vec<String> = out.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            text,
            [
                "MY_WEB_PORT=tcp://10.96.3.4:80",
                "MY_WEB_PORT_53_UDP=udp://10.96.3.4:53",
                "MY_WEB_PORT_53_UDP_ADDR=10.96.3.4",
                "MY_WEB_PORT_53_UDP_PORT=53",
                "MY_WEB_PORT_53_UDP_PROTO=udp",
                "MY_WEB_PORT_80_TCP=tcp://10.96.3.4:80",
                "MY_WEB_PORT_80_TCP_ADDR=10.96.3.4",
                "MY_WEB_PORT_80_TCP_PORT=80",
                "MY_WEB_PORT_80_TCP_PROTO=tcp",
                "MY_WEB_SERVICE_HOST=10.96.3.4",
                "MY_WEB_SERVICE_PORT=80",
                "MY_WEB_SERVICE_PORT_HTTP=80",
            ]
        );
    }

    #[test]
    fn headless_services_have_none() {
        let service: Service = serde_json::from_value(serde_json::json!({"spec": {"clusterIP": "None"}})).unwrap();
        assert_eq!(row(&service), None);
    }
}
