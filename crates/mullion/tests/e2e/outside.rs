//! What lies beyond the LAN: refused at once, or reached where the user allows it.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, PATIENCE, Place, free_port, until};
use crate::http::{fetched, request};
use crate::{busybox, manifests};

/// An address that nobody has (RFC 5737).
const NOBODY: &str = "198.51.100.7";

/// Runs a shell script in a Linux pod; its log and exit code once it ended.
fn script(cluster: &Cluster, name: &str, text: &str, argument: &str) -> String {
    cluster.apply(&manifests::script(name, text, argument));
    until("the pod's end", PATIENCE, || {
        let pod = cluster.json(&["pod", name]);
        if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    let log = cluster.kubectl(&["logs", name]);
    cluster.kubectl(&["delete", "pod", name]);
    log
}

/// Without `--outside`: an answer, not silence; and status says why.
pub fn is_refused_at_once(cluster: &Cluster) {
    busybox::load(cluster);
    cluster.apply(&manifests::web("homebound", "win01", "", ""));
    cluster.rolled_out("homebound");
    let port = cluster.node_port("homebound");
    crate::http::page(port, "/hostname");
    for _ in 0..5 {
        let begin = Instant::now();
        let answer = request("GET", port, &format!("/fetch?url=http://{NOBODY}/"), "").expect("the stand-in's answer");
        assert!(answer.status != 200 && answer.body.to_lowercase().contains("unreachable"), "{answer:?}");
        assert!(begin.elapsed() < Duration::from_secs(2), "told at once, not after {:?}", begin.elapsed());
    }
    let text = "nc -w 5 \"$1\" 80 </dev/null 2>&1; echo \"code $?\"";
    let begin = Instant::now();
    let log = script(cluster, "stay", text, NOBODY);
    assert!(log.to_lowercase().contains("unreachable") && log.contains("code 1"), "{log}");
    assert!(begin.elapsed() < Duration::from_secs(4), "told at once, not after {:?}", begin.elapsed());
    let status = cluster.place.mullion(&["status"]).ok("mullion status");
    assert!(status.contains("outside      not reached") && status.contains("mullion up --outside"), "{status}");
    cluster.kubectl(&["delete", "deployment/homebound", "service/homebound"]);
}

/// The address of this machine that its default route uses; no packet is sent.
fn own_address() -> Ipv4Addr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect((NOBODY, 9)).expect("pasta needs a default route on this machine");
    match socket.local_addr().map(|address| address.ip()) {
        Ok(IpAddr::V4(ip)) => ip,
        other => panic!("no IPv4 address: {other:?}"),
    }
}

/// With `--outside`: a server of this machine, which is outside of the cluster, sees its pods.
pub fn is_reached() {
    let listener = TcpListener::bind((own_address(), 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    let hidden = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let hidden_port = hidden.local_addr().expect("an address").port();
    for listener in [listener, hidden] {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\nfrom outside");
            }
        });
    }
    let cluster = Cluster::up_with("lin01:linux,win01:windows", &["--outside"]);
    busybox::load(&cluster);
    cluster.apply(&manifests::web("traveller", "win01", "", ""));
    cluster.rolled_out("traveller");
    let port = cluster.node_port("traveller");
    assert_eq!(fetched(port, &format!("http://{server}/")), "from outside");
    let text = "{ printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 1; } | nc -w 5 \"${1%:*}\" \"${1#*:}\"";
    let log = script(&cluster, "linux-traveller", text, &server.to_string());
    assert!(log.contains("from outside"), "{log}");
    let answer = request("GET", port, &format!("/fetch?url=http://169.254.64.1:{hidden_port}/"), "").expect("the stand-in's answer");
    assert!(!answer.body.contains("from outside"), "the loopback of this machine is out of reach: {answer:?}");
    let status = cluster.place.mullion(&["status"]).ok("mullion status");
    assert!(status.contains("outside      reached through pasta"), "{status}");
    let pasta = || crate::traces::running("pasta", &cluster.place.path().to_string_lossy());
    assert_eq!(pasta().len(), 1);
    // However the supervisor ends.
    crate::lives::kill_supervisor(&cluster);
    until("the end of pasta", Duration::from_secs(5), || if pasta().is_empty() { Ok(()) } else { Err(format!("{:?}", pasta())) });
}

/// Without the package: said before anything is made, with its name.
pub fn needs_its_package() {
    let place = Place::new();
    let mut command = place.command(crate::cluster::mullion());
    command.env("PATH", place.path()).args(["up", "--detach", "--outside", "--port", &free_port().to_string(), "--dir"]).arg(place.dir());
    let said = crate::cluster::run(&mut command, "");
    assert_eq!(said.code, Some(70), "{said:?}");
    assert!(said.err.contains("install package passt") && said.err.lines().count() == 1, "{said:?}");
    let left: Vec<_> = std::fs::read_dir(place.path().join("run")).expect("the runtime directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
