//! `--windows-service`: a part as a service of Windows, which reports to the control manager that it starts, runs and ends, and may stop it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
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
static FAILURE: Mutex<Option<anyhow::Error>> = Mutex::new(None);

/// Runs work until the service control manager stops it. `name` is upstream's; a process with one service may be installed under any other.
pub fn run(name: &'static str, work: impl FnOnce(Stop) -> Result<()> + Send + 'static) -> Result<()> {
    *SERVICE.lock().unwrap_or_else(PoisonError::into_inner) = Some((name, Box::new(work)));
    service_dispatcher::start(name, service_main)
        .context("--windows-service: the service control manager did not start this process; leave the flag out, or start the service")?;
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
}

extern "system" fn service_main(_: u32, _: *mut *mut u16) {
    if let Err(error) = serve() {
        tracing::error!(error = %error.as_report(), "the service failed");
        *FAILURE.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

fn serve() -> Result<()> {
    let (name, work) = SERVICE.lock().unwrap_or_else(PoisonError::into_inner).take().context("the service has no work")?;
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let control = move |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            asked.cancel();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    let manager = service_control_handler::register(name, control).context("the service control manager does not listen")?;
    report(manager, ServiceState::StartPending, 0)?;
    report(manager, ServiceState::Running, 0)?;
    tracing::info!("the service control manager started the service");
    let ended = work(Box::pin(async move {
        stop.cancelled().await;
        tracing::info!("the service control manager stops the service");
        if let Err(error) = report(manager, ServiceState::StopPending, 0) {
            tracing::warn!(error = %error.as_report(), "a state of the service was not reported");
        }
    }));
    report(manager, ServiceState::Stopped, u32::from(ended.is_err()))?;
    ended
}

fn report(manager: ServiceStatusHandle, state: ServiceState, exit: u32) -> Result<()> {
    let waits = matches!(state, ServiceState::StartPending | ServiceState::StopPending);
    let status = ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: if state == ServiceState::Running {
            ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN
        } else {
            ServiceControlAccept::empty()
        },
        exit_code: if exit == 0 { ServiceExitCode::NO_ERROR } else { ServiceExitCode::ServiceSpecific(exit) },
        checkpoint: u32::from(waits),
        wait_hint: if waits { PATIENCE } else { Duration::ZERO },
        process_id: None,
    };
    manager.set_service_status(status).with_context(|| format!("cannot report state {state:?} to the service control manager"))
}
