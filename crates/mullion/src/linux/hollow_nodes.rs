//! `mullion hollow-nodes`: all hollow nodes of a one-machine cluster in one process.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use host::NodeOs;
use node_config::kubelet::EvictionHard;
use tokio_util::sync::CancellationToken;

use super::cli::HollowNodesArgs;
use super::processes::EVICTION_HARD;
use crate::app::node::VERSION;
use crate::exit::Failure;

/// What each declares, as a node of `up` does.
const CAPACITY: kubelet::Capacity = kubelet::Capacity { cpu_millis: 8000, memory_bytes: 16 << 30, pods: 110, ephemeral_storage_bytes: 0 };
/// The Windows that they say they run: that of the default nodes.
const BUILD: u32 = 20348;

/// Runs them until the process is asked to end.
pub fn main(args: HollowNodesArgs) -> Result<(), Failure> {
    crate::init_logs();
    linux_sys::memory::keep_little();
    // Two workers, as the control plane has: this is the other half of a run at scale.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args)).map_err(Failure::from)
}

async fn run(args: HollowNodesArgs) -> Result<()> {
    let nodes = hollow::nodes(args.nodes, args.identity, args.boot);
    let pool = hollow::Pool::new(&args.kubeconfig, nodes.len()).await?;
    let hard: EvictionHard = EVICTION_HARD.parse().context("eviction thresholds")?;
    let none = BTreeMap::new();
    let thresholds = kubelet::Eviction::thresholds(&hard.0, &none, &BTreeMap::new(), &none).context("eviction thresholds")?;
    let config = hollow::Config {
        pool,
        nodes,
        os: NodeOs::Windows { build: BUILD },
        capacity: CAPACITY,
        eviction: kubelet::Eviction { thresholds, ..kubelet::Eviction::default() },
        cluster_dns: args.dns_ip,
        cluster_domain: args.cluster_domain,
        version: VERSION.to_owned(),
    };
    let shutdown = CancellationToken::new();
    let end = async {
        crate::end_requested().await;
        shutdown.cancel();
    };
    tokio::select! {
        ended = hollow::run(config, shutdown.clone()) => ended.context("the hollow nodes ended"),
        () = end => Ok(()),
    }
}
