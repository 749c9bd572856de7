use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::spec::PluginConfig;

mod half_written;
#[cfg(unix)]
pub(crate) mod soak;

fn request(command: Command, id: &str, ipam: Value) -> Request {
    let document = json!({"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "ipam": ipam});
    Request {
        command,
        container_id: id.into(),
        netns: "/ns".into(),
        ifname: "eth0".into(),
        args: BTreeMap::new(),
        path: String::new(),
        stdin: document.to_string().into_bytes(),
        config: PluginConfig::from_value(document).unwrap(),
    }
}

fn ipam(dir: &Path, ranges: Value) -> Value {
    json!({"type": "host-local", "dataDir": dir, "ranges": ranges})
}

fn add_one(id: &str, ipam: &Value) -> Result<String, CniError> {
    Ok(handle(&request(Command::Add, id, ipam.clone()))?.unwrap().ips[0].address.to_string())
}

#[test]
fn addresses_are_allocated_round_robin_in_upstreams_files() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.10.187.64/26", "rangeStart": "10.10.187.67"}]]));
    assert_eq!(add_one("X", &conf).unwrap(), "10.10.187.67/26");
    let store = dir.path().join("pods");
    assert_eq!(fs::read_to_string(store.join("10.10.187.67")).unwrap(), "X\r\neth0");
    assert_eq!(fs::read_to_string(store.join("last_reserved_ip.0")).unwrap(), "10.10.187.67");
    assert!(store.join("lock").exists());
    handle(&request(Command::Del, "X", conf.clone())).unwrap();
    assert!(!store.join("10.10.187.67").exists());
    assert_eq!(add_one("Y", &conf).unwrap(), "10.10.187.68/26", "a freed address is not the next one");
    handle(&request(Command::Del, "nobody", conf)).unwrap();
}

#[test]
fn repeated_add_gets_the_same_address() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    let first = handle(&request(Command::Add, "a", conf.clone())).unwrap().unwrap();
    let second = handle(&request(Command::Add, "a", conf.clone())).unwrap().unwrap();
    assert_eq!(first, second);
    let ips: Vec<String> = first.ips.iter().map(|ip| format!("{} via {}", ip.address, ip.gateway.unwrap())).collect();
    assert_eq!(ips, ["10.1.0.2/24 via 10.1.0.1", "fd00::2/64 via fd00::1"]);
    handle(&request(Command::Check, "a", conf.clone())).unwrap();
    assert_eq!(handle(&request(Command::Check, "b", conf)).unwrap_err().code, code::DRIFT);
}

#[test]
fn exhaustion_names_the_range_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/29"}], [{"subnet": "10.2.0.0/30"}]]));
    add_one("a", &conf).unwrap();
    let error = add_one("b", &conf).unwrap_err();
    assert_eq!(error.msg, "failed to allocate for range 1: no IP addresses available in range set: 10.2.0.1-10.2.0.2");
    assert_eq!(error.code, code::EXHAUSTED);
    assert!(!dir.path().join("pods/10.1.0.3").exists(), "the first range's address was freed again");
}

#[test]
fn configuration_of_the_flat_form_and_old_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let conf = json!({"Type": "host-local", "DataDir": dir.path(), "Subnet": "10.1.0.0/24", "RangeStart": "10.1.0.9", "Gateway": "10.1.0.9",
        "Routes": [{"Dst": "0.0.0.0/0", "GW": "10.1.0.9"}]});
    fs::create_dir_all(dir.path().join("pods")).unwrap();
    fs::write(dir.path().join("pods/10.1.0.10"), "old").unwrap();
    let result = handle(&request(Command::Add, "new", conf.clone())).unwrap().unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.1.0.11/24", "skips the gateway and the taken one");
    assert_eq!(result.routes[0].gw, Some("10.1.0.9".parse().unwrap()));
    handle(&request(Command::Del, "old", conf)).unwrap();
    assert!(!dir.path().join("pods/10.1.0.10").exists());
}

#[test]
fn requested_addresses_must_be_usable() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/24"}]]));
    let with_ip = |id: &str, ip: &str| {
        let mut request = request(Command::Add, id, conf.clone());
        request.args.insert("IP".into(), ip.into());
        handle(&request)
    };
    assert_eq!(with_ip("a", "10.1.0.77").unwrap().unwrap().ips[0].address.to_string(), "10.1.0.77/24");
    assert!(with_ip("b", "10.1.0.77").unwrap_err().msg.contains("not available in range set 10.1.0.1-10.1.0.254"));
    assert!(with_ip("b", "10.1.0.1").unwrap_err().msg.contains("is subnet's gateway"));
    assert!(with_ip("b", "10.9.0.1").unwrap_err().msg.contains("failed to allocate all requested IPs: 10.9.0.1"));
    assert_eq!(fs::read_dir(dir.path().join("pods")).unwrap().count(), 3, "failed ones left nothing: lock, last, one address");
}

#[test]
fn gc_frees_addresses_without_owner() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/24"}]]));
    for id in ["a", "b", "c"] {
        add_one(id, &conf).unwrap();
    }
    let mut gc = request(Command::Gc, "", conf.clone());
    gc.config.document.insert("cni.dev/valid-attachments".into(), json!([{"containerID": "b", "ifname": "eth0"}]));
    handle(&gc).unwrap();
    handle(&request(Command::Check, "b", conf.clone())).unwrap();
    for gone in ["a", "c"] {
        handle(&request(Command::Check, gone, conf.clone())).unwrap_err();
    }
}

#[test]
fn defects_of_ranges_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (ranges, text) in [
        (json!([]), "no IP ranges specified"),
        (json!([[]]), "invalid range set 0: empty range set"),
        (json!([[{"subnet": "10.1.0.5/24"}]]), "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.0.0"),
        (json!([[{"subnet": "10.1.0.0/31"}]]), "Network 10.1.0.0/31 too small to allocate from"),
        (json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}]]), "RangeStart 10.2.0.1 not in network 10.1.0.0/24"),
        (json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/25"}]]), "range set 0 overlaps with 1"),
        (json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]), "mixed address families"),
        (json!([[{"subnet": "nonsense"}]]), "cannot decode ipam"),
    ] {
        let error = add_one("a", &ipam(dir.path(), ranges.clone())).unwrap_err();
        assert!(error.msg.contains(text), "{ranges}: {}", error.msg);
    }
}

#[test]
fn two_processes_share_the_store_without_collision() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/24"}]]));
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let conf = conf.clone();
            std::thread::spawn(move || (0..20).map(|i| add_one(&format!("t{t}i{i}"), &conf).unwrap()).collect::<Vec<_>>())
        })
        .collect();
    let mut all: Vec<String> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 160);
}

proptest! {
    // Each case works on files.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_order_of_adds_and_dels_never_gives_one_address_twice(ops in prop::collection::vec((any::<bool>(), 0u8..12), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/29"}, {"subnet": "10.2.0.0/30"}]]));
        let mut held: BTreeMap<u8, String> = BTreeMap::new();
        for (add, id) in ops {
            if add {
                match add_one(&format!("c{id}"), &conf) {
                    Ok(ip) => {
                        prop_assert!(held.iter().all(|(other, taken)| *other == id || *taken != ip));
                        held.insert(id, ip);
                    }
                    Err(error) => {
                        prop_assert_eq!(error.code, code::EXHAUSTED);
                        prop_assert_eq!(held.len(), 6, "five of the /29 and one of the /30");
                    }
                }
            } else {
                handle(&request(Command::Del, &format!("c{id}"), conf.clone())).unwrap();
                held.remove(&id);
            }
        }
    }
}
