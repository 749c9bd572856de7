//! Informers while their connections break: kube-rs' watchers and crate `cluster`'s informers against the API server over TLS, through a
//! proxy that cuts connections at random points, dribbles bytes, and loses the server, which starts again on its store; and a watch whose
//! past the server has forgotten. In the end each mirror equals the server's objects. Seeds make the course the same every time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver::{Identity, Server};
use cluster::{ApiServer, Informer, Selection};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use pki::{CertRequest, Credentials, KubeConfig};
use serde_json::json;
use test_lab::server::Keys;
use test_lab::{in_time, until_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const NAMES: usize = 12;
/// More than the server keeps of the past, in bytes.
const FORGOTTEN: usize = 8 << 20;

/// A sequence that its seed determines (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// What the proxy does to connections.
#[derive(Clone, Copy, Debug)]
struct Weather {
    target: SocketAddr,
    /// No connection is accepted, and those that are open end.
    down: bool,
    /// Connections end after fewer bytes than this of the server's.
    cut_within: Option<usize>,
    /// Bytes go on in pieces smaller than this.
    pieces: usize,
    /// Connections of an earlier number end.
    epoch: u64,
}

/// A proxy between clients and the server.
struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
}

impl Proxy {
    async fn start(target: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let calm = Weather { target, down: false, cut_within: None, pieces: usize::MAX, epoch: 0 };
        let (weather, seen) = watch::channel(calm);
        tokio::spawn(async move {
            let mut number = 0;
            while let Ok((client, _)) = listener.accept().await {
                number += 1;
                let (weather, random) = (seen.clone(), Random::new(seed + number));
                // However a connection ends, its client has to cope.
                tokio::spawn(async move { drop(carry(client, weather, random).await) });
            }
        });
        Self { address, weather }
    }

    fn change(&self, change: impl FnOnce(&mut Weather)) {
        self.weather.send_modify(change);
    }

    fn cut_all(&self) {
        self.change(|weather| weather.epoch += 1);
    }
}

async fn carry(client: TcpStream, mut weather: watch::Receiver<Weather>, mut random: Random) -> std::io::Result<()> {
    let begun = *weather.borrow_and_update();
    if begun.down {
        return Ok(());
    }
    let server = TcpStream::connect(begun.target).await?;
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let down = async {
        let mut left = begun.cut_within.map_or(usize::MAX, |within| random.below(within));
        let mut buffer = vec![0; 16 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                let size = (1 + random.below(begun.pieces.min(rest.len()))).min(left);
                if size == 0 {
                    return Ok(());
                }
                to_client.write_all(&rest[..size]).await?;
                if begun.pieces < usize::MAX && random.below(8) == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                (rest, left) = (&rest[size..], left - size);
            }
        }
    };
    let ended = weather.wait_for(|now| now.down || now.epoch > begun.epoch);
    tokio::select! {
        done = up => done,
        done = down => done,
        _ = ended => Ok(()),
    }
}

/// The server with what outlives it.
struct Master {
    keys: Keys,
    dir: tempfile::TempDir,
    server: Option<Server>,
    address: SocketAddr,
}

impl Master {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut master = Self { keys: Keys::new(), dir, server: None, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
        master.begin().await;
        master
    }

    async fn begin(&mut self) {
        let config = self.keys.config(self.dir.path().join("store"));
        self.address = config.advertise.into();
        self.server = Some(apiserver::start(config).await.unwrap());
    }

    async fn restart(&mut self) {
        self.server.take().unwrap().shutdown().await;
        self.begin().await;
    }

    /// Not through the proxy.
    fn admin(&self) -> Api<ConfigMap> {
        let identity = Identity { user: "admin".into(), groups: vec!["system:masters".into()] };
        Api::default_namespaced(Client::new(self.server.as_ref().unwrap().in_process(identity), "default"))
    }

    async fn client(&self, address: SocketAddr, dir: &Path) -> Client {
        cluster::install_crypto_provider();
        let request = CertRequest { cn: "admin".into(), orgs: vec!["system:masters".into()], client: true, days: 1, ..CertRequest::default() };
        let identity = self.keys.ca.issue(&request).unwrap();
        let credentials = Credentials::Certificate { cert_pem: identity.cert_pem, key_pem: identity.key_pem };
        let path = dir.join("proxied.conf");
        pki::write_private(&path, &KubeConfig::new(&format!("https://{address}"), self.keys.ca.cert_pem(), credentials).to_yaml()).unwrap();
        assert_eq!(address.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        cluster::client_from_kubeconfig(&path).await.unwrap()
    }
}

fn name_of(map: &ConfigMap) -> String {
    map.metadata.name.clone().unwrap()
}

fn version_of(map: &ConfigMap) -> u64 {
    map.metadata.resource_version.as_ref().unwrap().parse().unwrap()
}

/// Names and versions of what exists.
type State = BTreeMap<String, u64>;

/// What a watcher showed.
#[derive(Default)]
struct Mirror {
    state: State,
    listing: State,
    synced: bool,
    /// The newest version of each object that was ever shown.
    newest: State,
    /// Versions since the last list, in their order, with whether the object was there afterwards.
    since_list: Vec<(u64, bool)>,
    lists: usize,
    /// What must not be.
    faults: Vec<String>,
}

impl Mirror {
    /// `written` has the versions that creations and updates made so far.
    fn take(&mut self, event: Event<ConfigMap>, written: &BTreeSet<u64>) {
        match event {
            Event::Init => {
                self.check(written);
                self.since_list.clear();
                self.listing.clear();
                self.lists += 1;
            }
            Event::InitApply(map) => {
                self.shown(&map);
                self.listing.insert(name_of(&map), version_of(&map));
            }
            Event::InitDone => {
                self.state = std::mem::take(&mut self.listing);
                self.synced = true;
            }
            Event::Apply(map) => {
                self.shown(&map);
                self.happened(version_of(&map), true);
                self.state.insert(name_of(&map), version_of(&map));
            }
            Event::Delete(map) => {
                self.happened(version_of(&map), false);
                if self.state.remove(&name_of(&map)).is_none() {
                    self.faults.push(format!("{} was deleted and was not there", name_of(&map)));
                }
            }
        }
    }

    fn shown(&mut self, map: &ConfigMap) {
        let before = self.newest.insert(name_of(map), version_of(map)).unwrap_or_default();
        if version_of(map) < before {
            self.faults.push(format!("{} went back from {before} to {}", name_of(map), version_of(map)));
        }
    }

    fn happened(&mut self, version: u64, there: bool) {
        if let Some((last, _)) = self.since_list.last().filter(|(last, _)| *last >= version) {
            self.faults.push(format!("{version} came after {last}"));
        }
        self.since_list.push((version, there));
    }

    /// Between two events of one watch, continued or not, none is missing.
    fn check(&mut self, written: &BTreeSet<u64>) {
        let (Some((first, _)), Some((last, _))) = (self.since_list.first(), self.since_list.last()) else { return };
        let seen: BTreeSet<u64> = self.since_list.iter().filter(|(_, there)| *there).map(|(version, _)| *version).collect();
        let missed: Vec<_> = written.range(first..=last).filter(|version| !seen.contains(version)).collect();
        if !missed.is_empty() {
            self.faults.push(format!("lost between {first} and {last}: {missed:?}"));
        }
    }
}

/// Versions that creations and updates made.
type Written = Arc<Mutex<BTreeSet<u64>>>;

fn watcher_of(api: Api<ConfigMap>, config: watcher::Config, written: Written) -> Arc<Mutex<Mirror>> {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let kept = Arc::clone(&mirror);
    tokio::spawn(async move {
        let mut events = watcher::watcher(api, config).boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => kept.lock().unwrap().take(event, &written.lock().unwrap()),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    mirror
}

/// One write of a random object.
async fn write(maps: &Api<ConfigMap>, random: &mut Random, size: usize, written: &Written) {
    let name = format!("map-{}", random.below(NAMES));
    let text = "x".repeat(1 + random.below(size));
    let present = maps.get_opt(&name).await.unwrap();
    let made = match present {
        None => {
            let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"text": text}})).unwrap();
            maps.create(&PostParams::default(), &map).await.unwrap()
        }
        Some(_) if random.below(4) == 0 => {
            maps.delete(&name, &DeleteParams::default()).await.unwrap();
            return;
        }
        Some(mut map) => {
            let count = random.below(usize::MAX).to_string();
            map.data = Some(BTreeMap::from([("text".to_string(), text), ("count".to_string(), count)]));
            maps.replace(&name, &PostParams::default(), &map).await.unwrap()
        }
    };
    written.lock().unwrap().insert(version_of(&made));
}

/// Something happens to the connections, or to the server.
async fn strike(proxy: &Proxy, master: &mut Master, random: &mut Random, round: usize, written: &Written) {
    match round {
        9 | 19 => {
            proxy.change(|weather| weather.down = true);
            master.restart().await;
            let address = master.address;
            proxy.change(|weather| (weather.target, weather.down) = (address, false));
        }
        14 => {
            // Nobody watches while the server forgets.
            proxy.change(|weather| weather.down = true);
            let maps = master.admin();
            for _ in 0..2 * FORGOTTEN / 500_000 {
                write(&maps, random, 1_000_000, written).await;
            }
            proxy.change(|weather| weather.down = false);
        }
        _ => match random.below(4) {
            0 => proxy.cut_all(),
            1 => {
                let within = 1 + random.below(60_000);
                proxy.change(|weather| (weather.cut_within, weather.epoch) = (Some(within), weather.epoch + 1));
            }
            2 => {
                let pieces = 1 + random.below(3_000);
                proxy.change(|weather| (weather.pieces, weather.cut_within, weather.epoch) = (pieces, None, weather.epoch + 1));
            }
            _ => {}
        },
    }
}

async fn mirrors_follow(seed: u64) {
    let mut master = Master::start().await;
    let proxy = Proxy::start(master.address, seed).await;
    let written = Written::default();
    let client = master.client(proxy.address, master.dir.path()).await;
    let api = || Api::<ConfigMap>::default_namespaced(client.clone());
    let paged = watcher_of(api(), watcher::Config::default().page_size(3), Arc::clone(&written));
    let streamed = watcher_of(api(), watcher::Config::default().streaming_lists(), Arc::clone(&written));
    let row = |map: &ConfigMap| Some(version_of(map));
    let back = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&back);
    let informer = Informer::start_with_handler(api(), Selection::all().of(&ApiServer::default()), row, move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && old >= new
        {
            noted.lock().unwrap().push(format!("{:?} went from {old} to {new}", change.key));
        }
    });
    let mut random = Random::new(seed);
    for round in 0..26 {
        let maps = master.admin();
        for _ in 0..1 + random.below(12) {
            write(&maps, &mut random, 40_000, &written).await;
        }
        strike(&proxy, &mut master, &mut random, round, &written).await;
        // Now and then the mirrors have time to begin.
        if random.below(3) == 0 {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    proxy.change(|weather| (weather.cut_within, weather.pieces, weather.epoch) = (None, usize::MAX, weather.epoch + 1));
    let maps = master.admin();
    write(&maps, &mut random, 10, &written).await;
    let listed = maps.list(&ListParams::default()).await.unwrap().items;
    let state: State = listed.iter().map(|map| (name_of(map), version_of(map))).collect();
    for (what, mirror) in [("paged", &paged), ("streamed", &streamed)] {
        until_async(format!("the {what} mirror of seed {seed} equals the server's objects"), async || {
            let mirror = mirror.lock().unwrap();
            if mirror.synced && mirror.state == state { Ok(()) } else { Err(format!("{:?} instead of {state:?}", mirror.state)) }
        })
        .await;
        let mut mirror = mirror.lock().unwrap();
        mirror.check(&written.lock().unwrap());
        assert!(mirror.faults.is_empty(), "seed {seed}, {what}: {:?}", mirror.faults);
        assert!(mirror.lists > 1, "seed {seed}, {what}: what the server forgot was listed anew");
    }
    until_async(format!("the informer of seed {seed} equals the server's objects"), async || {
        let rows: State = informer.snapshot().into_iter().map(|(key, version)| (key.name, *version)).collect();
        if rows == state { Ok(()) } else { Err(format!("{rows:?} instead of {state:?}")) }
    })
    .await;
    assert!(back.lock().unwrap().is_empty(), "seed {seed}: {:?}", back.lock().unwrap());
    drop(informer);
    proxy.change(|weather| weather.down = true);
    master.server.take().unwrap().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors_equal_the_server_whatever_happens_to_connections() {
    for seed in 1..=3 {
        in_time(format!("the course of seed {seed}"), mirrors_follow(seed)).await;
    }
}
