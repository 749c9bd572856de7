//! A registry of images that holds a layer back until it may go on, and what users see of pulls from it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};

/// The repository of its images, which have tags of one digit.
const REPOSITORY: &str = "team/large";

/// How many pulls wait in the middle of a layer, and whether they may go on.
#[derive(Default)]
struct Gate {
    waiting: usize,
    open: bool,
}

#[derive(Clone)]
pub struct Registry {
    pub host: String,
    /// Path below the repository → content type, content.
    content: Arc<BTreeMap<String, (&'static str, Vec<u8>)>>,
    layer: String,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

impl Registry {
    /// Serves at an address until the test ends.
    pub fn start(address: IpAddr) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("a port");
        let mut content = BTreeMap::new();
        let mut layer = String::new();
        for tag in ["1", "2"] {
            let image = busybox::image("from a registry", tag);
            for (digest, bytes) in [&image.layer, &image.config] {
                content.insert(format!("blobs/{digest}"), ("application/octet-stream", bytes.clone()));
            }
            for name in [tag, &image.manifest.0] {
                content.insert(format!("manifests/{name}"), (busybox::MANIFEST, image.manifest.1.clone()));
            }
            layer = format!("blobs/{}", image.layer.0);
        }
        let host = listener.local_addr().expect("an address").to_string();
        let registry = Self { host, content: Arc::new(content), layer, gate: Arc::default() };
        let serving = registry.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let registry = serving.clone();
                std::thread::spawn(move || registry.answer(stream));
            }
        });
        registry
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        if path == "/v2/" {
            return stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}");
        }
        let path = path.strip_prefix(&format!("/v2/{REPOSITORY}/")).unwrap_or_default();
        let Some((kind, bytes)) = self.content.get(path) else {
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        };
        let length = bytes.len();
        stream.write_all(format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
        if head.starts_with("HEAD ") {
            return Ok(());
        }
        let half = if path == self.layer { length / 2 } else { 0 };
        stream.write_all(&bytes[..half])?;
        if half > 0 {
            let (gate, changed) = &*self.gate;
            let mut gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.waiting += 1;
            drop(changed.wait_while(gate, |gate| !gate.open));
        }
        stream.write_all(&bytes[half..])
    }

    fn waiting(&self) -> usize {
        self.gate.0.lock().unwrap_or_else(PoisonError::into_inner).waiting
    }

    fn go_on(&self) {
        self.gate.0.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        self.gate.1.notify_all();
    }
}

/// Messages of a pod's events with a reason.
fn messages(cluster: &Cluster, pod: &str, reason: &str) -> Vec<String> {
    let events = cluster.json(&["events", "--field-selector", &format!("involvedObject.name={pod},reason={reason}")]);
    let all = events["items"].as_array().into_iter().flatten();
    all.filter_map(|event| event["message"].as_str().map(str::to_owned)).collect()
}

/// `1.5s`, `532ms`, `1m2s`, as Go prints them.
fn seconds(text: &str) -> f64 {
    let (minutes, rest) = text.split_once("m").filter(|(_, rest)| !rest.starts_with('s')).unwrap_or(("0", text));
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{text:?} is no duration"));
    let rest = rest.strip_suffix("ms").map_or_else(|| number(rest.trim_end_matches('s')), |rest| number(rest) / 1000.0);
    number(minutes) * 60.0 + rest
}

/// The figures of upstream's message about a pull that succeeded: by itself, with waiting, bytes.
#[track_caller]
fn pulled(message: &str, image: &str) -> (f64, f64, usize) {
    let figures = || {
        let rest = message.strip_prefix(&format!("Successfully pulled image \"{image}\" in "))?;
        let (own, rest) = rest.split_once(" (")?;
        let (whole, rest) = rest.split_once(" including waiting). Image size: ")?;
        Some((seconds(own), seconds(whole), rest.strip_suffix(" bytes.")?.parse().ok()?))
    };
    figures().unwrap_or_else(|| panic!("not upstream's message: {message}"))
}

/// While an image is pulled, events say so and how far that is; afterwards how long it took, alone and with waiting for another.
pub fn pulls(cluster: &Cluster, registry: &Registry) {
    let image = |tag: &str| format!("{}/{REPOSITORY}:{tag}", registry.host);
    let pod = |tag: &str| {
        crate::manifests::script(&format!("large{tag}"), "sleep 100000", "")
            .replace("imagePullPolicy: Never", "imagePullPolicy: IfNotPresent")
            .replace(busybox::IMAGE, &image(tag))
    };
    let begin = Instant::now();
    cluster.apply(&pod("1"));
    until("a pull in the middle of a layer", PATIENCE, || {
        if registry.waiting() > 0 { Ok(()) } else { Err(cluster.kubectl(&["describe", "pod", "large1"])) }
    });
    // The second waits for the first: one pull at a time.
    cluster.apply(&pod("2"));
    for tag in ["1", "2"] {
        let name = format!("large{tag}");
        until("an event about the pull", PATIENCE, || match messages(cluster, &name, "Pulling") {
            all if all.contains(&format!("Pulling image \"{}\"", image(tag))) => Ok(()),
            all => Err(format!("{all:?}")),
        });
        let waiting: Value = cluster.json(&["pod", &name])["status"]["containerStatuses"][0]["state"]["waiting"].clone();
        assert_eq!(waiting["reason"], "ContainerCreating", "{waiting}");
    }
    let size = registry.content[&registry.layer].1.len();
    let mib = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let far = until("how far the pull is", PATIENCE, || {
        let all = messages(cluster, "large1", "Pulling");
        let begin = format!("Pulling image \"{}\": {} of {} MiB after ", image("1"), mib(size / 2), mib(size));
        all.iter().find_map(|message| message.strip_prefix(&begin).map(seconds)).ok_or_else(|| format!("{all:?} has no {begin:?}"))
    });
    assert!(far >= 5.0, "{far}");
    for name in ["large1", "large2"] {
        assert_eq!(messages(cluster, name, "Pulled"), Vec::<String>::new());
    }
    let held = begin.elapsed().min(Duration::from_secs(5)).as_secs_f64();
    registry.go_on();
    cluster.ready("pod/large1");
    cluster.ready("pod/large2");
    let of = |tag: &str| {
        let all = messages(cluster, &format!("large{tag}"), "Pulled");
        assert_eq!(all.len(), 1, "{all:?}");
        pulled(&all[0], &image(tag))
    };
    let ((first, whole, bytes), (second, with_waiting, _)) = (of("1"), of("2"));
    assert!(first >= held && whole >= first, "{first} {whole}, held back for {held}");
    assert!(with_waiting > second && with_waiting >= 0.2 && second < first, "{second} {with_waiting}");
    assert!((size..size + 4096).contains(&bytes), "{bytes} bytes, of which the layer has {size}");
    cluster.kubectl(&["delete", "--grace-period=0", "--force", "pod/large1", "pod/large2"]);
}
