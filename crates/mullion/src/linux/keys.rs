//! The keys of a one-machine cluster: `DIR/pki`.
//!
//! The authority and the ServiceAccount key are made once. What they sign is made anew at every start, so that nothing
//! expires in a cluster that is resumed after a year.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::dir::Dirs;
use lab::lan::CONTROL_PLANE;
use node_config::addresses;
use pki::service_account::SigningKey;
use pki::{Ca, CertKey, CertRequest, Credentials, KubeConfig};

use super::cluster_file::{Cluster, Layout};

const YEARS: u64 = 10;
const DAYS: u32 = 365;

/// Port of a new cluster's API server on the real host.
pub const DEFAULT_PORT: u16 = 6443;
/// The router's access to the API, in `DIR/pki`.
pub const ROUTER_KUBECONFIG: &str = "gw.conf";
/// The hollow nodes' access to the API, in `DIR/pki`.
pub const HOLLOW_KUBECONFIG: &str = "hollow.conf";
/// Port of the API server on the LAN.
pub const LAN_PORT: u16 = 6443;

/// Makes what is missing and renews what the authority signs, for the cluster `name` whose API server is at `server`. Returns the
/// administrator's kubeconfig.
pub fn prepare(dir: &Path, layout: &Layout, name: &str, server: &str) -> Result<KubeConfig> {
    let ca = authority(dir)?;
    let key = dir.join("sa.key");
    if !key.exists() {
        pki::write_private(&key, SigningKey::generate()?.pem())?;
    }
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"];
    let first = layout.addresses.service_cidr.iter().map(|net| addresses::nth(net, 1));
    let ips = [Ipv4Addr::LOCALHOST.into()].into_iter().chain(layout.addresses("cp").iter()).chain(first).collect();
    write_pair(dir, "apiserver", &serving(&ca, "kube-apiserver", names.map(str::to_owned).to_vec(), ips)?)?;
    // No group: the user is bound to `system:kubelet-api-admin`, so this key gives access to kubelets, not to the API.
    write_pair(dir, "apiserver-kubelet-client", &client(&ca, "kube-apiserver-kubelet-client", "")?)?;
    for host in layout.hosts.iter().filter(|host| host.name != "cp") {
        let (node, user) = (&host.name, format!("system:node:{}", host.name));
        let pair = serving(&ca, &user, vec![node.clone()], layout.addresses(node).iter().collect())?;
        write_pair(dir, &format!("{node}-serving"), &pair)?;
        let identity = client(&ca, &user, "system:nodes")?;
        let config = kubeconfig(&ca, &format!("https://{CONTROL_PLANE}:{LAN_PORT}"), identity).named(name, &user);
        pki::write_private(&dir.join(format!("{node}.conf")), &config.to_yaml())?;
    }
    // The router reads Nodes and writes their condition NetworkUnavailable, as upstream's route controller may.
    let identity = client(&ca, "system:serviceaccount:kube-system:route-controller", "")?;
    let router = kubeconfig(&ca, &format!("https://{CONTROL_PLANE}:{LAN_PORT}"), identity).named(name, "router");
    pki::write_private(&dir.join(ROUTER_KUBECONFIG), &router.to_yaml())?;
    let identity = client(&ca, hollow::IDENTITY, "")?;
    let nodes = kubeconfig(&ca, &format!("https://{CONTROL_PLANE}:{LAN_PORT}"), identity).named(name, "hollow-nodes");
    pki::write_private(&dir.join(HOLLOW_KUBECONFIG), &nodes.to_yaml())?;
    // One name for context, cluster and user: files of several clusters merge, and `kubectl --context NAME` works.
    let admin = kubeconfig(&ca, server, client(&ca, "kubernetes-admin", "system:masters")?).named(name, name);
    pki::write_private(&dir.join("admin.conf"), &admin.to_yaml())?;
    Ok(admin)
}

fn authority(dir: &Path) -> Result<Ca> {
    let (cert, key) = (dir.join("ca.crt"), dir.join("ca.key"));
    if cert.exists() && key.exists() {
        let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {} failed", path.display()));
        return Ca::from_pem(&read(&cert)?, &read(&key)?)
            .with_context(|| format!("{} is no usable authority: restore it, or remove its directory to begin anew", cert.display()));
    }
    let ca = Ca::generate("mullion", Duration::from_secs(YEARS * 365 * 24 * 3600))?;
    pki::write_private(&key, &ca.key_pem())?;
    pki::write_public(&cert, ca.cert_pem())?;
    Ok(ca)
}

fn serving(ca: &Ca, cn: &str, dns: Vec<String>, ips: Vec<IpAddr>) -> Result<CertKey> {
    let orgs = if cn.starts_with("system:node:") { vec!["system:nodes".to_owned()] } else { Vec::new() };
    Ok(ca.issue(&CertRequest { cn: cn.to_owned(), orgs, dns, ips, server: true, client: false, days: DAYS })?)
}

fn client(ca: &Ca, cn: &str, group: &str) -> Result<CertKey> {
    let orgs = if group.is_empty() { Vec::new() } else { vec![group.to_owned()] };
    let request = CertRequest { cn: cn.to_owned(), orgs, dns: Vec::new(), ips: Vec::new(), server: false, client: true, days: DAYS };
    Ok(ca.issue(&request)?)
}

fn kubeconfig(ca: &Ca, server: &str, identity: CertKey) -> KubeConfig {
    KubeConfig::new(server, ca.cert_pem(), Credentials::Certificate { cert_pem: identity.cert_pem, key_pem: identity.key_pem })
}

/// Where the API server is reached from the real host.
pub fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// Makes the keys, and puts the administrator's access where the user wants it too; where it was `before` it goes.
pub fn publish_all(dirs: &Dirs, cluster: &Cluster, layout: &Layout, before: Option<&Cluster>) -> Result<()> {
    let server = server(cluster.port.unwrap_or(DEFAULT_PORT));
    let admin = prepare(&dirs.dir.join("pki"), layout, &cluster.name, &server)?;
    if let Some(before) = before.filter(|before| (&before.name, &before.kubeconfig) != (&cluster.name, &cluster.kubeconfig)) {
        withdraw_from(before)?;
    }
    match &cluster.kubeconfig {
        Some(file) => publish(&admin, file),
        None => Ok(()),
    }
}

/// Takes the access to a cluster out of the kubeconfig that the user named for it.
pub fn withdraw_from(cluster: &Cluster) -> Result<()> {
    match (&cluster.kubeconfig, cluster.port) {
        (Some(file), Some(port)) => withdraw(&cluster.name, &server(port), file),
        _ => Ok(()),
    }
}

/// The port of the API server that an administrator's kubeconfig names.
pub fn port_of(kubeconfig: &Path) -> Option<u16> {
    KubeConfig::from_path(kubeconfig).ok()?.server.rsplit_once(':')?.1.parse().ok()
}

/// Puts the administrator's access into a kubeconfig of the user's, whatever else is in it.
pub fn publish(admin: &KubeConfig, file: &Path) -> Result<()> {
    let (file, text) = read_shared(file)?;
    let text = admin.merged_into(&text).with_context(|| not_understood(&file))?;
    pki::write_private(&file, &text).with_context(|| format!("cannot write --kubeconfig {}", file.display()))
}

/// Takes the access to cluster `name` at `server` out of a kubeconfig of the user's; the file goes when nothing else is in it.
pub fn withdraw(name: &str, server: &str, file: &Path) -> Result<()> {
    let (file, text) = read_shared(file)?;
    match KubeConfig::removed_from(&text, name, server).with_context(|| not_understood(&file))? {
        Some(left) if left == text => Ok(()),
        Some(left) => pki::write_private(&file, &left).with_context(|| format!("cannot write {}", file.display())),
        None => std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display())),
    }
}

/// The file itself, by whatever links it is reached, and what is in it.
fn read_shared(file: &Path) -> Result<(std::path::PathBuf, String)> {
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok((file, text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((file, String::new())),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

fn not_understood(file: &Path) -> String {
    format!("{} is no kubeconfig: name another file", file.display())
}

fn write_pair(dir: &Path, name: &str, pair: &CertKey) -> Result<()> {
    pki::write_private(&dir.join(format!("{name}.key")), &pair.key_pem)?;
    pki::write_public(&dir.join(format!("{name}.crt")), &pair.cert_pem)?;
    Ok(())
}
