//! `mullion hns conformance`: the suite of `hcn_conformance` against any service, as a table or JSON.

use std::io::Write as _;

#[cfg(windows)]
use anyhow::Context as _;
use anyhow::anyhow;
use clap::Args;
use hcn::NetworkType;
use hcn_conformance::{Options, Outcome, Restart, run};
use ipnet::Ipv4Net;

use super::{Output, Target};
use crate::exit::{Code, Failure};

/// `mullion hns conformance`.
#[derive(Clone, Debug, Args)]
pub struct ConformanceArgs {
    #[command(flatten)]
    target: Target,
    /// Type of the networks that the suite creates: L2Bridge, Overlay, L2Tunnel, Transparent, NAT, Internal, Private
    #[arg(long = "type", default_value = "L2Bridge")]
    network_type: String,
    /// Physical adapter of external networks; its link goes down for a moment when the first is created [default: the service chooses]
    #[arg(long)]
    adapter: Option<String>,
    /// Prefix of the suite's subnets; no other program may use it
    #[arg(long, default_value = "10.213.0.0/16")]
    prefix: Ipv4Net,
    /// Run on a host that has foreign networks too
    #[arg(long)]
    among_foreign: bool,
    /// Run only cases whose group or name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Run the cases about restarts too, which restart the service
    #[arg(long)]
    restart: bool,
    /// Output format
    #[arg(short, long)]
    output: Option<Output>,
}

/// Runs the suite. A case that differs is exit code 1.
pub fn main(args: &ConformanceArgs) -> Result<(), Failure> {
    let network_type = NetworkType::parse(&args.network_type);
    if let NetworkType::Other(name) = &network_type {
        let error = anyhow!("{name:?} is no type of network: use L2Bridge, Overlay, L2Tunnel, Transparent, NAT, Internal or Private");
        return Err(Failure::new(Code::Usage, error));
    }
    let options = Options {
        network_type,
        adapter: args.adapter.clone(),
        prefix: args.prefix,
        among_foreign: args.among_foreign,
        only: args.only.clone(),
        restart: if args.restart { Some(restart(args)?) } else { None },
    };
    let client = args.target.client()?;
    let quiet = args.output == Some(Output::Json);
    let report = run(client.port().clone(), &options, |line| {
        if !quiet {
            eprint!("{}", if line.outcome == Outcome::Failed { "!" } else { "." });
            // Progress only; a lost dot is nothing.
            let _ = std::io::stderr().flush();
        }
    })?;
    if quiet {
        super::print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else {
        eprintln!();
        super::print(&report.to_string())?;
    }
    let failed = report.count(Outcome::Failed);
    if failed > 0 {
        return Err(anyhow!("{failed} cases differ from what is expected; docs/conformance.md says what to do with them").into());
    }
    Ok(())
}

/// How the service under test is restarted: through the admin socket of a simulated host, or as a Windows service.
#[cfg(target_os = "linux")]
fn restart(args: &ConformanceArgs) -> Result<Restart, Failure> {
    let node = args.target.node.node.as_deref();
    let unnamed = || Failure::new(Code::Usage, anyhow!("only the service of a cluster's node can be restarted from here: give --node"));
    let node = node.ok_or_else(unnamed)?;
    let admin = super::simulated::admin(node, &args.target.node.dir)?;
    Ok(std::sync::Arc::new(move || admin.restart(hns_sim::admin::RestartMode::Clean, std::time::Duration::ZERO).map_err(|error| error.to_string())))
}

/// As above, on Windows.
#[cfg(windows)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere there may be no way")]
fn restart(_args: &ConformanceArgs) -> Result<Restart, Failure> {
    Ok(std::sync::Arc::new(|| restart_service().map_err(|error| format!("{error:#}"))))
}

/// How long the service may take to stop or start: on a busy host it is minutes.
#[cfg(windows)]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(180);

/// Stops the Windows service and starts it again.
#[cfg(windows)]
fn restart_service() -> anyhow::Result<()> {
    use windows_service::service::{ServiceAccess, ServiceState};
    use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

    let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT).context("run as an administrator")?;
    let access = ServiceAccess::STOP | ServiceAccess::START | ServiceAccess::QUERY_STATUS;
    let service = manager.open_service("hns", access).context("the service hns cannot be opened: install the Containers feature")?;
    let wait = |state: ServiceState| -> anyhow::Result<()> {
        let began = std::time::Instant::now();
        while service.query_status()?.current_state != state {
            anyhow::ensure!(began.elapsed() < PATIENCE, "the service hns is not {state:?} after {} s", PATIENCE.as_secs());
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        Ok(())
    };
    service.stop().context("the service hns cannot be stopped")?;
    wait(ServiceState::Stopped)?;
    service.start::<&str>(&[]).context("the service hns cannot be started")?;
    wait(ServiceState::Running)
}
