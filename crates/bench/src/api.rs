//! As much of an API server as a service proxy asks: Services, their EndpointSlices and its Node, as a cluster's controllers write them.
//!
//! Over TLS it is a process of its own and takes clients with a certificate of its authority alone, as a cluster's does.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pki::{Ca, CertRequest, Credentials, KubeConfig};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// How many backends each Service has.
pub const BACKENDS: usize = 3;
/// The Node's address, whatever its name.
pub const NODE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 240, 0, 11));
/// The version of everything.
const VERSION: &str = "40000";

/// Service number `n`.
pub fn service(n: usize) -> Value {
    let ip = format!("10.96.{}.{}", n / 250, n % 250 + 1);
    let name = format!("service-{n}");
    let fields = json!({"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}}, "f:labels": {".": {}, "f:app": {}}},
        "f:spec": {"f:internalTrafficPolicy": {}, "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {},
        "f:targetPort": {}}}, "f:selector": {}, "f:sessionAffinity": {}, "f:type": {}}});
    let applied = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"annotations": {}, "labels": {"app": name}, "name": name, "namespace": namespace(n)},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}], "selector": {"app": name}}});
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace(n), "resourceVersion": "1", "uid": format!("00000000-0000-4000-8000-{n:012x}"),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": name},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied.to_string()},
            "managedFields": [{"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": fields}]},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "type": "ClusterIP", "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]},
        "status": {"loadBalancer": {}}})
}

/// The namespace of Service number `n`.
pub fn namespace(n: usize) -> String {
    format!("ns-{}", n % 50)
}

/// Its slice: each version has another first backend, which is the one on `node-0`.
pub fn slice(n: usize, version: usize) -> Value {
    let number = |at: usize| n * BACKENDS + at + if at == 0 { version % 8 * 100_000 } else { 0 };
    let address = |pod: usize| format!("10.{}.{}.{}", 1 + pod / 62_500, pod / 250 % 250, pod % 250 + 1);
    let pod = |at: usize| {
        let pod = number(at);
        json!({"addresses": [address(pod)], "nodeName": format!("node-{at}"), "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "name": format!("service-{n}-6d4cf56db6-{pod:05x}"), "namespace": namespace(n),
                "uid": format!("00000000-0000-4000-8001-{pod:012x}")}, "zone": format!("zone-{at}")})
    };
    let endpoints: Vec<Value> = (0..BACKENDS).map(pod).collect();
    let fields = json!({"f:addressType": {}, "f:endpoints": {}, "f:metadata": {"f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
        "f:generateName": {}, "f:labels": {".": {}, "f:app": {}, "f:endpointslice.kubernetes.io/managed-by": {}, "f:kubernetes.io/service-name": {}},
        "f:ownerReferences": {".": {}, "k:{\"uid\":\"00000000-0000-4000-8000-000000000000\"}": {}}}, "f:ports": {}});
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("service-{n}-x7k2p"), "generateName": format!("service-{n}-"), "namespace": namespace(n),
            "resourceVersion": (version + 1).to_string(), "uid": format!("00000000-0000-4000-8002-{n:012x}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            "labels": {"app": format!("service-{n}"), "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": format!("service-{n}")},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": format!("service-{n}"), "uid": format!("00000000-0000-4000-8000-{n:012x}"),
                "controller": true, "blockOwnerDeletion": true}],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "discovery.k8s.io/v1",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields}]},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints})
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "1", "uid": "00000000-0000-4000-8003-000000000001"},
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": name}]}})
}

/// Node number `n` of a large cluster, as agents and a router between the nodes leave it.
fn numbered_node(n: usize) -> Value {
    let (cidr, address) = (format!("10.{}.{}.0/24", 128 + n / 250, n % 250), format!("10.240.{}.{}", 1 + n / 250, n % 250 + 1));
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": "a message of the usual length about it",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{n}"), "resourceVersion": "1", "uid": format!("00000000-0000-4000-8003-{n:012x}"),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": format!("node-{n}")}},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": format!("node-{n}")}],
            "conditions": [condition("NetworkUnavailable", "False", "RouteCreated"), condition("Ready", "True", "KubeletReady"),
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"), condition("DiskPressure", "False", "KubeletHasNoDiskPressure")]}})
}

/// A server within this process, over plain HTTP.
pub struct Server {
    at: SocketAddr,
}

impl Server {
    /// With so many Services.
    pub fn start(services: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream, services));
            }
        });
        Ok(Self { at })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }
}

/// A server over TLS until the process is killed. Writes `kubeconfig` into `directory` and says `listening`.
pub fn part(services: usize, directory: &Path) -> Result<()> {
    cluster::install_crypto_provider();
    let ca = Ca::generate("kubernetes", Duration::from_secs(86_400))?;
    let request = CertRequest { days: 1, ..CertRequest::default() };
    let serving = CertRequest { cn: "kube-apiserver".into(), ips: vec![Ipv4Addr::LOCALHOST.into()], server: true, ..request.clone() };
    let serving = ca.issue(&serving)?;
    let client = ca.issue(&CertRequest { cn: "system:kube-proxy".into(), client: true, ..request })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(pki::certificate_der(ca.cert_pem())?);
    let config = ServerConfig::builder()
        .with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build()?)
        .with_single_cert(pki::certificate_der(&serving.cert_pem)?, pki::private_key_der(&serving.key_pem)?)?;
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let credentials = Credentials::Certificate { cert_pem: client.cert_pem, key_pem: client.key_pem };
    let kubeconfig = KubeConfig::new(&format!("https://{}", listener.local_addr()?), ca.cert_pem(), credentials);
    pki::write_private(&directory.join("kubeconfig"), &kubeconfig.to_yaml())?;
    println!("listening");
    for stream in listener.incoming().flatten() {
        let connection = ServerConnection::new(config.clone())?;
        std::thread::spawn(move || serve(StreamOwned::new(connection, stream), services));
    }
    Ok(())
}

/// A request, without its body.
struct Request {
    method: String,
    path: String,
    query: String,
    /// Nothing comes after it.
    last: bool,
}

impl Request {
    fn has(&self, parameter: &str) -> bool {
        self.query.split('&').any(|one| one == parameter)
    }

    fn is_watch(&self) -> bool {
        self.has("watch=true") || self.has("watch=1")
    }

    fn number(&self, parameter: &str) -> Option<usize> {
        self.query.split('&').find_map(|one| one.strip_prefix(parameter)?.strip_prefix('=')?.parse().ok())
    }

    /// The name that a field selector asks for.
    fn name(&self) -> Option<&str> {
        let selector = self.query.split('&').find_map(|one| one.strip_prefix("fieldSelector="))?;
        selector.strip_prefix("metadata.name%3D").or_else(|| selector.strip_prefix("metadata.name="))
    }
}

/// The next request, with its body; none when the client has gone.
fn read(reader: &mut impl std::io::BufRead) -> std::io::Result<Option<(Request, Vec<u8>)>> {
    let (mut first, mut length, mut last) = (String::new(), 0, false);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        last |= lower.trim_end() == "connection: close";
        length = lower.strip_prefix("content-length:").and_then(|text| text.trim().parse().ok()).unwrap_or(length);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Ok(Some((Request { method, path: path.to_owned(), query: query.to_owned(), last }, body)))
}

/// Answers the requests of a connection, until one is a watch: that goes on until the client goes.
fn serve<S: Read + Write>(stream: S, services: usize) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some((request, body)) = read(&mut reader)? {
        if request.is_watch() {
            watch(&request, reader.get_mut(), services)?;
            // There are no changes.
            while !reader.fill_buf()?.is_empty() {
                let length = reader.buffer().len();
                reader.consume(length);
            }
            return Ok(());
        }
        let (status, text) = answer(&request, body, services);
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
        let stream = reader.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(&text)?;
        stream.flush()?;
        if request.last {
            break;
        }
    }
    Ok(())
}

/// What a resource's collection holds: kind, version, and its objects.
fn collection(request: &Request, services: usize) -> (&'static str, &'static str, Box<dyn Iterator<Item = Value>>) {
    match request.path.rsplit('/').next().unwrap_or_default() {
        "services" => ("Service", "v1", Box::new((0..services).map(service))),
        "endpointslices" => ("EndpointSlice", "discovery.k8s.io/v1", Box::new((0..services).map(|n| slice(n, 0)))),
        "servicecidrs" => ("ServiceCIDR", "networking.k8s.io/v1", Box::new(std::iter::empty())),
        _ => match request.name() {
            Some(name) => ("Node", "v1", Box::new(std::iter::once(node(name)))),
            // As many as Services, for the pod network.
            None => ("Node", "v1", Box::new((0..services).map(numbered_node))),
        },
    }
}

fn answer(request: &Request, body: Vec<u8>, services: usize) -> (&'static str, Vec<u8>) {
    if request.method == "POST" {
        return ("201 Created", body);
    }
    let json = |value: Value| ("200 OK", value.to_string().into_bytes());
    let parts: Vec<&str> = request.path.split('/').skip(1).collect();
    match parts[..] {
        ["api", "v1", "nodes", name] => json(node(name)),
        ["api", "v1", "namespaces", name] => {
            json(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "uid": "5c8d0000-0000-4000-8000-000000000001"}}))
        }
        ["api", "v1", "namespaces"] => {
            let system = json!({"metadata": {"name": "kube-system", "uid": "5c8d0000-0000-4000-8000-000000000001"}});
            let (kind, version) = ("PartialObjectMetadataList", "meta.k8s.io/v1");
            json(json!({"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": VERSION}, "items": [system]}))
        }
        [.., "services" | "endpointslices" | "nodes" | "servicecidrs"] => {
            let (kind, version, objects) = collection(request, services);
            let (from, most) = (request.number("continue").unwrap_or(0), request.number("limit").filter(|most| *most > 0).unwrap_or(usize::MAX));
            let mut objects = objects.skip(from);
            let items: Vec<Value> = objects.by_ref().take(most).collect();
            let mut metadata = json!({"resourceVersion": VERSION});
            if objects.next().is_some() {
                metadata["continue"] = (from + most).to_string().into();
            }
            json(json!({"apiVersion": version, "kind": format!("{kind}List"), "metadata": metadata, "items": items}))
        }
        _ => (
            "404 Not Found",
            json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}).to_string().into(),
        ),
    }
}

/// As an API server writes to its connections: a few events in each write.
const WRITE: usize = 4096;

fn watch(request: &Request, stream: &mut impl Write, services: usize) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::with_capacity(WRITE, stream);
    out.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    if !request.has("sendInitialEvents=true") {
        return out.flush();
    }
    let mut say = |kind: &str, object: Value| {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        write!(out, "{:x}\r\n{line}\r\n", line.len())
    };
    let (kind, version, objects) = collection(request, services);
    for object in objects {
        say("ADDED", object)?;
    }
    let metadata = json!({"resourceVersion": VERSION, "annotations": {"k8s.io/initial-events-end": "true"}});
    say("BOOKMARK", json!({"kind": kind, "apiVersion": version, "metadata": metadata}))?;
    out.flush()
}

/// Asks `at` for `path` over plain HTTP; status and body.
pub fn get(at: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("the answer has no end of its head")?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("the answer has no status")?;
    Ok((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: &Server) -> SocketAddr {
        server.at
    }

    #[test]
    fn objects_are_listed_and_a_node_answers_to_its_name() {
        let server = Server::start(7).unwrap();
        let list = |query: &str| -> (usize, Value) {
            let (status, body) = get(at(&server), &format!("/apis/discovery.k8s.io/v1/endpointslices?{query}")).unwrap();
            let list: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((status, list["kind"].as_str()), (200, Some("EndpointSliceList")));
            (list["items"].as_array().unwrap().len(), list["metadata"]["continue"].clone())
        };
        assert_eq!(list("limit=500"), (7, Value::Null));
        assert_eq!((list("limit=5"), list("limit=5&continue=5")), ((5, json!("5")), (2, Value::Null)));
        let (_, body) = get(at(&server), "/api/v1/nodes/win01").unwrap();
        assert!(body.contains("\"10.240.0.11\"") && body.contains("win01"), "{body}");
        assert_eq!(get(at(&server), "/apis/apps/v1/deployments").unwrap().0, 404);
    }

    #[test]
    fn a_proxy_reads_what_is_served() {
        for n in [0, 249, 250, 19_999] {
            let service = service_proxy::ServiceRow::of(&serde_json::from_value(service(n)).unwrap()).unwrap();
            assert_eq!((service.cluster_ips.len(), service.ports.len()), (1, 1));
            let slice = service_proxy::SliceRow::of(&serde_json::from_value(slice(n, 3)).unwrap(), "node-0").unwrap();
            assert_eq!(slice.endpoints.iter().filter(|endpoint| endpoint.local).count(), 1);
            assert_eq!((slice.service, slice.endpoints.len()), (format!("service-{n}"), BACKENDS));
        }
    }
}
