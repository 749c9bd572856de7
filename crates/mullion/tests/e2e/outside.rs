//! What lies beyond the LAN: refused at once, or reached where the user allows it.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, PATIENCE, Place, free_port, until};
use crate::http::{fetched, request};
use crate::registry::Registry;
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
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        let answer = request("GET", port, &format!("/fetch?url=http://{NOBODY}/"), "").expect("the stand-in's answer");
        assert!(answer.status != 200 && answer.body.to_lowercase().contains("unreachable"), "{answer:?}");
        quickest = quickest.min(begin.elapsed());
    }
    assert!(quickest < Duration::from_secs(10), "refused at once, not after {quickest:?}");
    let text = "nc -w 5 \"$1\" 80 </dev/null 2>&1; echo \"code $?\"";
    let log = script(cluster, "stay", text, NOBODY);
    assert!(log.to_lowercase().contains("unreachable") && log.contains("code 1"), "{log}");
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

/// Answers every connection at `address`, each by itself; whether anybody came.
fn server(address: Ipv4Addr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let (at, seen) = (listener.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
    let flag = seen.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            flag.store(true, Ordering::Relaxed);
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\nfrom outside");
            });
        }
    });
    (at, seen)
}

/// What a Linux pod runs: a request to ADDRESS:PORT, which is given up after some seconds.
const ASK: &str = "{ printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 1; } | nc -w 5 \"${1%:*}\" \"${1#*:}\"";

/// With `--outside`: a server of this machine, which is outside of the cluster, sees its pods; so does a registry.
#[test]
fn pods_reach_the_outside_where_the_user_allows_it() {
    let own = own_address();
    let (server, _) = server(own);
    let (hidden, found) = self::server(Ipv4Addr::LOCALHOST);
    let registry = Registry::start(own.into());
    let cluster = Cluster::up_with("lin01:linux,win01:windows", &["--outside", "--insecure-registry", &registry.host]);
    busybox::load(&cluster);
    cluster.apply(&manifests::web("traveller", "win01", "", ""));
    cluster.rolled_out("traveller");
    let port = cluster.node_port("traveller");
    assert_eq!(fetched(port, &format!("http://{server}/")), "from outside");
    let log = script(&cluster, "linux-traveller", ASK, &server.to_string());
    assert!(log.contains("from outside"), "{log}");
    crate::registry::pulls(&cluster, &registry);
    // By the router's address, which some ways out lead to the loopback of the machine. A router that forwards such packets may let the
    // connection hang: the pod gives up before long.
    let log = script(&cluster, "intruder", ASK, &format!("169.254.64.1:{}", hidden.port()));
    assert!(!log.contains("from outside") && !found.load(Ordering::Relaxed), "the loopback of this machine is out of reach: {log}");
    let status = cluster.place.mullion(&["status"]).ok("mullion status");
    assert!(status.contains("outside      reached through pasta"), "{status}");
    let pasta = || crate::footprint::running("pasta", &cluster.place.path().to_string_lossy());
    // Its own helpers may be seen for a moment.
    until("one pasta", PATIENCE, || if pasta().len() == 1 { Ok(()) } else { Err(format!("{:?}", pasta())) });
    // However the supervisor ends.
    crate::recovery::kill_supervisor(&cluster);
    until("the end of pasta", PATIENCE, || if pasta().is_empty() { Ok(()) } else { Err(format!("{:?}", pasta())) });
}

/// Without the package: refused before anything is made, with its name.
#[test]
fn a_way_to_the_outside_needs_its_package() {
    let place = Place::new();
    let mut command = place.command(crate::cluster::mullion());
    command.env("PATH", place.path()).args(["up", "--detach", "--outside", "--port", &free_port().to_string(), "--dir"]).arg(place.dir());
    let output = crate::cluster::run(&mut command, "");
    assert_eq!(output.code, Some(70), "{output:?}");
    assert!(output.err.contains("install package passt") && output.err.lines().count() == 1, "{output:?}");
    let left: Vec<_> = std::fs::read_dir(place.path().join("run")).expect("the runtime directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
