//! What the service control manager has to know so that a shutdown of Windows waits for pods (upstream nodeshutdown_manager_windows.go): the
//! service's preshutdown timeout, and its place before the services that it depends on.
//!
//! The control manager sends services in `PreshutdownOrder` the control one after the other, and goes on when one has stopped or its timeout
//! has passed. The container runtime has to be there while pods end.

use std::io;
use std::time::Duration;

/// The service's settings, and the order of all services.
pub trait Settings {
    /// How long a shutdown waits for the service; None where nobody has set it, so that Windows' default holds.
    fn timeout(&self) -> io::Result<Option<Duration>>;
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
    /// Services that the service depends on.
    fn dependencies(&self) -> io::Result<Vec<String>>;
    /// `HKLM\SYSTEM\CurrentControlSet\Control`, value `PreshutdownOrder`.
    fn order(&self) -> io::Result<Vec<String>>;
    fn set_order(&self, order: &[String]) -> io::Result<()>;
}

/// Why a shutdown of Windows does not wait for pods, or not in order.
#[derive(Debug, thiserror::Error)]
pub enum PreshutdownError {
    #[error("cannot {operation}; run the service as an administrator or as LocalSystem")]
    Call {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the preshutdown timeout of service {service} is {} s after it was set to {} s; look for a policy that sets it", actual.as_secs(), wanted.as_secs())]
    Timeout { service: String, actual: Duration, wanted: Duration },
}

fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> PreshutdownError {
    move |source| PreshutdownError::Call { operation, source }
}

/// Has a shutdown of Windows wait so long for `service`, before it ends what the service depends on.
///
/// # Errors
/// When a setting cannot be read, written, or does not stay.
pub fn prepare(settings: &dyn Settings, service: &str, wanted: Duration) -> Result<(), PreshutdownError> {
    let dependencies = settings.dependencies().map_err(failed("read which services the node agent's depends on"))?;
    let before = settings.order().map_err(failed("read PreshutdownOrder"))?;
    let after = with_service(service, &dependencies, &before);
    if after != before {
        settings.set_order(&after).map_err(failed("write PreshutdownOrder"))?;
    }
    let timeout = || settings.timeout().map_err(failed("read the service's preshutdown timeout"));
    if timeout()?.is_some_and(|timeout| timeout >= wanted) {
        return Ok(());
    }
    settings.set_timeout(wanted).map_err(failed("set the service's preshutdown timeout"))?;
    match timeout()?.unwrap_or_default() {
        actual if actual < wanted => Err(PreshutdownError::Timeout { service: service.to_owned(), actual, wanted }),
        _ => Ok(()),
    }
}

/// The order with the service before the first one that it depends on; those that are not in it come last. Names count without their case. A
/// service that depends on none has no place in it.
fn with_service(service: &str, dependencies: &[String], order: &[String]) -> Vec<String> {
    let mut order = order.to_vec();
    if dependencies.is_empty() {
        return order;
    }
    let has = |list: &[String], name: &str| list.iter().any(|known| known.eq_ignore_ascii_case(name));
    order.retain(|name| !name.eq_ignore_ascii_case(service));
    for dependency in dependencies {
        if !has(&order, dependency) {
            order.push(dependency.clone());
        }
    }
    let first = order.iter().position(|name| has(dependencies, name)).unwrap_or(order.len());
    order.insert(first, service.to_owned());
    order
}

#[cfg(windows)]
pub use system::Service;

#[cfg(windows)]
mod system {
    use std::io;
    use std::time::Duration;

    use windows_registry::{Key, LOCAL_MACHINE};
    use windows_service::service::{ServiceAccess, ServiceDependency};
    use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

    const CONTROL: &str = r"SYSTEM\CurrentControlSet\Control";
    const ORDER: &str = "PreshutdownOrder";
    const SERVICES: &str = r"SYSTEM\CurrentControlSet\Services";
    /// Where the control manager keeps the timeout, in milliseconds.
    const TIMEOUT: &str = "PreshutdownTimeout";
    /// ERROR_FILE_NOT_FOUND as an HRESULT, which the registry's errors are.
    const NOT_FOUND: i32 = 0x8007_0002_u32.cast_signed();

    /// A service of this machine.
    pub struct Service {
        name: String,
        service: windows_service::service::Service,
    }

    fn io_error(error: windows_service::Error) -> io::Error {
        match error {
            windows_service::Error::Winapi(error) => error,
            other => io::Error::other(other),
        }
    }

    impl Service {
        /// # Errors
        /// When there is no service of the name, or this process may not change it.
        pub fn open(name: &str) -> io::Result<Self> {
            let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT).map_err(io_error)?;
            let access = ServiceAccess::QUERY_CONFIG | ServiceAccess::CHANGE_CONFIG;
            Ok(Self { name: name.to_owned(), service: manager.open_service(name, access).map_err(io_error)? })
        }

        fn control() -> io::Result<Key> {
            LOCAL_MACHINE.options().read().write().open(CONTROL).map_err(io::Error::from)
        }
    }

    impl super::Settings for Service {
        fn timeout(&self) -> io::Result<Option<Duration>> {
            let key = LOCAL_MACHINE.open(format!(r"{SERVICES}\{}", self.name)).map_err(io::Error::from)?;
            match key.get_u32(TIMEOUT).map_err(io::Error::from) {
                Ok(millis) => Ok(Some(Duration::from_millis(millis.into()))),
                Err(error) if error.raw_os_error() == Some(NOT_FOUND) => Ok(None),
                Err(error) => Err(error),
            }
        }

        fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
            // The longest that the setting can say.
            let timeout = timeout.min(Duration::from_millis(u32::MAX.into()));
            self.service.set_preshutdown_timeout(timeout).map_err(io_error)
        }

        fn dependencies(&self) -> io::Result<Vec<String>> {
            let config = self.service.query_config().map_err(io_error)?;
            let names = config.dependencies.into_iter().filter_map(|dependency| match dependency {
                ServiceDependency::Service(name) => name.into_string().ok(),
                ServiceDependency::Group(_) => None,
            });
            Ok(names.collect())
        }

        fn order(&self) -> io::Result<Vec<String>> {
            Self::control()?.get_multi_string(ORDER).map_err(io::Error::from)
        }

        fn set_order(&self, order: &[String]) -> io::Result<()> {
            Self::control()?.set_multi_string(ORDER, &order.iter().map(String::as_str).collect::<Vec<_>>()).map_err(io::Error::from)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_service_stands_before_the_first_one_that_it_depends_on() {
        for (dependencies, before, after) in [
            // Upstream's example.
            ("a b c d", "x b y c z", "x kubelet b y c z a d"),
            ("", "x kubelet y", "x kubelet y"),
            ("containerd", "", "kubelet containerd"),
            ("containerd", "x y", "x y kubelet containerd"),
            ("containerd", "Containerd x KUBELET", "kubelet Containerd x"),
            ("b a", "a b", "kubelet a b"),
        ] {
            assert_eq!(with_service("kubelet", &names(dependencies), &names(before)), names(after), "{dependencies}: {before}");
            let again = with_service("kubelet", &names(dependencies), &names(after));
            assert_eq!(again, names(after), "once is enough");
        }
    }

    /// Notes every call.
    struct Double {
        calls: RefCell<Vec<String>>,
        timeout: RefCell<Option<Duration>>,
        order: RefCell<Vec<String>>,
        /// A policy that keeps the timeout as it is.
        is_fixed: bool,
    }

    impl Double {
        fn new(timeout: Option<u64>, order: &str) -> Self {
            let timeout = timeout.map(Duration::from_secs);
            Self { calls: RefCell::default(), timeout: RefCell::new(timeout), order: RefCell::new(names(order)), is_fixed: false }
        }

        fn called(&self, call: impl Into<String>) {
            self.calls.borrow_mut().push(call.into());
        }
    }

    impl Settings for Double {
        fn timeout(&self) -> io::Result<Option<Duration>> {
            self.called("timeout");
            Ok(*self.timeout.borrow())
        }

        fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
            self.called(format!("set timeout {} s", timeout.as_secs()));
            if !self.is_fixed {
                *self.timeout.borrow_mut() = Some(timeout);
            }
            Ok(())
        }

        fn dependencies(&self) -> io::Result<Vec<String>> {
            self.called("dependencies");
            Ok(names("containerd"))
        }

        fn order(&self) -> io::Result<Vec<String>> {
            self.called("order");
            Ok(self.order.borrow().clone())
        }

        fn set_order(&self, order: &[String]) -> io::Result<()> {
            self.called(format!("set order {}", order.join(" ")));
            if order.iter().any(|name| name == "denied") {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            *self.order.borrow_mut() = order.to_vec();
            Ok(())
        }
    }

    #[test]
    fn settings_are_changed_only_where_they_are_not_enough() {
        let wanted = Duration::from_secs(30);
        let cases: [(Option<u64>, &str, &[&str]); 3] = [
            (None, "gpsvc", &["dependencies", "order", "set order gpsvc kubelet containerd", "timeout", "set timeout 30 s", "timeout"]),
            (Some(10), "kubelet containerd", &["dependencies", "order", "timeout", "set timeout 30 s", "timeout"]),
            (Some(180), "kubelet containerd", &["dependencies", "order", "timeout"]),
        ];
        for (timeout, order, calls) in cases {
            let double = Double::new(timeout, order);
            prepare(&double, "kubelet", wanted).unwrap();
            assert_eq!(*double.calls.borrow(), calls, "{timeout:?} {order}");
            let before = double.calls.borrow().len();
            prepare(&double, "kubelet", wanted).unwrap();
            assert_eq!(double.calls.borrow()[before..], ["dependencies", "order", "timeout"], "the next start changes nothing");
        }
    }

    #[test]
    fn settings_that_do_not_stay_or_are_refused_are_named() {
        let fixed = Double { is_fixed: true, ..Double::new(Some(5), "") };
        let error = prepare(&fixed, "kubelet", Duration::from_secs(30)).unwrap_err().to_string();
        assert_eq!(error, "the preshutdown timeout of service kubelet is 5 s after it was set to 30 s; look for a policy that sets it");
        let denied = Double::new(None, "denied");
        let error = prepare(&denied, "kubelet", Duration::from_secs(30)).unwrap_err();
        assert_eq!(error.to_string(), "cannot write PreshutdownOrder; run the service as an administrator or as LocalSystem");
    }
}
