//! Operations on sandboxes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use k8s_cri::v1;
use kube_rules::sysctl;
use tonic::Status;

use super::isolation::Isolation;
use super::record::{Records, SandboxRecord};
use super::{Runtime, Sandbox, failed, new_id};
use crate::shim::client::Shim;
use crate::shim::{self, ShimSpec, now, write_json};

/// How long a killed container may take to disappear.
const KILL: Duration = Duration::from_secs(10);

impl Runtime {
    pub(super) async fn run_sandbox(&self, request: v1::RunPodSandboxRequest) -> Result<String, Status> {
        let config = request.config.ok_or_else(|| Status::invalid_argument("sandbox config is missing"))?;
        let metadata = config.metadata.clone().ok_or_else(|| Status::invalid_argument("sandbox config must include metadata"))?;
        // An unknown handler is refused now, not when the first container is made.
        Isolation::asked(self.config.os, &request.runtime_handler, &config.annotations).map_err(Status::unknown)?;
        self.system.check_sandbox(&config).map_err(|error| Status::unknown(format!("failed to start sandbox: {error}")))?;
        let host_network = is_host_network(&config).map_err(Status::invalid_argument)?;
        check_sysctls(&config, host_network).map_err(|error| Status::unknown(format!("failed to start sandbox: {error}")))?;
        let record = SandboxRecord {
            format: 0,
            id: new_id(),
            created_at: now(),
            config,
            runtime_handler: request.runtime_handler,
            netns: self.network.choose(host_network),
            ips: Vec::new(),
            shim_pid: 0,
            stopped: false,
        };
        let id = record.id.clone();
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let _turn = turn.clone().lock_owned().await;
        {
            let mut state = self.state();
            let reserved = state.sandboxes.values().find(|sandbox| sandbox.record.config.metadata.as_ref() == Some(&metadata));
            if let Some(other) = reserved {
                let name = format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt);
                return Err(Status::unknown(format!("failed to reserve sandbox name {name:?}: name {name:?} is reserved for {:?}", other.record.id)));
            }
            state.sandboxes.insert(id.clone(), Sandbox { record: record.clone(), shim: None, turn, problem: None });
        }
        match self.set_up(record.clone()).await {
            Ok((record, shim)) => {
                if let Some(sandbox) = self.state().sandboxes.get_mut(&id) {
                    *sandbox = Sandbox { record, shim: Some(shim), turn: sandbox.turn.clone(), problem: None };
                }
                self.changed(&id, &id, v1::ContainerEventType::ContainerCreatedEvent);
                self.changed(&id, &id, v1::ContainerEventType::ContainerStartedEvent);
                Ok(id)
            }
            Err(error) => {
                let undone = self.network.detach(&record).await.and_then(|()| Records::remove(&self.records.sandbox_dir(&id)));
                match undone {
                    Ok(()) => {
                        self.state().sandboxes.remove(&id);
                    }
                    // It stays known as not ready, so that the kubelet removes it.
                    Err(undo) => tracing::warn!(sandbox = id, error = format!("{undo:#}"), "cannot undo a failed sandbox"),
                }
                Err(failed(&error))
            }
        }
    }

    async fn set_up(&self, mut record: SandboxRecord) -> Result<(SandboxRecord, Shim)> {
        // Written first: whatever is made from here on is found again after a crash.
        self.records.write_sandbox(&record)?;
        record.ips = self.network.attach(&record).await?;
        let dir = self.records.sandbox_dir(&record.id);
        let dns = record.config.dns_config.clone().unwrap_or_default();
        std::fs::write(dir.join("resolv.conf"), resolv_conf(&dns)).context("cannot write resolv.conf")?;
        let hostname = Some(record.config.hostname.clone()).filter(|name| !name.is_empty());
        std::fs::write(dir.join("hostname"), format!("{}\n", hostname.as_deref().unwrap_or(&self.config.node))).context("cannot write hostname")?;
        let sysctls = record.config.linux.iter().flat_map(|linux| &linux.sysctls);
        let sysctls = sysctls.map(|(name, value)| (sysctl::with_dots(name), value.clone())).collect();
        let host_ipc = is_host_ipc(&record.config);
        let spec = ShimSpec { netns: self.network.path(&record), hostname, host_ipc, sysctls, os: self.config.os, host: self.config.host.clone() };
        write_json(&dir.join("shim.json"), &spec)?;
        record.shim_pid = shim::start(&dir).await?.pid;
        self.records.write_sandbox(&record)?;
        let shim = Shim::connect(&dir, &record.id, self.notices.clone()).await?;
        Ok((record, shim))
    }

    pub(super) async fn stop_sandbox(&self, id: &str) -> Result<(), Status> {
        let Some((id, turn)) = self.sandbox_turn(id) else { return Ok(()) };
        let _turn = turn.lock().await;
        self.tear_down(&id).await.map_err(|error| failed(&error))
    }

    /// Ends containers, shim and network, in that order, going on after errors. Done again it finds nothing to do.
    async fn tear_down(&self, id: &str) -> Result<()> {
        let (mut record, shim, running) = {
            let state = self.state();
            let Some(sandbox) = state.sandboxes.get(id) else { return Ok(()) };
            let running = state.containers.values().filter(|container| container.sandbox == id && container.is_running());
            let running: Vec<String> = running.map(|container| container.id.clone()).collect();
            (sandbox.record.clone(), sandbox.shim.clone(), running)
        };
        if record.stopped {
            return Ok(());
        }
        if let Some(shim) = shim {
            // All at once: each of them is killed, then each is waited for.
            let killed = running.iter().map(async |container| {
                if shim.signal(container, nix::libc::SIGKILL).await.is_ok() {
                    self.ended(container, KILL).await;
                }
            });
            futures::future::join_all(killed).await;
            shim.shutdown().await;
        }
        end_shim(record.shim_pid, &self.records.sandbox_dir(id));
        self.network.detach(&record).await?;
        record.stopped = true;
        self.records.write_sandbox(&record)?;
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.record = record;
            sandbox.shim = None;
        }
        self.changed(id, id, v1::ContainerEventType::ContainerStoppedEvent);
        Ok(())
    }

    pub(super) async fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        let Some((id, turn)) = self.sandbox_turn(id) else { return Ok(()) };
        let _turn = turn.lock().await;
        self.tear_down(&id).await.map_err(|error| failed(&error.context(format!("cannot stop sandbox {id:?} before removing it"))))?;
        Records::remove(&self.records.sandbox_dir(&id)).map_err(|error| failed(&error))?;
        let event = self.event(&id, &id, v1::ContainerEventType::ContainerDeletedEvent);
        {
            let mut state = self.state();
            state.sandboxes.remove(&id);
            // Those of containers that never ran are left, and of some whose processes ended later than their first one.
            state.containers.values().filter(|container| container.sandbox == id).for_each(|container| self.cgroups.remove(&container.id));
            state.containers.retain(|_, container| container.sandbox != id);
        }
        let _ = self.events.send(event);
        Ok(())
    }

    /// Whether the sandbox is there to take containers; the error says why not.
    pub(super) fn ready_sandbox(&self, id: &str) -> Result<SandboxRecord, Status> {
        let state = self.state();
        let sandbox = super::by_prefix(&state.sandboxes, id).ok_or_else(|| super::not_found("sandbox", id))?;
        if !sandbox.is_ready() {
            return Err(failed(&anyhow!("sandbox container {:?} is not running", sandbox.record.id)));
        }
        Ok(sandbox.record.clone())
    }
}

/// Ends a shim that does not answer. Another process may have its number by now.
fn end_shim(pid: i32, dir: &Path) {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_it = command.split(|byte| *byte == 0).any(|argument| argument == dir.as_os_str().as_encoded_bytes());
    if pid > 0 && is_it {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
}

fn namespace_options(config: &v1::PodSandboxConfig) -> Option<&v1::NamespaceOption> {
    config.linux.as_ref()?.security_context.as_ref()?.namespace_options.as_ref()
}

fn is_host_ipc(config: &v1::PodSandboxConfig) -> bool {
    namespace_options(config).is_some_and(|options| options.ipc() == v1::NamespaceMode::Node)
}

/// Refuses kernel settings that are not the pod's own.
fn check_sysctls(config: &v1::PodSandboxConfig, host_network: bool) -> Result<(), String> {
    let host = sysctl::HostNamespaces { network: host_network, ipc: is_host_ipc(config) };
    let mut names: Vec<&String> = config.linux.iter().flat_map(|linux| linux.sysctls.keys()).collect();
    names.sort();
    names.into_iter().try_for_each(|name| sysctl::check_namespaced(name, host)).map_err(|error| error.to_string())
}

/// Whether the pod uses the node's network: by Linux namespace option, Windows namespace option, or as HostProcess pod.
fn is_host_network(config: &v1::PodSandboxConfig) -> Result<bool, String> {
    let options = namespace_options(config);
    let node = v1::NamespaceMode::Node as i32;
    if options.is_some_and(|options| options.userns_options.as_ref().is_some_and(|users| users.mode == v1::NamespaceMode::Pod as i32)) {
        return Err("user namespaces of pods are not supported by this runtime: unset hostUsers".to_owned());
    }
    let windows = config.windows.as_ref().and_then(|windows| windows.security_context.as_ref());
    let host_process = windows.is_some_and(|security| security.host_process);
    let windows_node = windows.and_then(|security| security.namespace_options.as_ref()).is_some_and(|options| options.network == node);
    Ok(options.is_some_and(|options| options.network == node) || host_process || windows_node)
}

/// `/etc/resolv.conf` as containerd writes it.
fn resolv_conf(dns: &v1::DnsConfig) -> String {
    let mut out = String::new();
    if !dns.searches.is_empty() {
        out.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        out.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        out.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolver_files_read_like_containerds() {
        let dns = v1::DnsConfig {
            servers: vec!["10.96.0.10".into()],
            searches: vec!["default.svc.cluster.local".into(), "svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(resolv_conf(&dns), "search default.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n");
    }

    #[test]
    fn host_network_is_found_in_either_system() {
        let mut config = v1::PodSandboxConfig::default();
        assert_eq!(is_host_network(&config), Ok(false));
        let security = v1::WindowsSandboxSecurityContext { host_process: true, ..Default::default() };
        config.windows = Some(v1::WindowsPodSandboxConfig { security_context: Some(security) });
        assert_eq!(is_host_network(&config), Ok(true));
    }
}
