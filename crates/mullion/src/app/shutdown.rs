//! Who tells the node agent that its machine goes down.

use std::time::Duration;

#[cfg(target_os = "linux")]
use std::sync::Arc;

use anyhow::Result;
use kubelet::{Announcement, Shutdown, ShutdownPeriod};
use node_config::kubelet::KubeletConfiguration;
use node_config::node::Complete;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[cfg(target_os = "linux")]
use super::node::{host_root, is_simulated};

/// The periods of a graceful shutdown; none without one.
pub fn periods(kubelet: &KubeletConfiguration) -> Result<Vec<ShutdownPeriod>> {
    kubelet.check_shutdown()?;
    let by_priority = &kubelet.shutdown_grace_period_by_pod_priority;
    if by_priority.is_empty() {
        return Ok(ShutdownPeriod::of(kubelet.shutdown_grace_period.0, kubelet.shutdown_grace_period_critical_pods.0));
    }
    Ok(by_priority.iter().map(|period| ShutdownPeriod { priority: period.priority, seconds: period.shutdown_grace_period_seconds }).collect())
}

/// What the agent does when the machine goes down; None where it has no period for that.
/// `gone` is cancelled when pods have ended because a signal asked for that: nothing is left to do then.
pub fn shutdown(config: &Complete, gone: &CancellationToken) -> Result<Option<Shutdown>> {
    let periods = periods(&config.config.kubelet)?;
    if periods.is_empty() {
        return Ok(None);
    }
    let (sender, announcements) = mpsc::unbounded_channel();
    announce(config, sender, ShutdownPeriod::total(&periods), gone.clone())?;
    Ok(Some(Shutdown { periods, announcements }))
}

/// logind, where the node is this machine, and SIGPWR, which the init of a container gets when the container is to be shut down.
#[cfg(target_os = "linux")]
fn announce(config: &Complete, sender: mpsc::UnboundedSender<Announcement>, total: Duration, gone: CancellationToken) -> Result<()> {
    if !is_simulated(config) {
        let root = Arc::new(host_root(config.config.node.os, &config.config.node.roots)?);
        tokio::spawn(kubelet::logind::follow(kubelet::logind::Bus::system, root, total, sender.clone()));
    }
    tokio::spawn(async move {
        let power = tokio::signal::unix::SignalKind::from_raw(linux_sys::signal::Signal::SIGPWR as i32);
        let mut power = match tokio::signal::unix::signal(power) {
            Ok(power) => power,
            Err(error) => {
                tracing::warn!(%error, "cannot wait for SIGPWR: it does not end pods");
                return;
            }
        };
        while power.recv().await.is_some() {
            tracing::info!("SIGPWR: the machine goes down");
            let hold = Box::new(gone.clone().drop_guard());
            if sender.send(Announcement::Begins { name: "shutdown", hold }).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// The service control manager, whose shutdown of Windows waits until this service has stopped.
#[cfg(windows)]
fn announce(_config: &Complete, sender: mpsc::UnboundedSender<Announcement>, total: Duration, gone: CancellationToken) -> Result<()> {
    use super::preshutdown::{Service, prepare};
    use super::service;
    if !service::is_service() {
        tracing::warn!("a shutdown of Windows does not wait for pods: this is no service; install one that runs the agent with --windows-service");
        return Ok(());
    }
    let prepared = Service::open(service::KUBELET).map_err(anyhow::Error::from).and_then(|known| Ok(prepare(&known, service::KUBELET, total)?));
    if let Err(error) = prepared {
        tracing::warn!(error = %thiserror_ext::AsReport::as_report(&*error), "a shutdown of Windows may not wait for pods");
    }
    service::on_preshutdown(total, move || {
        let hold = Box::new(gone.clone().drop_guard());
        // An agent that has ended has nothing to end.
        let _ = sender.send(Announcement::Begins { name: "preshutdown", hold });
    });
    Ok(())
}

#[cfg(not(any(target_os = "linux", windows)))]
fn announce(_config: &Complete, _sender: mpsc::UnboundedSender<Announcement>, _total: Duration, _gone: CancellationToken) -> Result<()> {
    Ok(())
}
