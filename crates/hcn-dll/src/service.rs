//! The service behind the exports: one connection a process, made when first needed.

use std::sync::OnceLock;

use hcn::remote::RemoteHcn;
use hcn::{Args, Function, HResult, HostNetwork, RawError, Reply};

static SERVICE: OnceLock<Result<RemoteHcn, String>> = OnceLock::new();

fn connect() -> Result<RemoteHcn, String> {
    let address =
        std::env::var("MULLION_HCN").map_err(|_| "set MULLION_HCN to the address of a simulated host's service, tcp:HOST:PORT".to_owned())?;
    let address = address.strip_prefix(hcn::blocking::DLL).unwrap_or(&address);
    RemoteHcn::connect(address).map_err(|error| error.to_string())
}

/// The service, or why there is none: the code that Windows gives where the service is not installed.
pub fn service() -> Result<&'static RemoteHcn, RawError> {
    let service = SERVICE.get_or_init(connect);
    service.as_ref().map_err(|reason| RawError::with_record(HResult::SERVICE_DOES_NOT_EXIST, reason))
}

/// One call.
pub fn call(function: Function, args: Args<'_>) -> Result<Reply, RawError> {
    service()?.call(function, args)
}

/// Chooses the service before the first call, where the environment does not.
#[cfg(test)]
pub fn choose(address: &str, token: &str) {
    let chosen = RemoteHcn::with_token(address, Some(token.to_owned())).map_err(|error| error.to_string());
    assert!(SERVICE.set(chosen).is_ok(), "the service is chosen once");
}
