//! Wiring of `mullion join`, `leave`, `reset` and `token`.

mod network;
mod token;

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use install::Part;
use install::control::{Service, Unmanaged};
use join::config::{self, JoinConfiguration};
use join::drain::{self, Options};
use join::journal::{Journal, State};
use join::lock::Lock;
use join::pins;
use join::plan::{self, PlanError, Step};
use join::preflight::Finding;
use join::removal::{self, NothingToRemove};
use join::run::{JoinError, Outcome, Request};
use join::settings::Flags;
use join::{Places, Settings, apply, observe, pods};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::machine;
use super::node::VERSION;
use crate::cli::join_cli::{HostArgs, JoinArgs, LeaveArgs, PodArgs, ResetArgs, Secret};
use crate::exit::{Code, Failure, printable};

pub use token::main as token;

/// Logs say only what is wrong: the steps are the command's output. The client would warn of the one request without TLS checks, whose
/// answer discovery checks itself.
fn begin(verbosity: u32) -> Result<tokio::runtime::Runtime> {
    let level = match verbosity {
        5.. => "info,join=debug,kubelet=debug,kube_client=error",
        2.. => "info,kube_client=error",
        _ => "warn,kube_client=error",
    };
    crate::init_logs_with(level, None);
    crate::agent_runtime()
}

/// `mullion join`.
pub fn join(args: JoinArgs) -> Result<(), Failure> {
    let runtime = begin(args.v)?;
    let (host, as_json) = (args.host.clone(), args.output.is_some());
    let settings = settings(args)?;
    let places = Places::of_machine(host.rootfs.as_deref());
    let done = if has_no_service(&host) {
        runtime.block_on(run(&settings, &places, &Unmanaged, as_json))
    } else {
        runtime.block_on(run(&settings, &places, &service()?, as_json))
    };
    let outcome = done.map_err(|error| Failure::new(code(&error), error))?;
    report(&outcome, &settings, &places, &host, as_json);
    Ok(())
}

async fn run(settings: &Settings, places: &Places, service: &impl Service, as_json: bool) -> Result<Outcome, JoinError> {
    let report = |finding: &Finding| eprintln!("  {finding}");
    let progress = |step: &Step| {
        if !as_json {
            println!("{}", step.text(places));
        }
    };
    let agent = VERSION.parse().map_err(|error| JoinError::Cluster(join::discovery::ClusterError::Version(error)))?;
    let request = Request { settings, places, service, agent, report: &report, progress: &progress };
    join::run::run(&request, crate::end_requested()).await
}

/// Whether services are left alone: another root has none that runs here.
fn has_no_service(host: &HostArgs) -> bool {
    host.no_service || host.rootfs.is_some()
}

/// The service of the node agent, which is made where there is none.
#[cfg(not(windows))]
fn service() -> Result<install::control::Systemd> {
    let desired = super::install::desired(Part::Kubelet, None, Vec::new())?;
    Ok(install::control::Systemd::new(Part::Kubelet.service()).installing(desired))
}

#[cfg(windows)]
fn service() -> Result<install::windows::Scm> {
    Ok(install::windows::Scm::new(super::install::desired(Part::Kubelet, None, Vec::new())?))
}

/// Flags and file together.
fn settings(args: JoinArgs) -> Result<Settings, Failure> {
    let usage = |error: anyhow::Error| Failure::new(Code::Usage, error);
    let config = args.config.as_deref().map(read_config).transpose().map_err(usage)?.unwrap_or_default();
    let text = |secret: Option<Secret>| secret.map(|secret| secret.0);
    let flags = Flags {
        endpoint: args.endpoint,
        token: text(args.token),
        discovery_token: text(args.discovery_token),
        ca_cert_hashes: args.discovery_token_ca_cert_hash,
        is_unpinned: args.discovery_token_unsafe_skip_ca_verification,
        discovery_file: args.discovery_file,
        tls_bootstrap_token: text(args.tls_bootstrap_token),
        node_name: args.node_name,
        cri_socket: args.cri_socket,
        ignore_preflight_errors: args.ignore_preflight_errors,
        skip_phases: args.skip_phases,
        dry_run: args.dry_run,
    };
    Settings::new(flags.merged_into(config), &observe::machine(machine::host_name())).map_err(|error| usage(error.into()))
}

fn read_config(path: &Path) -> Result<JoinConfiguration> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(config::LARGEST as u64 + 1).read_to_end(&mut bytes));
    file.with_context(|| format!("cannot read the configuration {}", path.display()))?;
    let read = config::parse(&host::decode_text(&bytes)).with_context(|| format!("cannot use the configuration {}", path.display()));
    let (config, others) = read?;
    for other in others {
        eprintln!("mullion: {other} in {} has no effect: join reads JoinConfiguration alone", path.display());
    }
    Ok(config)
}

fn code(error: &JoinError) -> Code {
    match error {
        JoinError::Preflight(_) => Code::Preflight,
        JoinError::Discovery(error) if error.is_distrust() => Code::Untrusted,
        JoinError::Plan(PlanError::NameTaken { .. }) => Code::NameTaken,
        _ => Code::Failure,
    }
}

fn report(outcome: &Outcome, settings: &Settings, places: &Places, host: &HostArgs, as_json: bool) {
    if as_json {
        println!("{:#}", document(outcome, settings, places));
        return;
    }
    for warning in &outcome.plan.warnings {
        eprintln!("mullion: kubelet-config: {warning}");
    }
    if !outcome.is_done {
        for line in outcome.plan.text(places).lines() {
            println!("{}", printable(line));
        }
    } else if has_no_service(host) {
        let shown = |path: std::path::PathBuf| path.display().to_string();
        println!("This machine has the identity of node {:?} in {}.", settings.node_name, outcome.server);
        let own = std::fs::read_to_string(places.flags_env()).ok().and_then(|text| plan::flags(&text).map(|flags| format!(" {flags}")));
        let (kubeconfig, config) = (shown(places.kubelet_conf()), shown(places.config()));
        println!("Start its node agent: mullion kubelet --kubeconfig={kubeconfig} --config={config}{}", own.unwrap_or_default());
    } else {
        println!("This machine is node {:?} of {}.", settings.node_name, outcome.server);
    }
}

fn document(outcome: &Outcome, settings: &Settings, places: &Places) -> Value {
    let steps: Vec<Value> = outcome.plan.steps.iter().map(|step| step.json(places)).collect();
    json!({
        "node": settings.node_name, "server": outcome.server, "joined": outcome.is_done,
        "findings": outcome.findings, "warnings": outcome.plan.warnings, "steps": steps,
    })
}

/// `mullion reset`.
pub fn reset(args: &ResetArgs) -> Result<(), Failure> {
    let runtime = begin(0)?;
    let removal = Removal { host: &args.host, pods: &args.pods, is_forced: args.force, is_dry_run: args.dry_run, node: None };
    let locked = async {
        let _lock = lock(&args.host, args.dry_run)?;
        removal.run(None).await
    };
    runtime.block_on(locked).map_err(Failure::from)
}

/// `mullion leave`.
pub fn leave(args: &LeaveArgs) -> Result<(), Failure> {
    let runtime = begin(0)?;
    runtime.block_on(leave_cluster(args)).map_err(Failure::from)
}

/// Keeps other commands away, but for one that only looks.
fn lock(host: &HostArgs, is_dry_run: bool) -> Result<Option<Lock>> {
    if is_dry_run { Ok(None) } else { Ok(Some(Lock::take(&Places::of_machine(host.rootfs.as_deref()))?)) }
}

async fn leave_cluster(args: &LeaveArgs) -> Result<()> {
    let _lock = lock(&args.host, args.dry_run)?;
    let places = Places::of_machine(args.host.rootfs.as_deref());
    let journal = Journal::read(&places)?.ok_or(NothingToRemove)?;
    if journal.state == State::Joining {
        bail!("the join of this machine was not finished: the Node of its name may be another machine's; mullion reset takes the join back");
    }
    let node = journal.node_name.as_str();
    let removal = Removal { host: &args.host, pods: &args.pods, is_forced: false, is_dry_run: args.dry_run, node: Some(node) };
    if args.dry_run {
        if args.drain {
            println!("evict the pods of Node {node:?}");
        }
        return removal.run(None).await;
    }
    let kubeconfig = args.kubeconfig.clone().unwrap_or_else(|| places.kubelet_conf());
    let config = cluster::config_from_kubeconfig(&kubeconfig).await.context("cannot reach the cluster; mullion reset leaves it without")?;
    check_cluster(&config, &journal, &kubeconfig)?;
    let client = Client::try_from(config).context("cannot reach the cluster; mullion reset leaves it without")?;
    if !may_delete(&client, node).await? {
        bail!(
            "cannot delete Node {node:?} with the credentials in {}: give --kubeconfig of an administrator, or run kubectl delete node {node} and \
             mullion reset",
            kubeconfig.display()
        );
    }
    if args.drain {
        println!("evict the pods of Node {node:?}");
        let options = Options { is_forced: args.force, deletes_empty_dir_data: args.delete_emptydir_data };
        drain::drain(&client, node, options, args.drain_timeout.0).await?;
    }
    removal.run(Some(client)).await
}

/// A Node of the same name in another cluster is another machine.
fn check_cluster(config: &kube::Config, journal: &Journal, kubeconfig: &Path) -> Result<()> {
    let mut pins = config.root_cert.iter().flatten().filter_map(|der| pins::pin_of(der).ok());
    if pins.any(|pin| journal.authority.contains(&pin)) {
        return Ok(());
    }
    bail!("{} is not of the cluster {} that this machine has joined: its certificate authority is another one", kubeconfig.display(), journal.server)
}

/// Asked before anything is done: a node may not delete itself by default.
async fn may_delete(client: &Client, node: &str) -> Result<bool> {
    let attributes = ResourceAttributes {
        resource: Some("nodes".to_owned()),
        verb: Some("delete".to_owned()),
        name: Some(node.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..SelfSubjectAccessReviewSpec::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await;
    let answer = answer.with_context(|| format!("cannot ask whether Node {node:?} may be deleted"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// What `reset` and `leave` have in common.
struct Removal<'a> {
    host: &'a HostArgs,
    pods: &'a PodArgs,
    is_forced: bool,
    is_dry_run: bool,
    /// The Node that is to be deleted.
    node: Option<&'a str>,
}

impl Removal<'_> {
    async fn run(&self, client: Option<Client>) -> Result<()> {
        if has_no_service(self.host) { self.run_with(&Unmanaged, client).await } else { self.run_with(&service()?, client).await }
    }

    async fn run_with(&self, service: &impl Service, client: Option<Client>) -> Result<()> {
        let places = Places::of_machine(self.host.rootfs.as_deref());
        let journal = Journal::read(&places)?;
        // Another root has no pods, and another network.
        let is_machine = self.host.rootfs.is_none();
        let pods_of = self.pods.cri_socket.clone().or_else(|| pods::endpoint(&places)).filter(|_| is_machine && !self.pods.keep_pods);
        let present =
            removal::known_files(&places).into_iter().chain(journal.iter().flat_map(|journal| journal.files.iter().map(|file| file.path.clone())));
        let present = present.filter(|path| path.exists()).collect();
        let state = service.state().await?;
        let mut steps = removal::plan(&removal::Inputs {
            places: &places,
            journal: journal.as_ref(),
            present: &present,
            has_service: state.is_some_and(|state| state.exists),
            delete_node: self.node,
            pods_of: pods_of.as_deref(),
            is_forced: self.is_forced,
        })?;
        if has_no_service(self.host) && steps.contains(&removal::Step::RemoveService) {
            steps.retain(|step| *step != removal::Step::RemoveService);
            println!("keep the service kubelet, which the join has made: mullion uninstall kubelet removes it");
        }
        for step in &steps {
            println!("{}", step.text(&places));
        }
        // Pods that stay need their policies, and their way out.
        let has_network = is_machine && !self.pods.keep_pods;
        if has_network {
            println!("{}\n{}", network::TEXT, network::CNI_TEXT);
        }
        if self.is_dry_run {
            return Ok(());
        }
        let site = apply::Site { places: &places, service, progress: &|_| {} };
        removal::apply(&steps, journal.as_ref(), &site, client).await?;
        if has_network { network::clean(&places) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
