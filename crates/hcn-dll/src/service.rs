//! The service behind the exports, one a process, made when first needed: a simulated host's over one connection, or, in a DLL that
//! is built with the feature `one-lock`, a model of the service in this process.

use std::sync::OnceLock;

use hcn::remote::RemoteHcn;
use hcn::{Args, Function, HResult, HostNetwork, RawError, Reply};

static SERVICE: OnceLock<Result<Box<dyn HostNetwork>, String>> = OnceLock::new();

fn connect() -> Result<Box<dyn HostNetwork>, String> {
    let address =
        std::env::var("MULLION_HCN").map_err(|_| "set MULLION_HCN to the address of a simulated host's service, tcp:HOST:PORT".to_owned())?;
    let address = address.strip_prefix(hcn::blocking::DLL).unwrap_or(&address);
    #[cfg(feature = "one-lock")]
    if let Some(settings) = address.strip_prefix("model:") {
        return crate::one_lock::start(settings);
    }
    RemoteHcn::connect(address).map(boxed).map_err(|error| error.to_string())
}

fn boxed(service: RemoteHcn) -> Box<dyn HostNetwork> {
    Box::new(service)
}

/// The service, or why there is none: the code that Windows gives where the service is not installed.
pub fn service() -> Result<&'static dyn HostNetwork, RawError> {
    let service = SERVICE.get_or_init(connect).as_deref();
    service.map_err(|reason| RawError::with_record(HResult::SERVICE_DOES_NOT_EXIST, reason))
}

pub fn call(function: Function, args: Args<'_>) -> Result<Reply, RawError> {
    service()?.call(function, args)
}

/// Chooses the service before the first call, where the environment does not.
#[cfg(test)]
pub fn choose(address: &str, token: &str) {
    let chosen = RemoteHcn::with_token(address, Some(token.to_owned())).map(boxed).map_err(|error| error.to_string());
    assert!(SERVICE.set(chosen).is_ok(), "the service is chosen once");
}
