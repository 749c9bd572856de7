//! What a node's configuration leaves open and the machine knows: names, addresses, directories, sockets, a serving certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use node_config::NodeConfig;
use node_config::node::{NodeConfiguration, Part};
use pki::{Ca, CertRequest};

/// containerd's endpoint, upstream's default.
const RUNTIME: &str = if cfg!(windows) { "npipe:////./pipe/containerd-containerd" } else { "unix:///run/containerd/containerd.sock" };
/// Where containerd reads the CNI configuration, by its default configuration.
const CNI_CONF_DIR: &str = if cfg!(windows) { r"C:\Program Files\containerd\cni\conf" } else { "/etc/cni/net.d" };
/// Addresses of no machine (RFC 5737, RFC 3849): which address the default route gives is asked for them. Nothing is sent.
const ELSEWHERE: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// How long the resolver may take to look a node's name up.
const LOOKUP: Duration = Duration::from_secs(1);
/// How long a self-signed serving certificate is valid, as upstream's.
const YEAR_DAYS: u32 = 365;

/// The machine's name, as it calls itself.
pub fn host_name() -> Option<String> {
    if cfg!(windows) { std::env::var("COMPUTERNAME").ok() } else { std::fs::read_to_string("/proc/sys/kernel/hostname").ok() }
}

/// Fills what was not given. What the machine does not know either stays empty.
pub fn fill(config: &mut NodeConfig) {
    let (node, agent) = (&mut config.node, &mut config.kubelet);
    let set = |place: &mut String, value: &str| {
        if place.is_empty() {
            place.push_str(value);
        }
    };
    if node.node_name.is_empty() {
        // Names of Nodes are lower case, whatever a host calls itself.
        node.node_name = host_name().unwrap_or_default().trim().to_lowercase();
    }
    if node.node_ip.first().is_none()
        && let Some(ip) = OwnAddress::new(&node.node_name).find()
    {
        node.node_ip = ip.into();
        node.node_ip_is_found = true;
    }
    if node.roots.is_empty() && node.os.is_windows() == cfg!(windows) {
        node.roots = roots();
    }
    set(&mut agent.container_runtime_endpoint, RUNTIME);
    if !node.without.contains(&Part::Fabric) {
        set(&mut node.cni_conf_dir, CNI_CONF_DIR);
        if node.lan.first().is_none()
            && let Some(lan) = node.node_ip.first().and_then(network_of)
        {
            node.lan = lan.into();
        }
    }
}

/// Says where the process lacks rights that the node agent takes (upstream cmd/kubelet/app/server_windows.go `checkPermissions`).
pub fn warn_without_rights() {
    #[cfg(windows)]
    if let Some(warning) = without_rights(host::is_elevated()) {
        tracing::error!("{warning}");
    }
}

#[cfg(any(windows, test))]
fn without_rights(elevated: std::io::Result<bool>) -> Option<String> {
    let consequence = "network, volumes and statistics of pods take all rights of an administrator, and fail without them";
    match elevated {
        Ok(true) => None,
        Ok(false) => Some(format!("the node agent does not run elevated: {consequence}; start it as administrator, or as a service of LocalSystem")),
        Err(error) => Some(format!("cannot see whether the node agent runs elevated: {error}; {consequence}")),
    }
}

/// The roots of the machine's own files: its fixed drives.
fn roots() -> Vec<String> {
    #[cfg(windows)]
    return host::fixed_drives().into_iter().map(|drive| format!(r"{drive}={drive}:\")).collect();
    #[cfg(not(windows))]
    vec!["/".to_owned()]
}

/// Finds the address of a node that was given none (upstream nodestatus/setters.go `NodeAddress`): its name where that is one, else an address
/// of the machine that name servers or the hosts file give for the name, else the machine's on its default route.
pub struct OwnAddress {
    name: String,
    /// The address that the name stood for last.
    named: Mutex<Option<IpAddr>>,
}

impl OwnAddress {
    pub fn new(node_name: &str) -> Self {
        Self { name: node_name.to_owned(), named: Mutex::default() }
    }

    /// The address now. Blocks while the name is looked up, a second at most.
    pub fn find(&self) -> Option<IpAddr> {
        if let Ok(ip) = self.name.parse() {
            return Some(ip);
        }
        let looked = look_up(&self.name);
        let on_route = ELSEWHERE.into_iter().find_map(address_towards);
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        *named = choose(looked.as_deref(), on_route, *named, is_own);
        named.or(on_route)
    }
}

/// The address that a name stands for, out of those that were `looked` up; None of a look-up that failed, when the one `before` stays while the
/// machine has it. Loopback, multicast, link-local and unspecified addresses are none of a node, nor are those of other machines (upstream
/// `validateNodeIP`). The one on the default route comes first: a Windows machine gives its name for the addresses of its switches too. Then
/// come those of IPv4, as upstream's.
fn choose(looked: Option<&[IpAddr]>, on_route: Option<IpAddr>, before: Option<IpAddr>, is_own: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let Some(looked) = looked else { return before.filter(|ip| is_own(*ip)) };
    let link_local = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let fits = |ip: &&IpAddr| !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || link_local(ip)) && is_own(**ip);
    looked.iter().filter(fits).min_by_key(|ip| (Some(**ip) != on_route, ip.is_ipv6())).copied()
}

/// The addresses of a name; None where the look-up failed or takes too long.
fn look_up(name: &str) -> Option<Vec<IpAddr>> {
    if name.is_empty() {
        return None;
    }
    let (sender, found) = mpsc::sync_channel(1);
    let name = name.to_owned();
    // The system's resolver knows no time limit of ours: one that hangs keeps its thread for as long as its own limits are.
    let look = move || {
        let found = (name.as_str(), 0).to_socket_addrs().map(|all| all.map(|at| at.ip()).collect()).ok();
        let _ = sender.send(found);
    };
    std::thread::Builder::new().name("look-up".to_owned()).spawn(look).ok()?;
    found.recv_timeout(LOOKUP).ok().flatten()
}

/// Whether an interface of the machine has an address.
fn is_own(ip: IpAddr) -> bool {
    // On Linux a socket can be bound to foreign addresses too where `ip_nonlocal_bind` is set.
    if cfg!(target_os = "linux") { network_of(ip).is_some() } else { UdpSocket::bind((ip, 0)).is_ok() }
}

/// The machine's address on the way to another.
fn address_towards(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(other, 9)).ok()?;
    socket.local_addr().ok().map(|at| at.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// The network of the interface that has an address.
#[cfg(target_os = "linux")]
fn network_of(ip: IpAddr) -> Option<IpNet> {
    let netlink = linux_sys::netlink::Rtnl::open().ok()?;
    let nets = netlink.links().ok()?.into_iter().filter_map(|link| netlink.addrs(link.index).ok()).flatten();
    nets.into_iter().find(|net| net.addr() == ip).map(|net| net.trunc())
}

#[cfg(not(target_os = "linux"))]
fn network_of(_: IpAddr) -> Option<IpNet> {
    None
}

/// Where the node's certificates are, on this machine.
pub fn cert_dir(node: &NodeConfiguration) -> Result<PathBuf> {
    if !node.cert_dir.is_empty() {
        return Ok(node.cert_dir.clone().into());
    }
    let first = node.roots.first().context("the node has no root")?;
    let root = if node.os.is_windows() { super::node::drive(first)?.1 } else { PathBuf::from(first) };
    let below = node.root_dir.trim_start_matches(|c: char| c.is_ascii_alphabetic()).trim_start_matches([':', '/', '\\']);
    let below = if node.root_dir.starts_with(['/', '\\']) { node.root_dir.trim_start_matches(['/', '\\']) } else { below };
    Ok(below.split(['/', '\\']).fold(root, |dir, part| dir.join(part)).join("pki"))
}

/// Makes the directory of certificates, to be done before anything is read from it.
pub fn make_cert_dir(dir: &Path) -> Result<()> {
    host::make_private_dir(dir).with_context(|| format!("cannot use {}: give another --cert-dir", dir.display()))
}

/// Names the serving certificate of `dir`, which is made once, self-signed, where there is none (upstream's InitializeTLS).
pub fn self_signed(config: &mut NodeConfig, dir: &Path) -> Result<()> {
    let node = &config.node;
    let (cert, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    // First: who could write to the directory may have put a pair there.
    make_cert_dir(dir)?;
    if !(cert.is_file() && key.is_file()) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let ca = Ca::generate(&format!("{}-ca@{now}", node.node_name), Duration::from_secs(u64::from(YEAR_DAYS) * 86_400))?;
        let made = ca.issue(&CertRequest {
            cn: format!("{}@{now}", node.node_name),
            dns: vec![node.node_name.clone()],
            ips: node.node_ip.iter().collect(),
            server: true,
            days: YEAR_DAYS,
            ..CertRequest::default()
        })?;
        pki::write_private(&key, &made.key_pem)?;
        pki::write_public(&cert, &format!("{}{}", made.cert_pem, ca.cert_pem()))?;
    }
    config.kubelet.tls_cert_file = cert.display().to_string();
    config.kubelet.tls_private_key_file = key.display().to_string();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_below_the_nodes_root_unless_another_place_is_named() {
        let dir = |os: &str, roots: &[&str], root_dir: &str, cert_dir: &str| {
            let roots = roots.iter().map(|root| (*root).to_owned()).collect();
            let node = NodeConfiguration {
                os: os.parse().unwrap(),
                roots,
                root_dir: root_dir.to_owned(),
                cert_dir: cert_dir.to_owned(),
                ..NodeConfiguration::default()
            };
            super::cert_dir(&node).map(|dir| dir.display().to_string().replace('\\', "/")).map_err(|error| error.to_string())
        };
        assert_eq!(dir("linux", &["/"], "/var/lib/kubelet", ""), Ok("/var/lib/kubelet/pki".to_owned()));
        assert_eq!(dir("windows", &["C=/hosts/win01/c"], r"C:\var\lib\kubelet", ""), Ok("/hosts/win01/c/var/lib/kubelet/pki".to_owned()));
        assert_eq!(dir("windows", &["C=/c"], "/k", ""), Ok("/c/k/pki".to_owned()));
        assert_eq!(dir("linux", &["/"], "/k", "/certs"), Ok("/certs".to_owned()));
        assert!(dir("linux", &[], "/k", "").is_err());
    }

    #[test]
    fn a_serving_certificate_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("pki");
        let mut config = NodeConfig::default();
        config.node.node_name = "win01".to_owned();
        config.node.node_ip = "10.0.0.5".parse().unwrap();
        self_signed(&mut config, &place).unwrap();
        let made = std::fs::read_to_string(&config.kubelet.tls_cert_file).unwrap();
        assert_eq!(made.matches("BEGIN CERTIFICATE").count(), 2, "with its authority");
        assert!(std::fs::read_to_string(&config.kubelet.tls_private_key_file).unwrap().contains("PRIVATE KEY"));
        self_signed(&mut config, &place).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("kubelet.crt")).unwrap(), made);
    }

    #[test]
    fn the_name_of_a_machine_stands_for_one_of_its_own_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ["10.0.0.5", "172.20.0.1", "fd00::5", "127.0.1.1", "127.0.0.1", "::1", "169.254.1.1", "fe80::1"].map(ip);
        let is_own = |ip: IpAddr| own.contains(&ip);
        for (looked, before, chosen) in [
            (Some(&["10.0.0.5"][..]), None, Some("10.0.0.5")),
            // Debian's hosts file.
            (Some(&["127.0.1.1"]), None, None),
            (Some(&["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"]), None, None),
            (Some(&["fd00::5", "10.0.0.5"]), None, Some("10.0.0.5")),
            (Some(&["fd00::5"]), None, Some("fd00::5")),
            // Another machine's, first.
            (Some(&["192.0.2.9", "10.0.0.5"]), None, Some("10.0.0.5")),
            (Some(&["192.0.2.9"]), Some("10.0.0.5"), None),
            // A switch, before the address on the default route.
            (Some(&["172.20.0.1", "10.0.0.5"]), None, Some("10.0.0.5")),
            (Some(&["172.20.0.1"]), None, Some("172.20.0.1")),
            (Some(&[]), Some("10.0.0.5"), None),
            // Name servers that are away move no node.
            (None, Some("172.20.0.1"), Some("172.20.0.1")),
            (None, Some("192.0.2.9"), None),
            (None, None, None),
        ] {
            let all = looked.map(|all| all.iter().map(|text| ip(text)).collect::<Vec<_>>());
            assert_eq!(choose(all.as_deref(), Some(ip("10.0.0.5")), before.map(ip), is_own), chosen.map(ip), "{looked:?} after {before:?}");
        }
        let all = ["172.20.0.1", "fd00::5"].map(ip);
        assert_eq!(choose(Some(&all), Some(ip("fd00::5")), None, is_own), Some(ip("fd00::5")), "of the family of the default route");
        assert_eq!(choose(Some(&all), None, None, is_own), Some(ip("172.20.0.1")));
    }

    #[test]
    fn names_are_looked_up_and_addresses_are_of_this_machine_or_not() {
        assert!(look_up("localhost").unwrap().iter().all(IpAddr::is_loopback));
        assert_eq!(look_up(""), None);
        assert_eq!(look_up("name with blanks.invalid"), None);
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own(ELSEWHERE[0]) && !is_own(ELSEWHERE[1]));
        assert_eq!(OwnAddress::new("10.0.0.7").find(), Some("10.0.0.7".parse().unwrap()));
        let began = std::time::Instant::now();
        let route = ELSEWHERE.into_iter().find_map(address_towards);
        assert_eq!(OwnAddress::new("nobody.invalid").find(), route, "no such name");
        assert!(began.elapsed() < LOOKUP * 3, "whatever name servers do");
    }

    #[test]
    fn an_agent_without_rights_says_so() {
        assert_eq!(without_rights(Ok(true)), None);
        let warning = without_rights(Ok(false)).unwrap();
        assert!(warning.starts_with("the node agent does not run elevated: ") && warning.contains("start it as administrator"), "{warning}");
        assert!(without_rights(Err(std::io::Error::other("no token"))).unwrap().contains("no token"));
    }

    #[test]
    fn what_is_given_stays() {
        let mut config = NodeConfig::default();
        config.node.node_name = "win01".to_owned();
        config.node.node_ip = "10.0.0.5".parse().unwrap();
        config.node.roots = vec!["/root".to_owned()];
        config.node.lan = "10.0.0.0/8".parse().unwrap();
        config.node.cni_conf_dir = "/conf".to_owned();
        config.kubelet.container_runtime_endpoint = "unix:///cri".to_owned();
        let given = config.clone();
        fill(&mut config);
        assert_eq!(config, given);
        let mut empty = NodeConfig::default();
        fill(&mut empty);
        assert_eq!((empty.kubelet.container_runtime_endpoint.as_str(), empty.node.cni_conf_dir.as_str()), (RUNTIME, CNI_CONF_DIR));
        assert!(!empty.node.node_name.is_empty() && !empty.node.roots.is_empty());
        // A Windows node on another machine has no root by itself.
        let mut simulated = NodeConfig::default();
        simulated.node.os = if cfg!(windows) { "linux".parse().unwrap() } else { "windows".parse().unwrap() };
        fill(&mut simulated);
        assert!(simulated.node.roots.is_empty());
        let mut named = NodeConfig::default();
        named.node.node_name = "10.0.0.7".to_owned();
        fill(&mut named);
        assert_eq!(named.node.node_ip, "10.0.0.7".parse().unwrap(), "an address as its name");
    }
}
