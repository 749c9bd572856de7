//! The command line of the alpha document of 2016 ("Windows Server Containers", route setup), run as printed there: `proxy.exe` in
//! user-space mode, by the address of an API server without TLS, with an interface for addresses of Services named by a variable.
//!
//! `MULLION_TEST_PROXY` names a `proxy.exe` built for Windows, which is then run under Wine in the place of this build.

#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use linux_sys::netlink::Rtnl;
use linux_sys::ns::in_lab;
use serde_json::{Value, json};

const NODE: &str = "10.0.0.5";

/// As much of an API as the proxy asks for.
fn api(objects: Vec<(&'static str, Value)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = objects.clone();
            std::thread::spawn(move || answer(&stream, &objects));
        }
    });
    at
}

fn answer(stream: &TcpStream, objects: &[(&'static str, Value)]) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let mut out: &TcpStream = stream;
        let path = request.split(' ').nth(1).unwrap_or_default();
        if !path.contains("watch=") {
            let kind = if path.contains("/namespaces/") { "Namespace" } else { "Node" };
            let found = objects.iter().find(|(known, _)| *known == kind).map(|(_, object)| object.clone());
            let body = found.unwrap_or_else(|| json!({"kind": "Status", "code": 404})).to_string();
            write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
            continue;
        }
        let (kind, version) = match path {
            path if path.contains("/endpointslices") => ("EndpointSlice", "discovery.k8s.io/v1"),
            path if path.contains("/services") => ("Service", "v1"),
            _ => ("Node", "v1"),
        };
        write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let bookmark = json!({"kind": kind, "apiVersion": version,
            "metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}});
        let all = objects.iter().filter(|(known, _)| *known == kind).map(|(_, object)| ("ADDED", object.clone()));
        for (event, object) in all.chain([("BOOKMARK", bookmark)]) {
            let line = format!("{}\n", json!({"type": event, "object": object}));
            write!(out, "{:x}\r\n{line}\r\n", line.len())?;
        }
    }
    Ok(())
}

/// Services by an address of their own, by TCP and UDP, and by a port of the node.
fn cluster(tcp: u16, udp: u16) -> Vec<(&'static str, Value)> {
    let meta = |name: &str| json!({"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"});
    let slice = |name: &str, protocol: &str, port: u16| {
        let mut meta = meta(&format!("{name}-1"));
        meta["labels"] = json!({"kubernetes.io/service-name": name});
        json!({"metadata": meta, "addressType": "IPv4", "ports": [{"name": "", "port": port, "protocol": protocol}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]})
    };
    let addresses = json!([{"type": "InternalIP", "address": NODE}]);
    vec![
        ("Namespace", json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "kube-system", "uid": "cluster"}})),
        ("Node", json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE, "resourceVersion": "1"}, "status": {"addresses": addresses}})),
        (
            "Service",
            json!({"metadata": meta("web"), "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}}),
        ),
        (
            "Service",
            json!({"metadata": meta("dns"), "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "ports": [{"port": 53, "protocol": "UDP"}]}}),
        ),
        ("EndpointSlice", slice("web", "TCP", tcp)),
        ("EndpointSlice", slice("dns", "UDP", udp)),
    ]
}

/// A pod's server for each protocol: it says so.
fn serve() -> (u16, u16) {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let ports = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    std::thread::spawn(move || tcp.incoming().flatten().for_each(|mut stream| _ = stream.write_all(b"a pod")));
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((count, client)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(&[b"a pod heard ", &buffer[..count]].concat(), client);
        }
    });
    ports
}

fn ask(to: &str) -> String {
    let talk = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    talk().unwrap_or_else(|error| error.to_string())
}

fn ask_dns(to: &str) -> String {
    let talk = || -> std::io::Result<String> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(to)?;
        socket.send(b"a question")?;
        let mut buffer = [0; 64];
        let count = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
    };
    talk().unwrap_or_else(|error| error.to_string())
}

/// What the site of metrics or health says at a path.
fn page(port: u16, path: &str) -> String {
    let talk = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    talk().unwrap_or_else(|error| error.to_string())
}

struct Proxy {
    child: Child,
    log: PathBuf,
}

impl Proxy {
    /// Within `dir`, by the name that the document gives it.
    fn start(dir: &Path, api: &str) -> Self {
        let exe = dir.join("proxy.exe");
        let windows = std::env::var_os("MULLION_TEST_PROXY");
        match &windows {
            Some(program) => drop(std::fs::copy(program, &exe).unwrap()),
            None => std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mullion"), &exe).unwrap(),
        }
        let mut command = match windows {
            Some(_) => Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/wine/run")),
            None => Command::new("./proxy.exe"),
        };
        if windows.is_some() {
            command.arg(".\\proxy.exe");
        }
        let log = dir.join("log");
        let line = format!("--v=3 --proxy-mode=userspace --hostname-override={NODE} --master={api} --bind-address={NODE}");
        command.args(line.split(' ')).current_dir(dir).env("INTERFACE_TO_ADD_SERVICE_IP", "svc0");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        test_lab::until(what, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{what}: it ended with {ended:?} and printed\n{}", self.output());
            if done() { Ok(()) } else { Err(self.output()) }
        });
    }

    /// Asks it to end, and waits.
    fn end(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        test_lab::until("the end of the proxy", || self.child.try_wait().unwrap().ok_or_else(|| self.output()));
    }
}

fn addresses() -> Vec<String> {
    let rtnl = Rtnl::open().unwrap();
    let index = rtnl.link("svc0").unwrap().unwrap().index;
    rtnl.addrs(index).unwrap().iter().filter(|net| net.addr().is_ipv4()).map(|net| net.addr().to_string()).collect()
}

#[test]
fn the_alpha_documents_command_line_serves_clients() {
    in_lab("the_alpha_documents_command_line_serves_clients", || {
        let rtnl = Rtnl::open().unwrap();
        rtnl.add_bridge("svc0").unwrap();
        let index = rtnl.link("svc0").unwrap().unwrap().index;
        rtnl.add_addr(index, format!("{NODE}/24").parse().unwrap()).unwrap();
        rtnl.set_up(index).unwrap();
        let windows = std::env::var_os("MULLION_TEST_PROXY").is_some();
        if windows {
            // Wine's IP Helper adds no address: one is there already, and is used; the other's absence is reported.
            rtnl.add_addr(index, "10.96.0.10/32".parse().unwrap()).unwrap();
        }
        let (tcp, udp) = serve();
        let dir = tempfile::tempdir().unwrap();
        let mut proxy = Proxy::start(dir.path(), &api(cluster(tcp, udp)));
        proxy.until("the node port", || ask(&format!("{NODE}:30080")) == "a pod");
        proxy.until("the name service", || ask_dns("10.96.0.10:53") == "a pod heard a question");
        if windows {
            proxy.until("readiness", || page(10249, "/readyz").starts_with("HTTP/1.1 200"));
            assert!(page(10249, "/readyz").contains("\"failing\":1"), "{}", page(10249, "/readyz"));
            assert!(proxy.output().contains("cannot add 10.96.0.1 to svc0"), "{}", proxy.output());
        } else {
            proxy.until("the address of a Service", || ask("10.96.0.1:80") == "a pod");
            assert_eq!(addresses(), [NODE, "10.96.0.1", "10.96.0.10"]);
            assert!(page(10249, "/readyz").contains("\"converged\":true"), "{}", page(10249, "/readyz"));
        }
        assert!(page(10256, "/healthz").starts_with("HTTP/1.1 200"), "{}", page(10256, "/healthz"));
        assert!(page(10249, "/proxyMode").ends_with("userspace"));
        proxy.end();
        assert!(!addresses().contains(&"10.96.0.1".to_owned()), "what was added is taken away");
    });
}
