//! From a CRI request and an image to what a shim executes.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use k8s_cri::v1;

use super::Runtime;
use super::environment;
use super::isolation::Isolation;
use super::record::{ContainerRecord, SandboxRecord};
use super::sandbox::on_host;
use crate::shim::{Limits, MountSource, MountSpec, Pids, Profile, Program, Propagation, RootSpec, Seccomp, Security, StartSpec, WineRoot};
use images::windows;
use images::{Image, Store};
use wine::{self, Account, command, needs};

/// What containerd hides from containers that are not privileged.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Bytes of the largest seccomp profile that is read; Docker's default one has 12,000.
const LARGEST_PROFILE: u64 = 1 << 20;

/// What containerd protects from containers that are not privileged.
const READONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

impl Runtime {
    /// Everything the shim has to know to start the container.
    pub(super) fn start_spec(&self, sandbox: &SandboxRecord, record: &ContainerRecord, image: &Image) -> Result<StartSpec> {
        let config = &record.config;
        // In a virtual machine of its own a program finds the build of its image.
        let isolation = Isolation::asked(self.config.os, &sandbox.runtime_handler, &sandbox.config.annotations).map_err(anyhow::Error::msg)?;
        let os = isolation.os(self.config.os, &image.platform);
        let hostname = if sandbox.config.hostname.is_empty() { &self.config.node } else { &sandbox.config.hostname };
        let pod_env: Vec<(String, String)> = config.envs.iter().map(|env| (env.key.clone(), env.value.clone())).collect();
        let account = account_name(config, image);
        // Who is unknown is refused when the container starts, as by Windows.
        let known = Account::find(&account).unwrap_or_default();
        let mut env = environment::merge(os, hostname, known, &image.config.env, &pod_env);
        if config.tty && !os.is_windows() && !env.iter().any(|(name, _)| name == "TERM") {
            env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        let stand_in = image.stand_in_for(&config.command);
        let program = match stand_in {
            Some(stand_in) => Program::StandIn { name: stand_in.program().to_owned(), dns: dns(sandbox) },
            None => {
                let (argv, cwd) = (argv(config, image), first_of(&config.working_dir, &image.config.working_dir));
                if os.is_windows() {
                    if argv.is_empty() {
                        bail!("no command specified: neither the image nor the pod names one");
                    }
                    if let Some(reason) = needs::refusal(&argv) {
                        bail!("{reason}");
                    }
                    Program::Windows { line: command::line(&argv, image.config.args_escaped && begins_as_image(config, image)), cwd }
                } else {
                    Program::Exec { argv, cwd }
                }
            }
        };
        let linux = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let root = if let Some(build) = os.build() {
            match (self.template.find(), stand_in) {
                (Ok(template), _) => RootSpec::Wine(WineRoot {
                    lowers: self.prefix(template, image, build, known)?,
                    modules: wine::copies(&self.config.cache_dir)?,
                    resolver: Some(self.records.sandbox_dir(&sandbox.id).join("resolv.conf")),
                }),
                // A program of ours needs drives only.
                (Err(_), Some(_)) => RootSpec::Drives,
                (Err(missing), None) => return Err(anyhow::Error::new(missing).context("cannot run Windows programs")),
            }
        } else {
            let layers = image.layers.iter().map(|diff_id| Store::layer_name(diff_id).to_owned()).collect();
            RootSpec::Layers { layers_dir: self.store.layers_dir(), layers }
        };
        Ok(StartSpec {
            os,
            host: self.config.host.clone(),
            root,
            mounts: self.mounts(sandbox, config)?,
            program,
            env,
            log: Some(record.log_path.clone()).filter(|path| !path.is_empty()),
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            tty: config.tty,
            // A Windows program's pid 1 is a process of the shim's, which ends all of Wine with it. Stand-ins adopt nobody.
            pids: match (os.is_windows(), stand_in) {
                (true, None) => Pids::Own,
                (true, Some(_)) => Pids::Pod,
                (false, _) => self.pids(&sandbox.id, linux)?,
            },
            limits: Limits::default(),
            account: if os.is_windows() { account } else { String::new() },
            security: if os.is_windows() { windows_security() } else { self.security(linux, image)? },
        })
    }

    /// The directories of a Windows program's prefix, highest first.
    fn prefix(&self, template: PathBuf, image: &Image, build: u32, account: Account) -> Result<Vec<PathBuf>> {
        let layers = image.layers.iter().map(|id| (id.as_str(), self.store.layer_dir(id))).collect();
        wine::lowers(&self.config.cache_dir, wine::Prefix { template, layers, build, account }, &windows::compose)
    }

    fn mounts(&self, sandbox: &SandboxRecord, config: &v1::ContainerConfig) -> Result<Vec<MountSpec>> {
        let os = self.config.os;
        let mut mounts = Vec::new();
        let mentioned = |path: &str| config.mounts.iter().any(|mount| mount.container_path == path);
        if !os.is_windows() {
            let dir = self.records.sandbox_dir(&sandbox.id);
            let mut own = vec![("resolv.conf", "/etc/resolv.conf")];
            if !on_host(sandbox) {
                own.push(("hostname", "/etc/hostname"));
            }
            for (name, target) in own.into_iter().filter(|(_, target)| !mentioned(target)) {
                let source = MountSource::Own(dir.join(name));
                mounts.push(MountSpec { source, target: target.to_owned(), readonly: false, propagation: Propagation::None });
            }
        }
        for mount in &config.mounts {
            if let Some(image) = &mount.image {
                mounts.push(self.image_volume(mount, &image.image).with_context(|| format!("volume at {:?}", mount.container_path))?);
                continue;
            }
            let pipe = |path: &str| os.is_windows() && (path.starts_with(r"\\") || path.starts_with("//"));
            if pipe(&mount.host_path) || pipe(&mount.container_path) {
                bail!("volume at {:?}: named pipes and network shares do not exist on a simulated Windows node", mount.container_path);
            }
            mounts.push(MountSpec {
                source: MountSource::Node(mount.host_path.clone()),
                target: kube_rules::container_path(os, &mount.container_path),
                readonly: mount.readonly,
                propagation: match mount.propagation() {
                    v1::MountPropagation::PropagationPrivate => Propagation::None,
                    v1::MountPropagation::PropagationHostToContainer => Propagation::FromNode,
                    v1::MountPropagation::PropagationBidirectional => Propagation::Both,
                },
            });
        }
        // Parents before children, whatever the order of the request.
        mounts.sort_by_key(|mount| mount.target.matches(['/', '\\']).count());
        Ok(mounts)
    }

    fn security(&self, linux: Option<&v1::LinuxContainerSecurityContext>, image: &Image) -> Result<Security> {
        let Some(linux) = linux else {
            return Ok(Security {
                masked_paths: list(MASKED),
                readonly_paths: list(READONLY),
                user: image.config.user.clone(),
                ..Security::default()
            });
        };
        if linux.run_as_group.is_some() && linux.run_as_user.is_none() && linux.run_as_username.is_empty() {
            bail!("runAsGroup is set without runAsUser: name the user too");
        }
        let capabilities = linux.capabilities.clone().unwrap_or_default();
        let named = Some(linux.run_as_username.clone()).filter(|name| !name.is_empty());
        let number = linux.run_as_user.as_ref().map(|user| user.value.to_string());
        // An empty list is what a kubelet sends for `procMount: Unmasked`; ours and upstream's send the default list.
        let or = |paths: &[String], default: &[&str]| if paths.is_empty() && !linux.privileged { list(default) } else { paths.to_vec() };
        Ok(Security {
            privileged: linux.privileged,
            no_new_privs: linux.no_new_privs,
            readonly_root: linux.readonly_rootfs,
            add_capabilities: capabilities.add_capabilities,
            drop_capabilities: capabilities.drop_capabilities,
            masked_paths: or(&linux.masked_paths, MASKED),
            readonly_paths: or(&linux.readonly_paths, READONLY),
            user: number.or(named).unwrap_or_else(|| image.config.user.clone()),
            group: linux.run_as_group.as_ref().and_then(|group| u32::try_from(group.value).ok()),
            groups: linux.supplemental_groups.iter().filter_map(|group| u32::try_from(*group).ok()).collect(),
            seccomp: if linux.privileged { Seccomp::Unconfined } else { self.seccomp(linux)? },
            strict_groups: linux.supplemental_groups_policy() == v1::SupplementalGroupsPolicy::Strict,
        })
    }

    /// Whose processes a container asks to see.
    fn pids(&self, sandbox: &str, linux: Option<&v1::LinuxContainerSecurityContext>) -> Result<Pids> {
        let Some(options) = linux.and_then(|security| security.namespace_options.as_ref()) else { return Ok(Pids::Own) };
        match options.pid() {
            v1::NamespaceMode::Container => Ok(Pids::Own),
            v1::NamespaceMode::Pod => Ok(Pids::Pod),
            v1::NamespaceMode::Node => bail!("hostPID is not supported by this runtime: its pods live in pid namespaces of their own"),
            v1::NamespaceMode::Target => {
                let target = self.container(&options.target_id).filter(|target| target.sandbox == sandbox);
                let target = target.with_context(|| format!("invalid target container: {:?} is not in this pod", options.target_id))?;
                if !target.is_running() {
                    bail!("invalid target container: {:?} is not running", target.id);
                }
                Ok(Pids::Container(target.id))
            }
        }
    }

    /// The filter that a container asks for; none named is none, as in containerd.
    fn seccomp(&self, linux: &v1::LinuxContainerSecurityContext) -> Result<Seccomp> {
        use v1::security_profile::ProfileType;
        let Some(profile) = &linux.seccomp else { return Ok(Seccomp::Unconfined) };
        Ok(match profile.profile_type() {
            ProfileType::Unconfined => Seccomp::Unconfined,
            ProfileType::RuntimeDefault => Seccomp::Default,
            ProfileType::Localhost => {
                let name = profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref);
                let read = || {
                    let host = self.config.host.open(self.config.os)?;
                    Profile::parse(&host.read(&host.parse(name)?, LARGEST_PROFILE)?.context("there is no such file on the node")?)
                };
                Seccomp::Profile(read().with_context(|| format!("cannot load seccomp profile {name:?}"))?)
            }
        })
    }

    /// The files of another image as a volume.
    fn image_volume(&self, mount: &v1::Mount, name: &str) -> Result<MountSpec> {
        if self.config.os.is_windows() {
            bail!("image volumes do not exist on Windows");
        }
        if !mount.readonly {
            bail!("image volumes can only be read: set readOnly");
        }
        let image = self.store.find(name)?.with_context(|| format!("image {name:?} is not here: pull it first"))?;
        let layers = image.layers.iter().map(|diff_id| Store::layer_name(diff_id).to_owned()).collect();
        Ok(MountSpec {
            source: MountSource::Layers { layers_dir: self.store.layers_dir(), layers },
            target: mount.container_path.clone(),
            readonly: true,
            propagation: Propagation::None,
        })
    }
}

fn dns(sandbox: &SandboxRecord) -> guest::Dns {
    let dns = sandbox.config.dns_config.clone().unwrap_or_default();
    guest::Dns { servers: dns.servers, searches: dns.searches, options: dns.options }
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

/// Whom a Windows program shall run as: the pod's word, else the image's.
fn account_name(config: &v1::ContainerConfig, image: &Image) -> String {
    let asked = config.windows.as_ref().and_then(|windows| windows.security_context.as_ref()).map(|security| security.run_as_username.as_str());
    first_of(asked.unwrap_or_default(), &image.config.user)
}

/// Whether the first word of the command is the image's.
fn begins_as_image(config: &v1::ContainerConfig, image: &Image) -> bool {
    config.command.is_empty() && (!image.config.entrypoint.is_empty() || config.args.is_empty())
}

/// Windows programs need no rights on Linux, and nothing of `/proc` that Linux containers do not get.
fn windows_security() -> Security {
    Security { no_new_privs: true, masked_paths: list(MASKED), readonly_paths: list(READONLY), ..Security::default() }
}

fn list(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use images::config::RunConfig;
    use images::platform::Platform;

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
