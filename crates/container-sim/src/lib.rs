//! A CRI v1 runtime for simulated hosts: Linux nodes run Linux images, simulated Windows nodes run Windows
//! programs under Wine, or stand-ins.
//!
//! | module | what it does |
//! | --- | --- |
//! | `runtime` | the service: sandboxes, containers, events, statistics |
//! | [`shim`] | the process per sandbox that holds its containers while the runtime comes and goes |
//! | `streaming` | the HTTP server behind `exec`, `attach` and `port-forward` |
//!
//! What is simulated and what is not: namespaces, mounts, networks, signals, logs and exit codes are real. Stand-ins
//! are labelled as such (`mullion.io/stand-in`). Limits hold where the machine allows it (`runtime::limits`); those that nothing enforces
//! are reported (`mullion.io/unenforced-limits`).
#![cfg(target_os = "linux")]

mod config;
mod runtime;
mod session;
pub mod shim;
mod streaming;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use k8s_cri::v1::image_service_server::ImageServiceServer;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

pub use config::{CniDirs, Config, HostDirs};
pub use runtime::{UNENFORCED, remove_control_groups};
pub use shim::shim_main;

/// Serves CRI until `shutdown` resolves. Pods stay: the next run finds them.
///
/// # Errors
/// When the socket or a directory cannot be used.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<()> {
    let socket = config.socket.clone();
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", socket.display()));
        }
        _ => {}
    }
    let runtime = runtime::Runtime::start(config).await?;
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let streaming = Arc::new(streaming::Server::start(Arc::clone(&runtime)).await?);
    let service = runtime::Service(runtime, streaming);
    let server = tonic::transport::Server::builder()
        .add_service(cri::RuntimeServer::new(service.clone()))
        .add_service(ImageServiceServer::new(service))
        .serve_with_incoming(UnixListenerStream::new(listener));
    // Not a graceful shutdown: event streams never end by themselves, and operations under way run to their end in
    // tasks of their own or are found half done by the next run.
    let served = tokio::select! {
        served = server => served.context("serving CRI failed"),
        () = shutdown => Ok(()),
    };
    let _ = std::fs::remove_file(&socket);
    served
}
