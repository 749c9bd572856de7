//! Windows nodes, and programs of Windows images, which run under Wine.

use anyhow::{Context as _, Result, bail};
use k8s_cri::v1;
use wine::{Account, command, needs};

use super::{Kind, Request, System, first_of, linux, volume_of_node};
use crate::runtime::cgroup::Amounts;
use crate::runtime::environment::{self, Variable};
use crate::runtime::limits::positive;
use crate::runtime::stats::SandboxUsage;
use crate::shim::{IMAGE, MountSpec, Pids, Program, RootSpec, Security, WineRoot};

/// A Windows node, and a container with a program of its image.
pub(super) struct Windows;

impl Kind for Windows {
    fn program(&self, request: &Request<'_>) -> Result<Program> {
        let argv = request.argv();
        if argv.is_empty() {
            bail!("no command specified: neither the image nor the pod names one");
        }
        if let Some(reason) = needs::refusal(&argv, |program| is_brought(request, program)) {
            bail!("{reason}");
        }
        let line = command::line(&argv, request.image.config.args_escaped && request.begins_as_image());
        Ok(Program::Windows { line, cwd: working_dir(request) })
    }

    fn root(&self, request: &Request<'_>) -> Result<RootSpec> {
        System::root(self, request)
    }

    /// Pid 1 of the container is a process of the shim's, whose end is the end of all of Wine.
    fn pids(&self, _: &Request<'_>) -> Result<Pids> {
        Ok(Pids::Own)
    }
}

impl System for Windows {
    /// The sandbox's own container runs as the pod's user.
    fn check_sandbox(&self, config: &v1::PodSandboxConfig) -> Result<(), String> {
        let security = config.windows.as_ref().and_then(|windows| windows.security_context.as_ref());
        Account::find(security.map_or("", |security| security.run_as_username.as_str())).map(drop).map_err(|error| error.to_string())
    }

    fn sandbox_status(&self, _: &v1::PodSandboxConfig) -> Option<v1::LinuxPodSandboxStatus> {
        None
    }

    fn features(&self) -> v1::RuntimeFeatures {
        v1::RuntimeFeatures { supplemental_groups_policy: false }
    }

    fn runtime_config(&self) -> Option<v1::LinuxRuntimeConfiguration> {
        None
    }

    fn path_separator(&self) -> &'static str {
        "\\"
    }

    fn environment(&self, request: &Request<'_>) -> Vec<Variable> {
        let mut env = request.pod_variables();
        if is_host_process(request) {
            env.insert(0, (MOUNT_POINT.to_owned(), format!(r"{IMAGE}\")));
        }
        environment::windows(request.hostname(), known_account(request), &request.image.config.env, &env)
    }

    fn root(&self, request: &Request<'_>) -> Result<RootSpec> {
        let (runtime, image) = (request.runtime, request.image);
        let template = runtime.template.find().context("cannot run Windows programs")?;
        let build = request.os.build().context("a Windows container on a node without a build")?;
        let layers: Vec<_> = image.layers.iter().map(|id| (id.as_str(), runtime.store.layer_dir(id))).collect();
        // The image of a HostProcess container is no part of its Windows.
        let (layers, below) =
            if is_host_process(request) { (Vec::new(), Some(layers.into_iter().rev().map(|(_, dir)| dir).collect())) } else { (layers, None) };
        let prefix = wine::Prefix { template, layers, build, account: known_account(request) };
        Ok(RootSpec::Wine(WineRoot {
            lowers: wine::lowers(&runtime.config.cache_dir, prefix, &images::windows::compose)?,
            modules: wine::copies(&runtime.config.cache_dir)?,
            resolver: Some(runtime.records.sandbox_dir(&request.sandbox.id).join("resolv.conf")),
            host_process: below,
            power: runtime.config.power_dir.clone().filter(|_| is_host_process(request)),
            domain: domain(request)?,
        }))
    }

    /// Stand-ins adopt no processes.
    fn stand_in_pids(&self, _: &Request<'_>) -> Result<Pids> {
        Ok(Pids::Pod)
    }

    fn files(&self, _: &Request<'_>) -> Vec<MountSpec> {
        Vec::new()
    }

    fn volume(&self, request: &Request<'_>, mount: &v1::Mount) -> Result<Vec<MountSpec>> {
        if mount.image.is_some() {
            bail!("image volumes do not exist on Windows");
        }
        if [&mount.host_path, &mount.container_path].into_iter().any(|path| path.starts_with(r"\\") || path.starts_with("//")) {
            bail!("named pipes and network shares do not exist on a simulated Windows node");
        }
        let volume = volume_of_node(request.os, mount);
        let mut volumes = Vec::new();
        // Beside the image's files too, as before bind filters there were (hcsshim's `setupMounts`).
        if let Some(path) = volume.target.strip_prefix(r"C:\").filter(|_| is_host_process(request)) {
            volumes.push(MountSpec { target: format!(r"{IMAGE}\{path}"), ..volume.clone() });
        }
        volumes.push(volume);
        Ok(volumes)
    }

    /// The pod's, else the image's.
    fn device(&self, device: &v1::Device) -> Result<MountSpec> {
        bail!("cannot give device {:?} to a container: simulated Windows hosts have no devices; run the pod on a Linux node", device.host_path)
    }

    fn account(&self, request: &Request<'_>) -> String {
        let security = request.config.windows.as_ref().and_then(|windows| windows.security_context.as_ref());
        first_of(security.map_or("", |security| security.run_as_username.as_str()), &request.image.config.user)
    }

    /// Windows programs need no rights on Linux, and nothing of `/proc` that Linux containers do not get.
    fn security(&self, _: &Request<'_>) -> Result<Security> {
        Ok(Security { no_new_privs: true, ..linux::default_security() })
    }

    fn amounts(&self, config: &v1::ContainerConfig, processors: u32) -> Amounts {
        let resources = config.windows.as_ref().and_then(|windows| windows.resources.clone()).unwrap_or_default();
        // A count of processors goes before a share of all, as in HCS.
        let counted = positive(resources.cpu_count).map(|count| count * 1000);
        let capped = positive(resources.cpu_maximum).map(|maximum| maximum * u64::from(processors) / 10);
        Amounts { memory: positive(resources.memory_limit_in_bytes), cpu_milli: counted.or(capped), shares: positive(resources.cpu_shares) }
    }

    /// As in a job object.
    fn allocation_limit(&self, amounts: &Amounts) -> Option<u64> {
        amounts.memory
    }

    fn report(&self, answer: &mut v1::PodSandboxStats, usage: SandboxUsage) {
        answer.windows = Some(usage.windows());
    }
}

/// Names the directory with the image's files to a HostProcess container.
const MOUNT_POINT: &str = "CONTAINER_SANDBOX_MOUNT_POINT";

/// Whether the container's processes are the node's own.
fn is_host_process(request: &Request<'_>) -> bool {
    request.config.windows.as_ref().and_then(|windows| windows.security_context.as_ref()).is_some_and(|security| security.host_process)
}

/// The domain of the group managed service account that the container's credential specification names. Programs cannot log on to it: there
/// is no domain controller.
fn domain(request: &Request<'_>) -> Result<Option<String>> {
    let security = request.config.windows.as_ref().and_then(|windows| windows.security_context.as_ref());
    domain_of(security.map_or("", |security| security.credential_spec.as_str()))
}

fn domain_of(credential_spec: &str) -> Result<Option<String>> {
    if credential_spec.is_empty() {
        return Ok(None);
    }
    // The parser's reason would quote the document.
    let refused = "the credential specification is no JSON document with DomainJoinConfig.DnsName; take the one that New-CredentialSpec made";
    let document: serde_json::Value = serde_json::from_str(credential_spec).ok().context(refused)?;
    let name = document.pointer("/DomainJoinConfig/DnsName").and_then(serde_json::Value::as_str).context(refused)?;
    Ok(Some(name.to_owned()))
}

/// The directory in which the program starts; empty: the root of drive C.
fn working_dir(request: &Request<'_>) -> String {
    let named = request.working_dir();
    if named.is_empty() && is_host_process(request) { IMAGE.to_owned() } else { named }
}

/// Whether the program is one of the image's own.
fn is_brought(request: &Request<'_>, program: &str) -> bool {
    let layers: Vec<_> = request.image.layers.iter().map(|id| request.runtime.store.layer_dir(id)).collect();
    let env = Windows.environment(request);
    let path = env.iter().find(|(name, _)| name.eq_ignore_ascii_case("path")).map_or("", |(_, value)| value);
    let root = if is_host_process(request) { IMAGE } else { "C:" };
    wine::is_brought(&layers, root, program, &working_dir(request), path)
}

/// The account of a container's programs. An unknown one is refused when the container starts, as by Windows.
fn known_account(request: &Request<'_>) -> Account {
    Account::find(&Windows.account(request)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_specification_names_its_domain() {
        assert_eq!(domain_of("").unwrap(), None);
        let spec = r#"{"CmsPlugins":["ActiveDirectory"],"DomainJoinConfig":{"DnsName":"contoso.org","NetBiosName":"CONTOSO"}}"#;
        assert_eq!(domain_of(spec).unwrap().as_deref(), Some("contoso.org"));
        for wrong in ["contoso.org", "{}", r#"{"DomainJoinConfig":{"DnsName":7}}"#] {
            let error = domain_of(wrong).unwrap_err().to_string();
            assert!(error.contains("DomainJoinConfig.DnsName") && !error.contains("contoso.org"), "{error}");
        }
    }

    #[test]
    fn cpu_caps_are_shares_of_the_whole_machine() {
        let of = |cpu_maximum, cpu_count| {
            let resources = v1::WindowsContainerResources { cpu_maximum, cpu_count, memory_limit_in_bytes: 7, ..Default::default() };
            let windows = v1::WindowsContainerConfig { resources: Some(resources), security_context: None };
            Windows.amounts(&v1::ContainerConfig { windows: Some(windows), ..Default::default() }, 8)
        };
        assert_eq!(of(625, 0), Amounts { memory: Some(7), cpu_milli: Some(500), shares: None });
        assert_eq!(of(10_000, 0).cpu_milli, Some(8000));
        assert_eq!(of(625, 2).cpu_milli, Some(2000));
        assert_eq!(of(0, 0).cpu_milli, None);
        assert_eq!(Windows.amounts(&v1::ContainerConfig::default(), 8), Amounts::default());
    }
}
