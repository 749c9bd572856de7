//! Random calls, many of them killed, by several callers of one store. `make soak` makes more of them.

use std::collections::BTreeMap;
use std::process::{Command as Process, Stdio};
use std::sync::Mutex;

use super::*;
use crate::runtime::tests::own_program;
use crate::steps::dying_after;

/// Numbers by chance (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    /// What every number follows from; another one at each run.
    pub(crate) fn seed() -> u64 {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
    }

    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % limit
    }
}

/// How many cycles, from the environment.
pub(crate) fn cycles(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

/// Who has which address; none where a killed call may have left one.
type Held = Mutex<BTreeMap<String, Option<String>>>;

/// A caller with containers of its own.
struct Caller<'a> {
    conf: &'a Value,
    held: &'a Held,
    random: Random,
    name: usize,
}

impl Caller<'_> {
    fn add(&self, id: &str, allow_death: Option<usize>) {
        let call = || add_one(id, self.conf);
        let outcome = match allow_death {
            Some(after) => dying_after(after, call),
            None => Some(call()),
        };
        let mut held = self.held.lock().unwrap();
        match outcome {
            Some(Ok(ip)) => {
                let others: Vec<_> = held.iter().filter(|(other, taken)| *other != id && taken.as_deref() == Some(&ip)).collect();
                assert!(others.is_empty(), "{id} got {ip}, which {others:?} has");
                if let Some(Some(before)) = held.get(id) {
                    assert_eq!(*before, ip, "a repeated ADD");
                }
                held.insert(id.to_owned(), Some(ip));
            }
            Some(Err(error)) => assert_eq!(error.code, code::EXHAUSTED, "{error:?}"),
            None => drop(held.entry(id.to_owned()).or_insert(None)),
        }
    }

    fn del(&self, id: &str, allow_death: Option<usize>) {
        let call = || handle(&request(Command::Del, id, self.conf.clone())).unwrap();
        // As long as it is under way, the address may be anybody's.
        self.held.lock().unwrap().remove(id);
        match allow_death {
            Some(after) => drop(dying_after(after, call)),
            None => drop(call()),
        }
        if allow_death.is_some() {
            self.held.lock().unwrap().entry(id.to_owned()).or_insert(None);
        }
    }

    /// A program that is killed in the middle.
    fn killed_program(&mut self, id: &str) {
        use std::io::Write as _;
        use std::os::unix::process::CommandExt as _;
        let mut child = Process::new(own_program())
            .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", id), ("CNI_NETNS", "/ns"), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/")])
            .env("CNI_ARGS", "")
            .arg0("host-local")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(&request(Command::Add, id, self.conf.clone()).stdin);
        std::thread::sleep(std::time::Duration::from_micros(self.random.below(4_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        self.held.lock().unwrap().entry(id.to_owned()).or_insert(None);
    }

    fn cycle(&mut self) {
        let id = format!("c{}x{}", self.name, self.random.below(8));
        let death = (self.random.below(4) == 0).then(|| self.random.below(3));
        match self.random.below(100) {
            0 => self.killed_program(&id),
            1..=54 => self.add(&id, death),
            _ => self.del(&id, death),
        }
    }
}

#[test]
fn random_calls_and_kills_never_give_one_address_twice() {
    const CALLERS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/28"}, {"subnet": "10.2.0.0/29"}]]));
    let held = Held::default();
    let cycles = cycles("MULLION_SOAK_IPAM", 1_500);
    let seed = Random::seed();
    std::thread::scope(|scope| {
        for name in 0..CALLERS {
            let mut caller = Caller { conf: &conf, held: &held, random: Random::new(seed + name as u64), name };
            scope.spawn(move || (0..cycles / CALLERS).for_each(|_| caller.cycle()));
        }
    });
    // GC leaves what is held, and nothing else, whatever the kills left.
    let held = held.into_inner().unwrap();
    let mut gc = request(Command::Gc, "", conf.clone());
    let live: Vec<&String> = held.iter().filter(|(_, ip)| ip.is_some()).map(|(id, _)| id).collect();
    gc.config.document.insert("cni.dev/valid-attachments".into(), live.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect());
    handle(&gc).unwrap();
    let files: std::collections::BTreeSet<String> = fs::read_dir(dir.path().join("pods"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.parse::<IpAddr>().is_ok())
        .collect();
    let ips: std::collections::BTreeSet<String> = held.values().flatten().map(|ip| ip.split('/').next().unwrap().to_owned()).collect();
    assert_eq!(files, ips, "seed {seed}");
}
