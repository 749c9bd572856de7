//! What a container is: a Linux program, a Windows program or a stand-in. Each is one type that says how such containers start.
//!
//! [`Linux`] and [`Windows`] are also what all containers of a node have in common ([`System`]): a stand-in keeps to its node's rules for
//! environment, volumes, limits and statistics, and differs in what runs.

mod linux;
mod stand_in;
mod windows;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use images::Image;
use images::stand_in::StandIn;
use k8s_cri::v1;
use kube_rules::NodeOs;

use super::Runtime;
use super::cgroup::Amounts;
use super::environment::Variable;
use super::record::SandboxRecord;
use super::stats::SandboxUsage;
use crate::shim::{MountSource, MountSpec, Pids, Program, Propagation, RootSpec, Security};
use linux::Linux;
use windows::Windows;

/// What the start of a container depends on.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub runtime: &'a Runtime,
    pub sandbox: &'a SandboxRecord,
    pub config: &'a v1::ContainerConfig,
    /// The parts of images that mounts show, by the mounts' paths.
    pub parts: &'a BTreeMap<String, String>,
    pub image: &'a Image,
    /// The system that programs find: with Hyper-V isolation, of the image's own build.
    pub os: NodeOs,
}

/// What all containers of a node have in common, by the node's operating system.
pub(super) trait System: Send + Sync {
    /// Refuses a sandbox in which no container could run.
    fn check_sandbox(&self, config: &v1::PodSandboxConfig) -> Result<(), String>;

    /// What CRI's status of a sandbox says about its namespaces.
    fn sandbox_status(&self, config: &v1::PodSandboxConfig) -> Option<v1::LinuxPodSandboxStatus>;

    /// What CRI's status of the runtime lists.
    fn features(&self) -> v1::RuntimeFeatures;

    /// What CRI's `RuntimeConfig` answers.
    fn runtime_config(&self) -> Option<v1::LinuxRuntimeConfiguration>;

    /// Between the parts of a path of the node.
    fn path_separator(&self) -> &'static str;

    /// Variables of the system, the image and the pod.
    fn environment(&self, request: &Request<'_>) -> Vec<Variable>;

    /// A device of the node in the container.
    fn device(&self, device: &v1::Device) -> Result<MountSpec>;

    /// A root in which programs of the image can run. Fails with [`wine::template::Missing`] where Wine or its template is missing.
    fn root(&self, request: &Request<'_>) -> Result<RootSpec>;

    /// The processes that a stand-in sees.
    fn stand_in_pids(&self, request: &Request<'_>) -> Result<Pids>;

    /// Files of the runtime that appear in the container.
    fn files(&self, request: &Request<'_>) -> Vec<MountSpec>;

    /// Where a volume appears: once, or several times.
    fn volume(&self, request: &Request<'_>, mount: &v1::Mount) -> Result<Vec<MountSpec>>;

    /// The Windows account that programs run as; empty on Linux.
    fn account(&self, request: &Request<'_>) -> String;

    /// What programs may do.
    fn security(&self, request: &Request<'_>) -> Result<Security>;

    /// The limits that a request names. `processors` are the node's.
    fn amounts(&self, config: &v1::ContainerConfig, processors: u32) -> Amounts;

    /// Bytes of memory beyond which allocations fail, on systems that kill no process for it.
    fn allocation_limit(&self, amounts: &Amounts) -> Option<u64>;

    /// Puts the usage of a sandbox into CRI's message for the system.
    fn report(&self, answer: &mut v1::PodSandboxStats, usage: SandboxUsage);
}

/// What one container is.
pub(super) trait Kind {
    /// The first program.
    fn program(&self, request: &Request<'_>) -> Result<Program>;

    /// How its root is put together.
    fn root(&self, request: &Request<'_>) -> Result<RootSpec>;

    /// The processes that its program sees.
    fn pids(&self, request: &Request<'_>) -> Result<Pids>;
}

/// What the containers of a node have in common.
pub(super) fn system(os: NodeOs) -> &'static dyn System {
    match os {
        NodeOs::Linux => &Linux,
        NodeOs::Windows { .. } => &Windows,
    }
}

/// The kind of a container on a node: a stand-in's, or that of the image's own programs.
pub(super) fn kind(os: NodeOs, stand_in: Option<StandIn>) -> Box<dyn Kind> {
    match (stand_in, os) {
        (Some(program), _) => Box::new(stand_in::StandInContainer { program, system: system(os) }),
        (None, NodeOs::Linux) => Box::new(Linux),
        (None, NodeOs::Windows { .. }) => Box::new(Windows),
    }
}

impl Request<'_> {
    fn hostname(&self) -> &str {
        let own = self.sandbox.config.hostname.as_str();
        if own.is_empty() { &self.runtime.config.node } else { own }
    }

    fn pod_variables(&self) -> Vec<Variable> {
        self.config.envs.iter().map(|env| (env.key.clone(), env.value.clone())).collect()
    }

    fn working_dir(&self) -> String {
        first_of(&self.config.working_dir, &self.image.config.working_dir)
    }

    fn argv(&self) -> Vec<String> {
        argv(self.config, self.image)
    }

    /// Whether the first argument of the command is the image's.
    fn begins_as_image(&self) -> bool {
        self.config.command.is_empty() && (!self.image.config.entrypoint.is_empty() || self.config.args.is_empty())
    }

    /// Everything that is mounted, parents before children.
    pub(super) fn mounts(&self, system: &dyn System) -> Result<Vec<MountSpec>> {
        let mut mounts = system.files(self);
        for mount in &self.config.mounts {
            mounts.extend(system.volume(self, mount).with_context(|| format!("volume at {:?}", mount.container_path))?);
        }
        for device in &self.config.devices {
            mounts.push(system.device(device)?);
        }
        mounts.sort_by_key(|mount| mount.target.matches(['/', '\\']).count());
        Ok(mounts)
    }
}

/// A volume from a path of the node.
fn volume_of_node(os: NodeOs, mount: &v1::Mount) -> MountSpec {
    MountSpec {
        source: MountSource::Node(mount.host_path.clone()),
        target: kube_rules::container_path(os, &mount.container_path),
        readonly: mount.readonly,
        propagation: match mount.propagation() {
            v1::MountPropagation::PropagationPrivate => Propagation::None,
            v1::MountPropagation::PropagationHostToContainer => Propagation::FromNode,
            v1::MountPropagation::PropagationBidirectional => Propagation::Both,
        },
    }
}

fn first_of(pod: &str, image: &str) -> String {
    if pod.is_empty() { image.to_owned() } else { pod.to_owned() }
}

/// The pod's command replaces the image's entrypoint and its arguments; the pod's arguments replace those alone.
fn argv(config: &v1::ContainerConfig, image: &Image) -> Vec<String> {
    let (mut argv, mut args) = (config.command.clone(), config.args.clone());
    if argv.is_empty() {
        argv.clone_from(&image.config.entrypoint);
        if args.is_empty() {
            args.clone_from(&image.config.cmd);
        }
    }
    argv.append(&mut args);
    argv
}

#[cfg(test)]
mod tests {
    use images::config::RunConfig;
    use images::platform::Platform;

    use super::*;

    fn image(entrypoint: &[&str], cmd: &[&str]) -> Image {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        let config = RunConfig { entrypoint: list(entrypoint), cmd: list(cmd), ..RunConfig::default() };
        Image {
            id: String::new(),
            tags: Vec::new(),
            digests: Vec::new(),
            platform: Platform::linux(),
            layers: Vec::new(),
            size: 0,
            config,
            stand_in: None,
            catalogue: false,
            pulled: false,
        }
    }

    #[test]
    fn commands_follow_kubernetes_table() {
        let image = image(&["/ep"], &["a", "b"]);
        let with = |command: &[&str], args: &[&str]| {
            let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
            argv(&v1::ContainerConfig { command: list(command), args: list(args), ..Default::default() }, &image).join(" ")
        };
        assert_eq!(with(&[], &[]), "/ep a b");
        assert_eq!(with(&[], &["x"]), "/ep x");
        assert_eq!(with(&["/c"], &[]), "/c");
        assert_eq!(with(&["/c"], &["x"]), "/c x");
    }
}
