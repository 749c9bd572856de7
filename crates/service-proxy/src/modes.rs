//! Features of Services, and bugs of upstream's proxy, tried with packets in each proxy mode: Services and EndpointSlices go in, and
//! clients connect. A mode is a [`Serve`]; the [`scenarios`] know none of them and end with the rows that they prove.

pub(crate) mod scenarios;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use cluster::Key;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use parity::Mode;
use serde_json::{Value, json};
use test_lab::{LIMIT, until};

use crate::inputs::Inputs;
use crate::rows::{ServiceRow, SliceRow};
use crate::table::{Table, VipKey};
use crate::vips::{NodePolicy, desired_vips};

/// One try to connect; what must not come is waited for no longer.
const TRY: Duration = Duration::from_millis(300);

/// A proxy in one mode.
pub(crate) trait Serve: Sized {
    /// Its column of the tables.
    const MODE: Mode;
    /// Makes this namespace a node, with pods, and hosts beyond it.
    async fn begin() -> (Self, Places);
    /// Makes the host equal to the table, which changed at these VIPs.
    async fn sync(&mut self, changed: BTreeSet<VipKey>, table: &Table);
    /// Another process takes over.
    async fn restart(&mut self, table: &Table);
    /// Checks what the mode asks of its host so that open connections from outside stay with their pods. Nothing where the mode itself
    /// keeps them.
    async fn check_kept_connections(&self) {}
}

/// A pod that answers, by its name and its addresses at TCP 8080 and 9090 and at UDP 5353.
pub(crate) struct Pod {
    /// `near…` is on the node, `far…` elsewhere.
    pub name: &'static str,
    pub ns: NetNs,
    pub addresses: Vec<IpAddr>,
}

/// The places of clients, nodes and pods.
pub(crate) struct Places {
    /// A pod on the node that serves nothing.
    pub client: NetNs,
    /// A host outside of the cluster, which sends to 10.96.0.0/16 and 192.0.2.0/24 through the node.
    pub outside: NetNs,
    pub node_ip: &'static str,
    pub pods: Vec<Pod>,
}

/// A node with a proxy, and the objects of the API.
pub(crate) struct World<S> {
    proxy: S,
    places: Places,
    table: Table,
    policy: NodePolicy,
    inputs: Inputs,
}

/// Runs a scenario as the test `name` of `module`, in namespaces of its own.
pub(crate) fn run<S: Serve, F: Future<Output = ()>>(module: &str, name: &str, scenario: fn(World<S>) -> F) {
    let (_, module) = module.split_once("::").expect("a module of this crate");
    in_lab(&format!("{module}::{name}"), || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async { scenario(World::<S>::begin().await).await });
    });
}

/// Makes a test of each scenario.
macro_rules! try_each {
    ($node:ty: $($name:ident)*) => { $(
        #[test]
        fn $name() {
            crate::modes::run(module_path!(), stringify!($name), crate::modes::scenarios::$name::<$node>);
        }
    )* };
}
pub(crate) use try_each;

impl<S: Serve> World<S> {
    async fn begin() -> Self {
        let (proxy, places) = S::begin().await;
        for ns in places.pods.iter().map(|pod| &pod.ns).chain([&places.client, &places.outside, &NetNs::current().unwrap()]) {
            settle(&Rtnl::open_in(ns).unwrap());
        }
        for pod in &places.pods {
            pod.addresses.iter().for_each(|ip| answer_at(&pod.ns, *ip, pod.name));
        }
        let policy = NodePolicy { zone: Some("a".into()), node_ips: vec![places.node_ip.parse().unwrap()], ..NodePolicy::default() };
        Self { proxy, places, table: Table::default(), policy, inputs: Inputs::default() }
    }

    /// The API has this Service and these slices of it from now on; waits until the host has them too.
    async fn set(&mut self, service: &Value, slices: &[Value]) {
        let name = service["metadata"]["name"].as_str().unwrap();
        self.hear_service(name, ServiceRow::of(&serde_json::from_value(service.clone()).unwrap()));
        for n in 0..4 {
            let row = slices.get(n).and_then(|slice| SliceRow::of(&serde_json::from_value(slice.clone()).unwrap(), "here"));
            self.hear_slice(&format!("{name}-{n}"), row);
        }
        self.sync().await;
    }

    /// The API has no Service of this name any more.
    async fn remove(&mut self, name: &str) {
        self.hear_service(name, None);
        (0..4).for_each(|n| self.hear_slice(&format!("{name}-{n}"), None));
        self.sync().await;
    }

    fn hear_service(&mut self, name: &str, row: Option<ServiceRow>) {
        self.inputs.service(&Key::new("default", name), row);
    }

    fn hear_slice(&mut self, name: &str, row: Option<SliceRow>) {
        self.inputs.slice(&Key::new("default", name), row);
    }

    async fn sync(&mut self) {
        let mut changed = BTreeSet::new();
        for service in self.inputs.take_dirty() {
            let rows = self.inputs.rows(&service);
            let desired = rows.map(|(row, slices)| desired_vips(&service, &row, &slices, &self.policy)).unwrap_or_default();
            changed.extend(self.table.set_service(&service, desired).into_iter().map(|change| change.key));
        }
        self.proxy.sync(changed, &self.table).await;
    }

    async fn restart(&mut self) {
        self.proxy.restart(&self.table).await;
    }

    fn address(&self, pod: &str) -> IpAddr {
        self.places.pods.iter().find(|there| there.name == pod).unwrap().addresses[0]
    }

    /// A slice of Service `web`, IPv4. Words of an endpoint: the pod, its conditions as letters r(eady) s(erving) t(erminating), hints
    /// `zone=` and `node=`. A pod alone is ready.
    fn slice(&self, port: u16, endpoints: &[&str]) -> Value {
        self.slice_of("web", json!([{"name": "", "port": port, "protocol": "TCP"}]), endpoints)
    }

    fn slice_of(&self, service: &str, ports: Value, endpoints: &[&str]) -> Value {
        let list: Vec<Value> = endpoints.iter().map(|words| self.endpoint(words)).collect();
        json!({"metadata": {"name": "", "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "ports": ports, "endpoints": list})
    }

    fn endpoint(&self, words: &str) -> Value {
        let mut words = words.split(' ');
        let pod = words.next().unwrap();
        let mut conditions = "rs";
        let mut endpoint = json!({"addresses": [self.address(pod)], "nodeName": if pod.starts_with("near") { "here" } else { "there" }});
        for word in words {
            match word.split_once('=') {
                Some(("zone", zone)) => endpoint["hints"]["forZones"] = json!([{"name": zone}]),
                Some(("node", node)) => endpoint["hints"]["forNodes"] = json!([{"name": node}]),
                _ => conditions = word,
            }
        }
        let has = |letter| conditions.contains(letter);
        endpoint["conditions"] = json!({"ready": has('r'), "serving": has('s'), "terminating": has('t')});
        endpoint
    }

    /// `client`, `node`, `outside` or a pod.
    fn ns(&self, who: &str) -> NetNs {
        match who {
            "client" => self.places.client.clone(),
            "outside" => self.places.outside.clone(),
            "node" => NetNs::current().unwrap(),
            pod => self.places.pods.iter().find(|there| there.name == pod).unwrap().ns.clone(),
        }
    }

    fn node_port(&self, port: u16) -> String {
        format!("{}:{port}", self.places.node_ip)
    }

    /// The pod that answers `who` at `to`, as `POD:PORT`.
    fn answer(&self, who: &str, to: &str) -> String {
        self.answers(who, to, 1).pop_first().unwrap()
    }

    /// The pods that answer so many connections of `who` to `to`.
    fn answers(&self, who: &str, to: &str, times: usize) -> BTreeSet<String> {
        let ns = self.ns(who);
        (0..times).map(|_| eventually(&format!("an answer for {who} at {to}"), || ask(&ns, to))).collect()
    }

    /// Checks that only `pods` answer, and each of them.
    fn only(&self, who: &str, to: &str, pods: &[&str]) {
        // A pod of two that is selected at random stays unheard with a chance of 2⁻⁴⁰.
        let heard = self.answers(who, to, if pods.len() == 1 { 8 } else { 40 });
        let heard: BTreeSet<&str> = heard.iter().map(|answer| answer.split(':').next().unwrap()).collect();
        assert_eq!(heard, pods.iter().copied().collect(), "pods that answer {who} at {to}");
    }

    /// Checks that nobody answers; returns why the last try failed.
    fn nobody(&self, who: &str, to: &str) -> String {
        let ns = self.ns(who);
        let refused = |answer: Result<String, String>| match answer {
            Ok(answer) => Err(format!("{answer} answered")),
            Err(reason) => Ok(reason),
        };
        eventually(&format!("silence for {who} at {to}"), || refused(ask(&ns, to)));
        refused(ask(&ns, to)).unwrap_or_else(|answered| panic!("{who} at {to}: {answered}"))
    }
}

/// A Service `web` with port 80; `more` goes over it.
fn service(more: Value) -> Value {
    let mut service = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "TCP"}]}});
    merge(&mut service, more);
    service
}

/// The same as a load balancer at 192.0.2.7, with node port 30080.
fn balancer(more: Value) -> Value {
    let mut service = service(json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}));
    merge(&mut service, more);
    service
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => more.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value)),
        (into, more) => *into = more,
    }
}

/// Tries until it succeeds.
fn eventually<T>(what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
    until(what, attempt)
}

/// Asking for a link makes the kernel act on its carrier now; by itself it may take a second. Bridges need their ports.
fn settle(rtnl: &Rtnl) {
    let mut links = rtnl.links().unwrap();
    links.sort_by_key(|link| link.kind == "bridge");
    links.iter().for_each(|link| drop(rtnl.link(&link.name).unwrap()));
}

/// Sends `NAME:PORT` to each connection, then echoes it; answers each datagram with `NAME`.
fn answer_at(ns: &NetNs, ip: IpAddr, name: &'static str) {
    for port in [8080, 9090] {
        let listener = ns.run(|| TcpListener::bind((ip, port)).unwrap()).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let _ = stream.set_nodelay(true).and_then(|()| writeln!(stream, "{name}:{port}"));
                    let _ = stream.try_clone().and_then(|mut from| std::io::copy(&mut from, &mut stream));
                });
            }
        });
    }
    let socket = ns.run(|| UdpSocket::bind((ip, 5353)).unwrap()).unwrap();
    std::thread::spawn(move || {
        while let Ok((_, peer)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(name.as_bytes(), peer);
        }
    });
}

/// A connection, and the pod that answered.
fn connect(ns: &NetNs, to: &str) -> Result<(String, TcpStream), String> {
    let to: SocketAddr = to.parse().unwrap();
    let open = || -> std::io::Result<(String, TcpStream)> {
        let stream = TcpStream::connect_timeout(&to, TRY)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut line = String::new();
        match BufReader::with_capacity(1, &stream).read_line(&mut line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok((line.trim_end().to_owned(), stream)),
        }
    };
    ns.run(open).unwrap().map_err(|error| error.kind().to_string())
}

fn ask(ns: &NetNs, to: &str) -> Result<String, String> {
    connect(ns, to).map(|(who, _)| who)
}

/// What answers a datagram from `ns`.
fn ask_udp(ns: &NetNs, to: &str) -> Result<String, String> {
    let to: SocketAddr = to.parse().unwrap();
    let talk = || -> std::io::Result<String> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(TRY))?;
        // A connected socket hears nobody but the Service.
        socket.connect(to)?;
        socket.send(b"?")?;
        let mut buffer = [0; 64];
        let n = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
    };
    ns.run(talk).unwrap().map_err(|error| error.kind().to_string())
}

/// Whether a byte goes there and back.
fn is_alive(stream: &mut TcpStream) -> bool {
    stream.write_all(&[7]).is_ok() && stream.read_exact(&mut [0]).is_ok()
}
