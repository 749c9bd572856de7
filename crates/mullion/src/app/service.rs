//! `--windows-service`: a part as a service of Windows, which reports to the control manager that it starts, runs and ends, and may stop it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use thiserror_ext::AsReport as _;
use tokio_util::sync::CancellationToken;
use windows_service::service::{ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::service_dispatcher;

/// How long a start and a stop may take: connections of user space are waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// What runs until the future ends.
type Work = Box<dyn FnOnce(Stop) -> Result<()> + Send>;
/// Completes when the control manager stops the service.
pub type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The dispatcher calls a function without any value of ours: these go there, and come back.
static SERVICE: Mutex<Option<(&'static str, Work)>> = Mutex::new(None);
/// Upstream's name of the node agent's service.
pub const KUBELET: &str = "kubelet";

/// What a shutdown of Windows waits for, at most so long, and how that begins.
type Machine = (Duration, Box<dyn Fn() + Send + Sync>);
static MACHINE: OnceLock<Machine> = OnceLock::new();
/// Cancelled when the control manager stops the service.
static STOP: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);
static HANDLE: OnceLock<ServiceStatusHandle> = OnceLock::new();
/// Whether the control manager started this process, and as the node agent.
static STARTED: OnceLock<()> = OnceLock::new();
static IS_AGENT: OnceLock<()> = OnceLock::new();

static FAILURE: Mutex<Option<anyhow::Error>> = Mutex::new(None);

/// Runs work until the service control manager stops it. `name` is upstream's; a process with one service may be installed under any other.
pub fn run(name: &'static str, work: impl FnOnce(Stop) -> Result<()> + Send + 'static) -> Result<()> {
    *SERVICE.lock().unwrap_or_else(PoisonError::into_inner) = Some((name, Box::new(work)));
    service_dispatcher::start(name, service_main)
        .context("--windows-service: the service control manager did not start this process; leave the flag out, or start the service")?;
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
}

/// Whether this process runs as a service.
pub fn is_service() -> bool {
    STARTED.get().is_some()
}

/// Has a shutdown of Windows wait until the service has stopped. `begin` is called when it is about to begin; the work then ends by itself.
pub fn on_preshutdown(patience: Duration, begin: impl Fn() + Send + Sync + 'static) {
    if MACHINE.set((patience, Box::new(begin))).is_err() {
        tracing::warn!("a shutdown is waited for already");
    }
}

extern "system" fn service_main(_: u32, _: *mut *mut u16) {
    if let Err(error) = serve() {
        tracing::error!(error = %error.as_report(), "the service failed");
        *FAILURE.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

fn serve() -> Result<()> {
    let (name, work) = SERVICE.lock().unwrap_or_else(PoisonError::into_inner).take().context("the service has no work")?;
    // It holds nothing: windows-service drops it after the first control that ends a service, and calls it for later ones all the same.
    let control = |control| match control {
        ServiceControl::Preshutdown => {
            tracing::info!("Windows is about to shut down");
            match MACHINE.get() {
                Some((patience, begin)) => {
                    if let Some(Err(error)) = HANDLE.get().map(|manager| report(*manager, ServiceState::StopPending, 0, *patience)) {
                        tracing::warn!(error = %error.as_report(), "a state of the service was not reported");
                    }
                    begin();
                }
                // The work has not come so far yet, and has no pods.
                None => STOP.cancel(),
            }
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Stop | ServiceControl::Shutdown => {
            STOP.cancel();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    let manager = service_control_handler::register(name, control).context("the service control manager does not listen")?;
    let _ = (HANDLE.set(manager), STARTED.set(()));
    if name == KUBELET {
        let _ = IS_AGENT.set(());
    }
    report(manager, ServiceState::StartPending, 0, PATIENCE)?;
    report(manager, ServiceState::Running, 0, PATIENCE)?;
    tracing::info!("the service control manager started the service");
    event(name, false, "The service has started.");
    let ended = work(Box::pin(async move {
        STOP.cancelled().await;
        tracing::info!("the service control manager stops the service");
        if let Err(error) = report(manager, ServiceState::StopPending, 0, PATIENCE) {
            tracing::warn!(error = %error.as_report(), "a state of the service was not reported");
        }
    }));
    match &ended {
        Ok(()) => event(name, false, "The service has stopped."),
        Err(error) => event(name, true, &format!("The service failed: {}", error.as_report())),
    }
    report(manager, ServiceState::Stopped, u32::from(ended.is_err()), PATIENCE)?;
    ended
}

/// Writes to the event log, where administrators look first.
fn event(service: &str, is_error: bool, text: &str) {
    if let Err(error) = host::report_event(service, is_error, text) {
        tracing::warn!(%error, "an event was not logged");
    }
}

/// `patience` is how long a pending state may take.
fn report(manager: ServiceStatusHandle, state: ServiceState, exit: u32, patience: Duration) -> Result<()> {
    let waits = matches!(state, ServiceState::StartPending | ServiceState::StopPending);
    // The agent's comes before that of all services, when pods can still end; others serve those pods until then.
    let is_agent = IS_AGENT.get().is_some();
    let last = if is_agent { ServiceControlAccept::PRESHUTDOWN } else { ServiceControlAccept::SHUTDOWN };
    let status = ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: if state == ServiceState::Running { ServiceControlAccept::STOP | last } else { ServiceControlAccept::empty() },
        exit_code: if exit == 0 { ServiceExitCode::NO_ERROR } else { ServiceExitCode::ServiceSpecific(exit) },
        checkpoint: u32::from(waits),
        wait_hint: if waits { patience } else { Duration::ZERO },
        process_id: None,
    };
    manager.set_service_status(status).with_context(|| format!("cannot report state {state:?} to the service control manager"))
}
