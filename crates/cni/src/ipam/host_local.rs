//! `host-local`: addresses from ranges, remembered in files, compatible with upstream's plug-in: both may share a
//! directory. Source: containernetworking/plugins `plugins/ipam/host-local`.
//!
//! Differences: a second ADD of the same interface gets the same address again (upstream refuses it, which turns a
//! repeated ADD after a crash into an error), and GC frees what no valid attachment holds.

mod config;
mod range;
pub(super) mod store;

use std::net::IpAddr;

use config::Config;
use range::RangeSet;
use store::Store;

use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, IpConfig, code};

pub use config::default_data_dir;

/// Serves one request.
pub fn handle(request: &Request) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request)?;
    let store = Store::open(&config.data_dir, &request.config.name)?;
    let owner = store::Owner { container_id: &request.container_id, ifname: &request.ifname };
    match request.command {
        Command::Add => add(&config, &store, owner).map(Some),
        Command::Del => store.lock()?.release(owner).map(|()| None),
        Command::Check => {
            let held = store.lock()?.held_by(owner)?;
            if held.is_empty() {
                let text = format!("host-local: failed to find address added by container {}", request.container_id);
                return Err(CniError::new(code::DRIFT, text));
            }
            Ok(None)
        }
        Command::Gc => store.lock()?.release_others(&request.valid_attachments()).map(|()| None),
        Command::Status => {
            store.lock()?;
            Ok(None)
        }
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request) -> Result<(), CniError> {
    Config::read(request).map(drop)
}

fn add(config: &Config, store: &Store, owner: store::Owner<'_>) -> Result<AddResult, CniError> {
    let locked = store.lock()?;
    let mut requested = config.requested.clone();
    let mut result = AddResult { routes: config.routes.clone(), dns: config.dns.clone(), ..AddResult::default() };
    for (index, set) in config.ranges.iter().enumerate() {
        let desired = requested.iter().position(|ip| set.holds(*ip)).map(|at| requested.remove(at));
        let allocated = allocate(&locked, set, index, owner, desired);
        match allocated {
            Ok(ip) => result.ips.push(ip),
            Err(mut error) => {
                locked.release(owner)?;
                error.msg = format!("failed to allocate for range {index}: {}", error.msg);
                return Err(error);
            }
        }
    }
    if !requested.is_empty() {
        locked.release(owner)?;
        let list: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
        return Err(CniError::config(format!("failed to allocate all requested IPs: {}; they are in none of the ranges", list.join(", "))));
    }
    Ok(result)
}

fn allocate(store: &store::Locked<'_>, set: &RangeSet, index: usize, owner: store::Owner<'_>, desired: Option<IpAddr>) -> Result<IpConfig, CniError> {
    let answer = |ip: IpAddr, range: &range::Range| IpConfig { address: range.with_prefix(ip), gateway: Some(range.gateway), interface: None };
    let held = store.held_by(owner)?;
    if let Some((ip, range)) = held.iter().find_map(|ip| Some((*ip, set.range_of(*ip)?)))
        && desired.is_none_or(|desired| desired == ip)
    {
        return Ok(answer(ip, range));
    }
    if let Some(desired) = desired {
        let range = set.range_of(desired).ok_or_else(|| CniError::config(format!("requested ip {desired} is in no range")))?;
        if desired == range.gateway {
            return Err(CniError::config(format!("requested ip {desired} is subnet's gateway")));
        }
        if !store.reserve(desired, owner, index)? {
            return Err(CniError::new(code::EXHAUSTED, format!("requested IP address {desired} is not available in range set {set}")));
        }
        return Ok(answer(desired, range));
    }
    for (ip, range) in set.from(store.last_reserved(index)) {
        if store.reserve(ip, owner, index)? {
            return Ok(answer(ip, range));
        }
    }
    Err(CniError::new(code::EXHAUSTED, format!("no IP addresses available in range set: {set}")))
}

#[cfg(test)]
pub(crate) mod tests;
