//! Configuration of host-local.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::range::{RangeConfig, RangeSet};
use crate::fold::fold;
use crate::plugin::Request;
use crate::spec::{CniError, Dns, Route, SpecVersion};

/// Checked configuration.
#[derive(Debug)]
pub(super) struct Config {
    pub data_dir: PathBuf,
    pub ranges: Vec<RangeSet>,
    pub routes: Vec<Route>,
    pub dns: Dns,
    /// Addresses that the runtime wants; each must lie in a range.
    pub requested: Vec<IpAddr>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ipam {
    #[serde(default)]
    data_dir: Option<PathBuf>,
    #[serde(default)]
    resolv_conf: Option<PathBuf>,
    #[serde(default)]
    ranges: Option<Vec<Vec<RangeConfig>>>,
    #[serde(default)]
    routes: Option<Vec<Route>>,
}

const KEYS: &[&str] = &["type", "dataDir", "resolvConf", "ranges", "routes", "subnet", "rangeStart", "rangeEnd", "gateway"];

/// Where reservations lie unless `dataDir` says otherwise; on Windows relative to the system drive, as upstream.
pub fn default_data_dir() -> PathBuf {
    PathBuf::from(if cfg!(windows) { r"C:\var\lib\cni\networks" } else { "/var/lib/cni/networks" })
}

impl Config {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        request.refuse_unknown_args(&["IP"])?;
        let mut ipam = request.config.document.get("ipam").cloned().unwrap_or_default();
        if !ipam.is_object() {
            return Err(CniError::config("IPAM config missing 'ipam' key"));
        }
        fold_ipam(&mut ipam);
        let parsed: Ipam = serde_json::from_value(ipam.clone()).map_err(|e| CniError::decode("ipam", &e))?;
        let mut sets = runtime_ranges(request)?;
        if ipam.get("subnet").is_some_and(|s| !s.is_null()) {
            let flat: RangeConfig = serde_json::from_value(ipam).map_err(|e| CniError::decode("ipam", &e))?;
            sets.push(vec![flat]);
        }
        sets.extend(parsed.ranges.unwrap_or_default());
        let ranges = sets
            .into_iter()
            .enumerate()
            .map(|(i, set)| RangeSet::new(set).map_err(|e| CniError::config(format!("invalid range set {i}: {}", e.msg))))
            .collect::<Result<Vec<_>, _>>()?;
        check_sets(&ranges, request.config.cni_version)?;
        Ok(Self {
            data_dir: parsed.data_dir.unwrap_or_else(default_data_dir),
            ranges,
            routes: parsed.routes.unwrap_or_default(),
            dns: parsed.resolv_conf.map(|path| resolv_conf(&path)).transpose()?.unwrap_or_default(),
            requested: requested(request)?,
        })
    }
}

fn fold_ipam(ipam: &mut Value) {
    fold(ipam, KEYS);
    let lists = |value: &mut Value, key: &str| value.get_mut(key).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
    let mut routes = lists(ipam, "routes");
    routes.iter_mut().for_each(|route| fold(route, &["dst", "gw", "mtu", "priority"]));
    let mut ranges = lists(ipam, "ranges");
    for range in ranges.iter_mut().filter_map(Value::as_array_mut).flatten() {
        fold(range, KEYS);
    }
    ipam["routes"] = Value::Array(routes);
    ipam["ranges"] = Value::Array(ranges);
}

fn check_sets(ranges: &[RangeSet], version: SpecVersion) -> Result<(), CniError> {
    if ranges.is_empty() {
        return Err(CniError::config("no IP ranges specified"));
    }
    for (i, a) in ranges.iter().enumerate() {
        if let Some(j) = ranges[i + 1..].iter().position(|b| a.overlaps(b)) {
            return Err(CniError::config(format!("range set {i} overlaps with {}", i + j + 1)));
        }
    }
    let v4 = ranges.iter().filter(|set| set.is_v4()).count();
    if version < SpecVersion::V0_3_0 && (v4 > 1 || ranges.len() - v4 > 1) {
        return Err(CniError::config(format!("CNI version {version} does not support more than 1 address per family")));
    }
    Ok(())
}

fn runtime_ranges(request: &Request) -> Result<Vec<Vec<RangeConfig>>, CniError> {
    let mut sets = request.config.runtime_config()?.ip_ranges;
    for range in sets.iter_mut().filter_map(Value::as_array_mut).flatten() {
        fold(range, KEYS);
    }
    serde_json::from_value(Value::Array(sets)).map_err(|e| CniError::decode("runtimeConfig.ipRanges", &e))
}

/// Addresses from `CNI_ARGS` `IP`, `args.cni.ips` and `runtimeConfig.ips`, with or without a prefix length.
fn requested(request: &Request) -> Result<Vec<IpAddr>, CniError> {
    let mut texts: Vec<String> = Vec::new();
    texts.extend(request.args.get("IP").map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>()).unwrap_or_default());
    let in_args = request.config.document.get("args").and_then(|a| a.get("cni")).and_then(|c| c.get("ips")).and_then(Value::as_array);
    texts.extend(in_args.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    texts.extend(request.config.runtime_config()?.ips);
    let mut ips = Vec::new();
    for text in texts.iter().map(|t| t.trim()).filter(|t| !t.is_empty()) {
        let bare = text.split_once('/').map_or(text, |(ip, _)| ip);
        let ip: IpAddr = bare.parse().map_err(|_| CniError::config(format!("requested address {text:?} is not an IP address")))?;
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Ok(ips)
}

/// Reads a `resolv.conf`: comments start with `;` or `#`.
fn resolv_conf(path: &std::path::Path) -> Result<Dns, CniError> {
    let text = fs::read_to_string(path).map_err(|e| CniError::io(format_args!("read {}", path.display()), &e))?;
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with([';', '#'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        match (words.next().as_deref(), words) {
            (Some("nameserver"), mut rest) => dns.nameservers.extend(rest.next()),
            (Some("domain"), mut rest) => dns.domain = rest.next().unwrap_or_default(),
            (Some("search"), rest) => dns.search.extend(rest),
            (Some("options"), rest) => dns.options.extend(rest),
            _ => {}
        }
    }
    Ok(dns)
}
