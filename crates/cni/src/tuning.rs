//! `tuning`: kernel settings of a sandbox and of its link, behind another plug-in in a list. Source: containernetworking/plugins
//! `plugins/meta/tuning`.
//!
//! What the link had before is kept in a file of `dataDir` and set back by DEL. Only settings below `net` are taken, and where
//! `/etc/cni/tuning/allowlist.conf` exists, only those in which one of its lines, a regular expression, is found.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use linux_sys::netlink::{Link, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::fold::fold_map;
use crate::links::{mac_text, must_find, net, parse_mac};
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, code};

const ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    sysctl: std::collections::BTreeMap<String, String>,
    mac: String,
    mtu: u32,
    promisc: Option<bool>,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue: Option<u32>,
    data_dir: Option<PathBuf>,
}

const KEYS: &[&str] = &["sysctl", "mac", "mtu", "promisc", "allmulti", "txQLen", "dataDir"];

/// What a link had before it was changed.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Before {
    mac: String,
    mtu: u32,
    promisc: bool,
    allmulti: bool,
    #[serde(rename = "txQLen")]
    tx_queue: u32,
}

impl Config {
    fn read(request: &Request) -> Result<Self, CniError> {
        request.refuse_unknown_args(&["MAC"])?;
        let mut document = request.config.document.clone();
        fold_map(&mut document, KEYS);
        document.retain(|key, value| KEYS.contains(&key.as_str()) && !value.is_null());
        let mut config: Self = serde_json::from_value(document.into()).map_err(|e| CniError::decode("the configuration of tuning", &e))?;
        // As upstream: the runtime's arguments count more than the configuration.
        let in_args = request.config.document.get("args").and_then(|args| args.pointer("/cni/mac")).and_then(|mac| mac.as_str());
        let given = request.config.runtime_config()?.mac.or_else(|| in_args.map(str::to_owned)).or_else(|| request.args.get("MAC").cloned());
        config.mac = given.unwrap_or(config.mac);
        if !config.mac.is_empty() {
            parse_mac(&config.mac)?;
        }
        config.sysctl.keys().try_for_each(|key| file(key).map(drop))?;
        Ok(config)
    }

    fn changes_link(&self) -> bool {
        !self.mac.is_empty() || self.mtu != 0 || self.promisc.is_some() || self.allmulti.is_some() || self.tx_queue.is_some()
    }

    fn backup(&self, request: &Request) -> PathBuf {
        let dir = self.data_dir.clone().unwrap_or_else(|| "/run/cni/tuning".into());
        dir.join(format!("{}_{}.json", request.container_id, request.ifname))
    }
}

/// The setting's name in `sysctl`'s form. Dots separate, or slashes where the first separator is one; then dots are part of names.
fn file(key: &str) -> Result<String, CniError> {
    let refuse = || CniError::config(format!("invalid net sysctl key: {key:?}; name a setting below net"));
    let slashed = key.find('/').is_some_and(|slash| key.find('.').is_none_or(|dot| slash < dot));
    let name = if slashed { key.replace('.', "\0").replace('/', ".").replace('\0', "/") } else { key.to_owned() };
    let parts: Vec<&str> = name.split('.').collect();
    let below_net = parts.len() > 1 && parts[0] == "net";
    let clean = parts.iter().all(|part| !part.is_empty() && part.split('/').all(|name| !name.is_empty()) && !part.contains('\0'));
    if below_net && clean { Ok(name) } else { Err(refuse()) }
}

/// Serves one request.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    match request.command {
        Command::Add => add(request, &config, Path::new(ALLOWLIST)).map(Some),
        Command::Del => del(request, &config).map(|()| None),
        Command::Check => check(request, &config).map(|()| None),
        // What is kept names no network, so that GC of one cannot tell what another needs. DEL removes it.
        Command::Gc | Command::Status => Ok(None),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

/// Whether the administrator lets networks change a setting.
fn check_allowed(config: &Config, list: &Path) -> Result<(), CniError> {
    let text = match fs::read_to_string(list) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(CniError::io(format_args!("read {}", list.display()), &error)),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let bad = |line: &str, error: regex::Error| {
        let reason = error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        CniError::config(format!("{} has the line {line:?}: {reason}; write a regular expression", list.display()))
    };
    let allowed: Vec<Regex> =
        lines.iter().map(|line| RegexBuilder::new(line).size_limit(1 << 20).build().map_err(|e| bad(line, e))).collect::<Result<_, _>>()?;
    match config.sysctl.keys().find(|key| !allowed.iter().any(|line| line.is_match(key))) {
        Some(key) => Err(CniError::config(format!("Sysctl {key} is not allowed. Only the following sysctls are allowed: {lines:?}"))),
        None => Ok(()),
    }
}

fn sandbox(request: &Request) -> Result<(NetNs, Rtnl), CniError> {
    let sandbox = NetNs::open(Path::new(&request.netns)).map_err(|e| CniError::io(format_args!("open netns {:?}", request.netns), &e))?;
    let inside = Rtnl::open_in(&sandbox).map_err(net)?;
    Ok((sandbox, inside))
}

fn add(request: &Request, config: &Config, allowlist: &Path) -> Result<AddResult, CniError> {
    check_allowed(config, allowlist)?;
    let Some(mut result) = request.config.prev_result()? else {
        return Err(CniError::config("required prevResult missing: put tuning behind another plug-in"));
    };
    let (sandbox, inside) = sandbox(request)?;
    for (key, value) in &config.sysctl {
        let name = file(key)?.replace("IFNAME", &request.ifname);
        sysctl::set_in(&sandbox, &name, value).map_err(|e| CniError::io(format_args!("set {key}={value}"), &e))?;
    }
    if config.changes_link() {
        let link = must_find(&inside, &request.ifname)?;
        keep(&config.backup(request), &link)?;
        change(&inside, link.index, config)?;
        for interface in result.interfaces.iter_mut().filter(|interface| !interface.sandbox.is_empty() && interface.name == request.ifname) {
            if !config.mac.is_empty() {
                interface.mac.clone_from(&config.mac);
            }
            if config.mtu != 0 {
                interface.mtu = Some(config.mtu);
            }
        }
    }
    Ok(result)
}

/// Writes what the link has, once: a repeated ADD must not keep what the first one set.
fn keep(path: &Path, link: &Link) -> Result<(), CniError> {
    if path.exists() {
        return Ok(());
    }
    let before = Before { mac: mac_text(link.mac), mtu: link.mtu, promisc: link.promiscuous, allmulti: link.all_multicast, tx_queue: link.tx_queue };
    let text = serde_json::to_vec(&before).unwrap_or_default();
    let written = fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).and_then(|()| atomic_file::write(path, text));
    written.map_err(|e| CniError::io(format_args!("write {}", path.display()), &e))
}

fn change(inside: &Rtnl, link: u32, config: &Config) -> Result<(), CniError> {
    if !config.mac.is_empty() {
        inside.set_mac(link, parse_mac(&config.mac)?).map_err(net)?;
    }
    if let Some(on) = config.promisc {
        inside.set_promiscuous(link, on).map_err(net)?;
    }
    if config.mtu != 0 {
        inside.set_mtu(link, config.mtu).map_err(net)?;
    }
    if let Some(on) = config.allmulti {
        inside.set_all_multicast(link, on).map_err(net)?;
    }
    if let Some(packets) = config.tx_queue {
        inside.set_tx_queue(link, packets).map_err(net)?;
    }
    Ok(())
}

/// Sets back what ADD changed. What is gone, sandbox or link, needs nothing.
fn del(request: &Request, config: &Config) -> Result<(), CniError> {
    let path = config.backup(request);
    let before = match fs::read(&path) {
        // What was half written says nothing of the link, which goes in a moment.
        Ok(bytes) => serde_json::from_slice::<Before>(&bytes).ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(CniError::io(format_args!("read {}", path.display()), &error)),
    };
    if let Some(before) = before
        && let Ok((_, inside)) = sandbox(request)
        && let Some(link) = inside.link(&request.ifname).map_err(net)?
    {
        let back = Config {
            mac: if config.mac.is_empty() { String::new() } else { before.mac },
            mtu: if config.mtu == 0 { 0 } else { before.mtu },
            promisc: config.promisc.map(|_| before.promisc),
            allmulti: config.allmulti.map(|_| before.allmulti),
            tx_queue: config.tx_queue.map(|_| before.tx_queue),
            ..Config::default()
        };
        change(&inside, link.index, &back)?;
    }
    fs::remove_file(&path).map_err(|e| CniError::io(format_args!("remove {}", path.display()), &e))
}

fn check(request: &Request, config: &Config) -> Result<(), CniError> {
    let drift = |what: &str, is: String, should: String| Err(CniError::new(code::DRIFT, format!("{what} is {is}, not {should}")));
    let (sandbox, inside) = sandbox(request)?;
    for (key, value) in &config.sysctl {
        let name = file(key)?.replace("IFNAME", &request.ifname);
        let is = sandbox.run(|| sysctl::get(&name)).and_then(|read| read).map_err(|e| CniError::io(format_args!("read {key}"), &e))?;
        if is.trim() != value {
            return drift(key, is.trim().to_owned(), value.clone());
        }
    }
    let link = must_find(&inside, &request.ifname)?;
    if !config.mac.is_empty() && parse_mac(&config.mac)? != link.mac {
        return drift("the MAC", mac_text(link.mac), config.mac.clone());
    }
    let pairs = [
        ("the MTU", Some(config.mtu).filter(|mtu| *mtu != 0), link.mtu),
        ("promiscuous mode", config.promisc.map(u32::from), link.promiscuous.into()),
        ("all-multicast mode", config.allmulti.map(u32::from), link.all_multicast.into()),
        ("the queue", config.tx_queue, link.tx_queue),
    ];
    for (what, should, is) in pairs {
        if let Some(should) = should.filter(|should| *should != is) {
            return drift(what, is.to_string(), should.to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_below_net_are_taken() {
        for (key, name) in [
            ("net.core.somaxconn", "net.core.somaxconn"),
            ("net/ipv4/conf/eth0.7/arp_filter", "net.ipv4.conf.eth0/7.arp_filter"),
            ("net.ipv4.conf.IFNAME.arp_filter", "net.ipv4.conf.IFNAME.arp_filter"),
        ] {
            assert_eq!(file(key).unwrap(), name);
        }
        for key in ["", "net", "kernel.shmmax", "net..x", "net.", "/etc/passwd", "net/../kernel/shmmax", "net.ipv4/../../kernel.shmmax"] {
            assert!(file(key).is_err(), "{key}");
        }
    }

    #[test]
    fn half_written_memory_of_a_link_does_not_stop_del() {
        let dir = tempfile::tempdir().unwrap();
        let document = serde_json::json!({"cniVersion": "1.0.0", "name": "n", "type": "tuning", "mtu": 1400, "txQLen": 7, "dataDir": dir.path()});
        let read = |name: &str| {
            let value = match name {
                "CNI_CONTAINERID" => "abc",
                "CNI_NETNS" => "/run/netns/none",
                "CNI_IFNAME" => "eth0",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let request = Request::read("DEL", &read, document.to_string().as_bytes()).unwrap();
        let file = dir.path().join("abc_eth0.json");
        let whole = serde_json::to_vec(&Before { mtu: 1500, tx_queue: 1000, ..Before::default() }).unwrap();
        for cut in 0..=whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            handle(&request).unwrap();
            assert!(!file.exists(), "{cut}");
        }
    }

    #[test]
    fn administrators_list_decides() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("allowlist.conf");
        let config = Config { sysctl: [("net.core.somaxconn".to_owned(), "1".to_owned())].into(), ..Config::default() };
        check_allowed(&config, &list).unwrap();
        for (text, fine) in [
            ("^net\\.core\\..*$\n", true),
            ("net.ipv4.ip_forward\n\nnet.core.somaxconn\n", true),
            ("net.ipv4.ip_forward\n", false),
            ("net.(core|ipv4).somaxconn$\n", true),
            ("^net\\.(ipv4|ipv6)\\.\n", false),
            ("core.som[a-z]{2}conn", true),
            ("net.(core\n", false),
        ] {
            fs::write(&list, text).unwrap();
            assert_eq!(check_allowed(&config, &list).is_ok(), fine, "{text}");
        }
    }
}
