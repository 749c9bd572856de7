//! Linux nodes, and programs of Linux images.

use anyhow::{Context as _, Result, bail};
use cri::defaults::{MASKED_PATHS, READONLY_PATHS};
use images::Store;
use k8s_cri::v1;

use super::{Kind, Request, System, volume_of_node};
use crate::runtime::cgroup::Amounts;
use crate::runtime::environment::{self, Variable};
use crate::runtime::limits::positive;
use crate::runtime::network::Netns;
use crate::runtime::stats::SandboxUsage;
use crate::shim::{MountSource, MountSpec, Pids, Profile, Program, Propagation, RootSpec, Seccomp, Security};

/// Bytes of the largest seccomp profile that is read; Docker's default one has 12,000.
const LARGEST_PROFILE: u64 = 1 << 20;

/// A Linux node, and a container with a program of its image.
pub(super) struct Linux;

impl Kind for Linux {
    fn program(&self, request: &Request<'_>) -> Result<Program> {
        Ok(Program::Exec { argv: request.argv(), cwd: request.working_dir() })
    }

    fn root(&self, request: &Request<'_>) -> Result<RootSpec> {
        System::root(self, request)
    }

    fn pids(&self, request: &Request<'_>) -> Result<Pids> {
        requested_pids(request)
    }
}

impl System for Linux {
    fn check_sandbox(&self, _: &v1::PodSandboxConfig) -> Result<(), String> {
        Ok(())
    }

    fn sandbox_status(&self, config: &v1::PodSandboxConfig) -> Option<v1::LinuxPodSandboxStatus> {
        let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let options = security.and_then(|security| security.namespace_options.clone());
        Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) })
    }

    fn features(&self) -> v1::RuntimeFeatures {
        v1::RuntimeFeatures { supplemental_groups_policy: true }
    }

    fn runtime_config(&self) -> Option<v1::LinuxRuntimeConfiguration> {
        Some(v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs as i32 })
    }

    fn path_separator(&self) -> &'static str {
        "/"
    }

    fn environment(&self, request: &Request<'_>) -> Vec<Variable> {
        let mut env = environment::linux(request.hostname(), &request.image.config.env, &request.pod_variables());
        if request.config.tty && !env.iter().any(|(name, _)| name == "TERM") {
            env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        env
    }

    fn root(&self, request: &Request<'_>) -> Result<RootSpec> {
        Ok(RootSpec::Layers { layers_dir: request.runtime.store.layers_dir(), layers: layers(request.image) })
    }

    fn stand_in_pids(&self, request: &Request<'_>) -> Result<Pids> {
        requested_pids(request)
    }

    /// `/etc/resolv.conf` and, with a network of the pod's own, `/etc/hostname`, unless the request mounts something there.
    fn files(&self, request: &Request<'_>) -> Vec<MountSpec> {
        let dir = request.runtime.records.sandbox_dir(&request.sandbox.id);
        let mut own = vec![("resolv.conf", "/etc/resolv.conf")];
        if request.sandbox.netns != Netns::Host {
            own.push(("hostname", "/etc/hostname"));
        }
        let is_free = |target: &str| !request.config.mounts.iter().any(|mount| mount.container_path == target);
        let file = |(name, target): (&str, &str)| {
            let source = MountSource::Own(dir.join(name));
            MountSpec { source, target: target.to_owned(), readonly: false, propagation: Propagation::None }
        };
        own.into_iter().filter(|(_, target)| is_free(target)).map(file).collect()
    }

    fn volume(&self, request: &Request<'_>, mount: &v1::Mount) -> Result<Vec<MountSpec>> {
        Ok(vec![match &mount.image {
            Some(image) => image_volume(request, mount, &image.image)?,
            None => volume_of_node(request.os, mount),
        }])
    }

    /// Its permissions are those of its file: there are no control groups for devices.
    fn device(&self, device: &v1::Device) -> Result<MountSpec> {
        let source = MountSource::Device(device.host_path.clone());
        Ok(MountSpec { source, target: device.container_path.clone(), readonly: false, propagation: Propagation::None })
    }

    fn account(&self, _: &Request<'_>) -> String {
        String::new()
    }

    fn security(&self, request: &Request<'_>) -> Result<Security> {
        let image_user = &request.image.config.user;
        let Some(linux) = security_context(request) else {
            return Ok(Security { user: image_user.clone(), ..default_security() });
        };
        if linux.run_as_group.is_some() && linux.run_as_user.is_none() && linux.run_as_username.is_empty() {
            bail!("runAsGroup is set without runAsUser: name the user too");
        }
        let capabilities = linux.capabilities.clone().unwrap_or_default();
        let named = Some(linux.run_as_username.clone()).filter(|name| !name.is_empty());
        let number = linux.run_as_user.as_ref().map(|user| user.value.to_string());
        // Other than containerd, `procMount: Unmasked` has no effect here: /proc of a simulated host shows the machine.
        let or = |paths: &[String], default: &[&str]| if paths.is_empty() && !linux.privileged { list(default) } else { paths.to_vec() };
        Ok(Security {
            privileged: linux.privileged,
            no_new_privs: linux.no_new_privs,
            readonly_root: linux.readonly_rootfs,
            add_capabilities: capabilities.add_capabilities,
            drop_capabilities: capabilities.drop_capabilities,
            masked_paths: or(&linux.masked_paths, MASKED_PATHS),
            readonly_paths: or(&linux.readonly_paths, READONLY_PATHS),
            user: number.or(named).unwrap_or_else(|| image_user.clone()),
            group: linux.run_as_group.as_ref().and_then(|group| u32::try_from(group.value).ok()),
            groups: linux.supplemental_groups.iter().filter_map(|group| u32::try_from(*group).ok()).collect(),
            seccomp: if linux.privileged { Seccomp::Unconfined } else { seccomp(request, linux)? },
            strict_groups: linux.supplemental_groups_policy() == v1::SupplementalGroupsPolicy::Strict,
        })
    }

    fn amounts(&self, config: &v1::ContainerConfig, _: u32) -> Amounts {
        let resources = config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
        let period = positive(resources.cpu_period).unwrap_or(100_000);
        Amounts {
            memory: positive(resources.memory_limit_in_bytes),
            cpu_milli: positive(resources.cpu_quota).map(|quota| quota * 1000 / period),
            shares: positive(resources.cpu_shares),
        }
    }

    /// The kernel kills a process of a control group that is full.
    fn allocation_limit(&self, _: &Amounts) -> Option<u64> {
        None
    }

    fn report(&self, answer: &mut v1::PodSandboxStats, usage: SandboxUsage) {
        answer.linux = Some(usage.linux());
    }
}

/// What every container gets that asks for nothing: containerd's hidden and protected paths.
pub(super) fn default_security() -> Security {
    Security { masked_paths: list(MASKED_PATHS), readonly_paths: list(READONLY_PATHS), ..Security::default() }
}

fn security_context<'a>(request: &Request<'a>) -> Option<&'a v1::LinuxContainerSecurityContext> {
    request.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref())
}

fn layers(image: &images::Image) -> Vec<String> {
    image.layers.iter().map(|diff_id| Store::layer_name(diff_id).to_owned()).collect()
}

/// The processes that a container asks to see.
fn requested_pids(request: &Request<'_>) -> Result<Pids> {
    let options = security_context(request).and_then(|security| security.namespace_options.as_ref());
    let Some(options) = options else { return Ok(Pids::Own) };
    match options.pid() {
        v1::NamespaceMode::Container => Ok(Pids::Own),
        v1::NamespaceMode::Pod => Ok(Pids::Pod),
        v1::NamespaceMode::Node => bail!("hostPID is not supported by this runtime: its pods have pid namespaces of their own"),
        v1::NamespaceMode::Target => {
            let target = request.runtime.container(&options.target_id).filter(|target| target.sandbox == request.sandbox.id);
            let target = target.with_context(|| format!("invalid target container: {:?} is not in this pod", options.target_id))?;
            if !target.is_running() {
                bail!("invalid target container: {:?} is not running", target.id);
            }
            Ok(Pids::Container(target.id))
        }
    }
}

/// The filter that a container asks for; none named is none, as in containerd.
fn seccomp(request: &Request<'_>, linux: &v1::LinuxContainerSecurityContext) -> Result<Seccomp> {
    use v1::security_profile::ProfileType;
    let Some(profile) = &linux.seccomp else { return Ok(Seccomp::Unconfined) };
    Ok(match profile.profile_type() {
        ProfileType::Unconfined => Seccomp::Unconfined,
        ProfileType::RuntimeDefault => Seccomp::Default,
        ProfileType::Localhost => {
            let name = profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref);
            let read = || {
                let host = request.runtime.config.host.open(request.runtime.config.os)?;
                Profile::parse(&host.read(&host.parse(name)?, LARGEST_PROFILE)?.context("there is no such file on the node")?)
            };
            Seccomp::Profile(read().with_context(|| format!("cannot load seccomp profile {name:?}"))?)
        }
    })
}

/// The files of another image as a volume.
fn image_volume(request: &Request<'_>, mount: &v1::Mount, name: &str) -> Result<MountSpec> {
    if !mount.readonly {
        bail!("image volumes can only be read: set readOnly");
    }
    let store = &request.runtime.store;
    let image = store.find(name)?.with_context(|| format!("image {name:?} is not here: pull it first"))?;
    let part = request.parts.get(&mount.container_path).cloned().unwrap_or_default();
    if part.starts_with('/') || part.split('/').any(|name| name == "..") {
        bail!("sub-path {part:?} of image {name:?} leads out of it: name a path below its root");
    }
    Ok(MountSpec {
        source: MountSource::Layers { layers_dir: store.layers_dir(), layers: layers(&image), part },
        target: mount.container_path.clone(),
        readonly: true,
        propagation: Propagation::None,
    })
}

fn list(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}
