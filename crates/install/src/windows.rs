//! The service control manager and the registry: what there is of a service, and carrying steps out.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use windows_registry::{Key, LOCAL_MACHINE};
use windows_service::service::{
    Service as Handle, ServiceAccess, ServiceAction, ServiceActionType, ServiceDependency, ServiceErrorControl, ServiceFailureActions,
    ServiceFailureResetPeriod, ServiceInfo, ServiceStartType, ServiceState as State, ServiceType,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

use crate::control::{Service, ServiceError, ServiceState};
use crate::scm::{self, CONTAINERD, LOGS, MESSAGES, Observed, Recovery, Registered, Registration, Step};
use crate::{Desired, Plan};

const SERVICES: &str = r"SYSTEM\CurrentControlSet\Services";
const SOURCES: &str = r"SYSTEM\CurrentControlSet\Services\EventLog\Application";
const CONTROL: &str = r"SYSTEM\CurrentControlSet\Control";
const ORDER: &str = "PreshutdownOrder";
/// EVENTLOG_ERROR_TYPE, EVENTLOG_WARNING_TYPE and EVENTLOG_INFORMATION_TYPE.
const EVENT_TYPES: u32 = 7;
/// ERROR_SERVICE_DOES_NOT_EXIST
const NO_SERVICE: i32 = 1060;
/// ERROR_FILE_NOT_FOUND as an HRESULT, which the registry's errors are.
const NOT_FOUND: i32 = 0x8007_0002_u32.cast_signed();
/// ERROR_ACCESS_DENIED, and the same as an HRESULT.
const NOT_ALLOWED: i32 = 5;
const NO_RIGHT: i32 = 0x8007_0005_u32.cast_signed();
/// How long a service may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// A step that failed; those before it are done, and another run goes on.
#[derive(Debug, thiserror::Error)]
pub enum WindowsError {
    #[error("cannot {operation}{}", way_out(.source))]
    Call {
        operation: String,
        #[source]
        source: io::Error,
    },
    #[error("service {service} is not {wanted} after {}s: look into the event log Application, source {service}", PATIENCE.as_secs())]
    Late { service: String, wanted: &'static str },
}

/// What to do about a call that failed, where that is known.
fn way_out(error: &io::Error) -> &'static str {
    if matches!(error.raw_os_error(), Some(NOT_ALLOWED | NO_RIGHT)) { "; run the command as an administrator" } else { "" }
}

fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> WindowsError {
    let operation = operation.into();
    move |source| WindowsError::Call { operation, source }
}

fn io_error(error: windows_service::Error) -> io::Error {
    match error {
        windows_service::Error::Winapi(error) => error,
        other => io::Error::other(other),
    }
}

fn manager(access: ServiceManagerAccess) -> io::Result<ServiceManager> {
    ServiceManager::local_computer(None::<&str>, access).map_err(io_error)
}

/// A service; none where there is no such one.
fn open(name: &str, access: ServiceAccess) -> io::Result<Option<Handle>> {
    match manager(ServiceManagerAccess::CONNECT)?.open_service(name, access).map_err(io_error) {
        Ok(service) => Ok(Some(service)),
        Err(error) if error.raw_os_error() == Some(NO_SERVICE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A key below `HKEY_LOCAL_MACHINE`; none where there is no such one.
fn key(path: &str) -> io::Result<Option<Key>> {
    match LOCAL_MACHINE.open(path).map_err(io::Error::from) {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.raw_os_error() == Some(NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks at the service and at what belongs to it.
///
/// # Errors
/// [`WindowsError::Call`].
pub fn observe(desired: &Desired) -> Result<Observed, WindowsError> {
    let name = desired.part().service();
    let look = || -> io::Result<Observed> {
        let access = ServiceAccess::QUERY_CONFIG | ServiceAccess::QUERY_STATUS;
        let service = open(name, access)?.map(|service| registered(name, &service)).transpose()?;
        let source = key(&format!(r"{SOURCES}\{name}"))?.and_then(|key| key.get_string("EventMessageFile").ok());
        let order = key(CONTROL)?.and_then(|key| key.get_multi_string(ORDER).ok()).unwrap_or_default();
        Ok(Observed {
            service,
            source,
            has_logs: Path::new(LOGS).is_dir(),
            has_containerd: open(CONTAINERD, ServiceAccess::QUERY_STATUS)?.is_some(),
            is_in_order: order.iter().any(|known| known.eq_ignore_ascii_case(name)),
        })
    };
    look().map_err(failed(format!("look at service {name}")))
}

fn registered(name: &str, service: &Handle) -> io::Result<Registered> {
    let config = service.query_config().map_err(io_error)?;
    let dependencies = config.dependencies.into_iter().filter_map(|dependency| match dependency {
        ServiceDependency::Service(name) => name.into_string().ok(),
        ServiceDependency::Group(_) => None,
    });
    let description = key(&format!(r"{SERVICES}\{name}"))?.and_then(|key| key.get_string("Description").ok());
    Ok(Registered {
        command_line: config.executable_path.to_string_lossy().into_owned(),
        display_name: config.display_name.to_string_lossy().into_owned(),
        description: description.unwrap_or_default(),
        dependencies: dependencies.collect(),
        is_automatic: config.start_type == ServiceStartType::AutoStart,
        recovery: service.get_failure_actions().ok().and_then(|actions| recovery(&actions)),
        is_active: service.query_status().map_err(io_error)?.current_state != State::Stopped,
    })
}

/// What the control manager does after failures, where it says so.
fn recovery(actions: &ServiceFailureActions) -> Option<Recovery> {
    let reset = match actions.reset_period {
        ServiceFailureResetPeriod::After(reset) => reset,
        ServiceFailureResetPeriod::Never => Duration::MAX,
    };
    let delays = actions.actions.as_ref()?.iter();
    // Something else than a start has no delay that could be right.
    let delays = delays.map(|action| if action.action_type == ServiceActionType::Restart { action.delay } else { Duration::MAX });
    let delays = delays.collect::<Vec<_>>();
    Some(Recovery { delays: delays.try_into().unwrap_or([Duration::MAX; 3]), reset })
}

fn info(registration: &Registration) -> ServiceInfo {
    ServiceInfo {
        name: registration.name.into(),
        display_name: registration.display_name.clone().into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: registration.program.clone().into(),
        launch_arguments: registration.arguments.iter().map(OsString::from).collect(),
        dependencies: registration.dependencies.iter().map(|name| ServiceDependency::Service(name.into())).collect(),
        account_name: None,
        account_password: None,
    }
}

/// Carries the steps out.
///
/// # Errors
/// [`WindowsError`] of the first step that failed.
pub fn apply(plan: &Plan<Step>, progress: &dyn Fn(&Step)) -> Result<(), WindowsError> {
    for step in &plan.steps {
        progress(step);
        match step {
            Step::Start(name) => start(name)?,
            Step::Stop(name) => stop(name)?,
            _ => change(step).map_err(failed(step.to_string()))?,
        }
    }
    Ok(())
}

fn change(step: &Step) -> io::Result<()> {
    let existing = |name: &str, access| open(name, access)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    match step {
        // What is below C:\ by inheritance lets every user add files.
        Step::MakeDirectory(path) => host::make_private_dir(Path::new(path)),
        Step::Register(registration) => {
            let access = ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE;
            let service = manager(access)?.create_service(&info(registration), ServiceAccess::CHANGE_CONFIG).map_err(io_error)?;
            service.set_description(&registration.description).map_err(io_error)
        }
        Step::Change(registration, _) => {
            let service = existing(registration.name, ServiceAccess::CHANGE_CONFIG)?;
            service.change_config(&info(registration)).map_err(io_error)?;
            service.set_description(&registration.description).map_err(io_error)
        }
        Step::SetRecovery(name, recovery) => {
            let service = existing(name, ServiceAccess::CHANGE_CONFIG | ServiceAccess::START)?;
            let actions = recovery.delays.map(|delay| ServiceAction { action_type: ServiceActionType::Restart, delay });
            let actions = ServiceFailureActions {
                reset_period: ServiceFailureResetPeriod::After(recovery.reset),
                reboot_msg: None,
                command: None,
                actions: Some(actions.into()),
            };
            service.update_failure_actions(actions).map_err(io_error)?;
            // An agent that ends with an error has failed too. Systems without the setting have the rest.
            let _ = service.set_failure_actions_on_non_crash_failures(true);
            Ok(())
        }
        Step::AddSource(name) => {
            let key = LOCAL_MACHINE.create(format!(r"{SOURCES}\{name}")).map_err(io::Error::from)?;
            key.set_expand_string("EventMessageFile", MESSAGES).map_err(io::Error::from)?;
            key.set_u32("TypesSupported", EVENT_TYPES).map_err(io::Error::from)
        }
        Step::Unregister(name) => existing(name, ServiceAccess::DELETE)?.delete().map_err(io_error),
        Step::RemoveSource(name) => {
            LOCAL_MACHINE.options().read().write().open(SOURCES).and_then(|key| key.remove_tree(name)).map_err(io::Error::from)
        }
        Step::LeaveOrder(name) => {
            let key = LOCAL_MACHINE.options().read().write().open(CONTROL).map_err(io::Error::from)?;
            let order = key.get_multi_string(ORDER).map_err(io::Error::from)?;
            let others: Vec<&str> = order.iter().map(String::as_str).filter(|known| !known.eq_ignore_ascii_case(name)).collect();
            key.set_multi_string(ORDER, &others).map_err(io::Error::from)
        }
        Step::RemoveLogs(name) => {
            for file in [format!(r"{LOGS}\{name}.log"), format!(r"{LOGS}\{name}.log.old")] {
                match std::fs::remove_file(file) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            // Another service's log stays, and what others have in the directories above.
            for directory in Path::new(LOGS).ancestors().take(3) {
                let _ = std::fs::remove_dir(directory);
            }
            Ok(())
        }
        Step::Start(_) | Step::Stop(_) => Ok(()),
    }
}

/// Waits until a service is in a state.
fn wait(name: &str, service: &Handle, state: State, wanted: &'static str) -> Result<(), WindowsError> {
    let began = Instant::now();
    loop {
        let status = service.query_status().map_err(io_error).map_err(failed(format!("look at service {name}")))?;
        if status.current_state == state {
            return Ok(());
        }
        // One that has ended at once does not come any more.
        let has_ended = state == State::Running && status.current_state == State::Stopped;
        if has_ended || began.elapsed() > PATIENCE {
            return Err(WindowsError::Late { service: name.to_owned(), wanted });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn start(name: &str) -> Result<(), WindowsError> {
    let access = ServiceAccess::START | ServiceAccess::QUERY_STATUS;
    let service = open(name, access).and_then(|service| service.ok_or_else(|| io::ErrorKind::NotFound.into()));
    let service = service.map_err(failed(format!("open service {name}")))?;
    let status = service.query_status().map_err(io_error).map_err(failed(format!("look at service {name}")))?;
    if status.current_state == State::Stopped {
        service.start::<OsString>(&[]).map_err(io_error).map_err(failed(format!("start service {name}")))?;
    }
    wait(name, &service, State::Running, "running")
}

fn stop(name: &str) -> Result<(), WindowsError> {
    let access = ServiceAccess::STOP | ServiceAccess::QUERY_STATUS;
    let Some(service) = open(name, access).map_err(failed(format!("open service {name}")))? else { return Ok(()) };
    let status = service.query_status().map_err(io_error).map_err(failed(format!("look at service {name}")))?;
    if !matches!(status.current_state, State::Stopped | State::StopPending) {
        service.stop().map_err(io_error).map_err(failed(format!("stop service {name}")))?;
    }
    wait(name, &service, State::Stopped, "stopped")
}

/// A service of the service control manager.
#[derive(Clone, Debug)]
pub struct Scm {
    desired: Desired,
}

impl Scm {
    /// `desired` is what [`Service::install`] makes.
    #[must_use]
    pub fn new(desired: Desired) -> Self {
        Self { desired }
    }

    /// Runs calls that may wait, beside the event loop.
    async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Desired) -> Result<T, String> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let desired = self.desired.clone();
        let service = desired.part().service().to_owned();
        let done = tokio::task::spawn_blocking(move || call(&desired)).await.unwrap_or_else(|error| Err(error.to_string()));
        done.map_err(|complaint| ServiceError::Manager { operation, service, complaint })
    }
}

fn told<T>(result: Result<T, WindowsError>) -> Result<T, String> {
    use thiserror_ext::AsReport as _;
    result.map_err(|error| error.to_report_string())
}

impl Service for Scm {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        let service = self.call("look at", |desired| told(observe(desired)).map(|observed| observed.service)).await?;
        Ok(Some(service.map_or_else(ServiceState::default, |service| ServiceState {
            exists: true,
            is_enabled: service.is_automatic,
            is_active: service.is_active,
        })))
    }

    async fn start(&self) -> Result<(), ServiceError> {
        self.call("start", |desired| told(start(desired.part().service()))).await
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        self.call("stop", |desired| told(stop(desired.part().service()))).await
    }

    fn can_install(&self) -> bool {
        true
    }

    async fn install(&self) -> Result<(), ServiceError> {
        self.call("install", |desired| {
            let observed = told(observe(desired))?;
            let plan = scm::plan(desired, &observed, false).map_err(|error| error.to_string())?;
            told(apply(&plan, &|_| {}))
        })
        .await
    }

    async fn uninstall(&self) -> Result<(), ServiceError> {
        self.call("remove", |desired| {
            let observed = told(observe(desired))?;
            match scm::removal(desired, &observed) {
                Ok(plan) => told(apply(&plan, &|_| {})),
                Err(_) => Ok(()),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;

    /// Needs a control manager, which Wine has too: tools/wine/test runs it there. The program is none that could be a service.
    #[test]
    fn a_service_is_registered_changed_and_removed_without_a_trace() {
        let desired = |flag: &str| Desired::new(Part::KubeProxy, r"C:\with space\mullion.exe", vec![flag.to_owned()], true).unwrap();
        let first = desired(r#"--network-name=a "b""#);
        let before = observe(&first).unwrap();
        assert_eq!(before.service, None);
        let install = |desired: &Desired| {
            let plan = scm::plan(desired, &observe(desired).unwrap(), false).unwrap();
            apply(&plan, &|_| {}).unwrap();
            plan.steps.len()
        };
        assert!(install(&first) >= 3);
        let seen = observe(&first).unwrap();
        let service = seen.service.as_ref().unwrap();
        assert_eq!(service.command_line, scm::registration(&first, false).command_line());
        assert!(service.is_automatic && !service.is_active && seen.has_logs);
        assert_eq!(install(&first), 0, "a second run changes nothing: {seen:?}");
        let second = desired("--v=4");
        assert_eq!(install(&second), 1);
        assert_eq!(install(&second), 0);
        // Neither does it start, nor is it an administrator's right that is missing.
        let error = start("kube-proxy").unwrap_err().to_string();
        assert!(error.contains("service kube-proxy") && !error.contains("administrator"), "{error}");
        assert!(!observe(&second).unwrap().service.unwrap().is_active);
        let refused = WindowsError::Call { operation: "look".into(), source: io::Error::from_raw_os_error(NOT_ALLOWED) };
        assert_eq!(refused.to_string(), "cannot look; run the command as an administrator");
        let plan = scm::removal(&second, &observe(&second).unwrap()).unwrap();
        apply(&plan, &|_| {}).unwrap();
        assert_eq!(observe(&second).unwrap(), before, "nothing is left");
        assert!(scm::removal(&second, &before).is_err());
    }
}
