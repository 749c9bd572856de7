//! `bench proxy-nft`: the service proxy on Linux, nftables and user space, in namespaces of its own.
//!
//! The program starts itself again in new namespaces (so that an ordinary user may run it) and there, for what is measured by
//! itself, once more.

mod carry;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Subcommand;
use cluster::Key;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use linux_sys::netlink::Rtnl;
use service_proxy::nftables::{Nftables, Pods, Settings, cleanup};
use service_proxy::{NodePolicy, ServiceRow, SliceRow, Table, VipKey, desired_vips};

use crate::api::{self, BACKENDS};
use crate::command::{self, Programs};
use crate::figures::{Figures, Report};
use crate::namespaced;
use crate::up::median;

/// What the program does when it has started itself again.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Everything, within the namespaces
    Lab(Programs),
    /// A relay of splice and nothing else, from one address to another
    Bare { from: SocketAddr, to: SocketAddr },
    /// Takes bytes at an address
    Sink { at: SocketAddr },
}

/// Measures and prints. The exit code says whether a figure is over its limit.
pub fn main(programs: &Programs) -> Result<()> {
    namespaced::again(["proxy-nft-part".to_owned(), "lab".to_owned()].into_iter().chain(programs.arguments()?))
}

/// Does a part.
pub fn part(part: &Part) -> Result<ExitCode> {
    match part {
        Part::Lab(programs) => lab(programs),
        Part::Bare { from, to } => carry::bare(*from, *to).map(|()| ExitCode::SUCCESS),
        Part::Sink { at } => carry::sink(*at).map(|()| ExitCode::SUCCESS),
    }
}

/// How many Services are programmed, and the longest that may take.
const SIZES: [(usize, Duration); 2] = [(2_000, Duration::from_millis(100)), (20_000, Duration::from_secs(1))];

fn lab(programs: &Programs) -> Result<ExitCode> {
    carry::raise_limits()?;
    Rtnl::open()?.set_up(1)?;
    let mut report = Report::resume();
    for (services, most) in SIZES.into_iter().filter(|_| !programs.only_memory) {
        report.table(&format!("nftables, {services} Services x {BACKENDS} backends"), |figures| programming(figures, services, most));
    }
    for size in command::NFTABLES {
        report.table(&format!("`mullion kube-proxy`, nftables, {} Services x {BACKENDS}", size.services), |figures| {
            command::nftables(figures, programs, size)
        });
    }
    if !programs.only_memory {
        report.table("user space, over the loopback", |figures| carry::measure(figures, programs));
    }
    Ok(report.end())
}

struct World {
    table: Table,
    policy: NodePolicy,
}

impl World {
    fn new(services: usize) -> Result<Self> {
        let mut world = Self { table: Table::default(), policy: NodePolicy::default() };
        for n in 0..services {
            world.set(n, &world_rows(n, 0)?);
        }
        Ok(world)
    }

    fn set(&mut self, n: usize, (row, slice): &(ServiceRow, Arc<SliceRow>)) -> BTreeSet<VipKey> {
        let key = Key::new(api::namespace(n), format!("service-{n}"));
        let desired = desired_vips(&key, row, std::slice::from_ref(slice), &self.policy);
        self.table.set_service(&key, desired).into_iter().map(|change| change.key).collect()
    }
}

fn world_rows(n: usize, version: usize) -> Result<(ServiceRow, Arc<SliceRow>)> {
    let row = ServiceRow::of(&serde_json::from_value::<Service>(api::service(n))?).context("a Service needs no proxy")?;
    let slice = SliceRow::of(&serde_json::from_value::<EndpointSlice>(api::slice(n, version))?, "node-0").context("a slice is left out")?;
    Ok((row, Arc::new(slice)))
}

fn backend() -> Nftables {
    let node: IpAddr = [10, 240, 0, 11].into();
    Nftables::new(Settings::new(vec![node], Pods::Nets(vec![([10, 0, 0, 0], 12).into_net()])))
}

trait IntoNet {
    fn into_net(self) -> ipnet::IpNet;
}

impl IntoNet for ([u8; 4], u8) {
    fn into_net(self) -> ipnet::IpNet {
        ipnet::Ipv4Net::new_assert(self.0.into(), self.1).into()
    }
}

const CHANGES: usize = 201;

fn programming(figures: &mut Figures, services: usize, most: Duration) -> Result<()> {
    let sync =
        |proxy: &mut Nftables, table: &Table, dirty: &BTreeSet<VipKey>, full: bool| proxy.sync(table, dirty, full).map_err(anyhow::Error::from);
    let mut world = World::new(services)?;
    let none = BTreeSet::new();
    let mut times = Vec::new();
    for _ in 0..3 {
        cleanup().map_err(anyhow::Error::msg)?;
        let mut proxy = backend();
        let begin = Instant::now();
        let writes = sync(&mut proxy, &world.table, &none, true)?.writes;
        times.push(begin.elapsed());
        ensure!(writes == services * (BACKENDS + 3), "{writes} elements for {services} Services: each has a VIP, an address, slots and a pod here");
    }
    figures.time(format!("{services}: all, into an empty kernel"), median(times), most);
    let mut proxy = backend();
    let begin = Instant::now();
    let writes = sync(&mut proxy, &world.table, &none, true)?.writes;
    ensure!(writes == 0, "a restart wrote {writes} elements");
    figures.background_time(format!("{services}: taking over after a restart (nothing written)"), begin.elapsed());
    let changes = (1..=CHANGES)
        .map(|version| {
            let rows = world_rows(services / 2, version)?;
            let begin = Instant::now();
            let dirty = world.set(services / 2, &rows);
            let writes = sync(&mut proxy, &world.table, &dirty, false)?.writes;
            let time = begin.elapsed();
            ensure!(writes > 0, "nothing was written for a replaced pod");
            Ok(time)
        })
        .collect::<Result<Vec<_>>>()?;
    figures.time(format!("{services}: one pod of one Service replaced (median of {CHANGES})"), median(changes), Duration::from_millis(1));
    let key = Key::new(api::namespace(services), format!("service-{services}"));
    let adds = (0..CHANGES)
        .map(|_| {
            let rows = world_rows(services, 0)?;
            let begin = Instant::now();
            let dirty = world.set(services, &rows);
            sync(&mut proxy, &world.table, &dirty, false)?;
            let time = begin.elapsed();
            let gone = world.table.set_service(&key, Vec::new()).into_iter().map(|change| change.key).collect();
            sync(&mut proxy, &world.table, &gone, false)?;
            Ok(time)
        })
        .collect::<Result<Vec<_>>>()?;
    figures.time(format!("{services}: one Service added (median of {CHANGES})"), median(adds), Duration::from_millis(1));
    let begin = Instant::now();
    ensure!(sync(&mut proxy, &world.table, &none, true)?.writes == 0, "a full pass wrote without need");
    figures.time(format!("{services}: a full pass when nobody touched the rules"), begin.elapsed(), Duration::from_millis(1));
    cleanup().map_err(anyhow::Error::msg)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_limit() {
        assert_eq!(SIZES.map(|(services, _)| services), [2_000, 20_000]);
        assert!(SIZES.iter().all(|(_, most)| !most.is_zero()));
    }
}
