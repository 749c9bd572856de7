//! Stand-ins: small servers that answer for images which need a real Windows.
//!
//! container-sim calls [`run`] inside a container, as its only program: the file system's root then holds one directory
//! per drive (`/c` is `C:\`), and nothing of the machine outside is in sight.

mod drives;
mod fetch;
mod iis;
mod pages;
mod redis;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

pub use drives::{DriveError, Drives};

use crate::Dns;

/// A stand-in program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// A web server on port 80.
    Iis,
    /// The same web server, for images of ASP.NET: what it serves is static.
    Aspnet,
    /// Keys and values on port 6379.
    Redis,
    /// Waits to be stopped.
    Pause,
}

impl FromStr for StandIn {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "iis" => Ok(Self::Iis),
            "aspnet" => Ok(Self::Aspnet),
            "redis" => Ok(Self::Redis),
            "pause" => Ok(Self::Pause),
            other => Err(format!("no stand-in is called {other:?}; there are aspnet, iis, pause and redis")),
        }
    }
}

/// Options of a stand-in.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which program.
    pub program: StandIn,
    /// The container's environment; the process' own is not looked at.
    pub env: Vec<(String, String)>,
    /// The pod's resolver settings.
    pub dns: Dns,
}

/// Port and place of a stand-in server.
#[derive(Clone, Debug)]
struct Flags {
    /// None: the program's own.
    port: Option<u16>,
    root: PathBuf,
}

/// Runs a stand-in until it is asked to stop (SIGTERM: exit code 0).
pub fn run(options: Options) -> ExitCode {
    run_with(options, Flags { port: None, root: "/".into() })
}

fn run_with(options: Options, flags: Flags) -> ExitCode {
    // The stand-ins serve a handful of connections: one thread does, and keeps each of them small.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("stand-in: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match options.program {
            StandIn::Iis | StandIn::Aspnet => iis::serve(options, flags.port.unwrap_or(80), flags.root).await,
            StandIn::Redis => redis::serve(flags.port.unwrap_or(redis::PORT)).await,
            StandIn::Pause => {
                let signal = stop_signal().await?;
                println!("Shutting down, got {signal}");
                Ok(())
            }
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stand-in: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Entry point of `mullion guest PROGRAM [--port N] [--root DIR] [--dns IP]… [--search DOMAIN]…`: a stand-in outside of
/// any container, with the process' environment.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    match parse(args) {
        Ok((options, flags)) => run_with(options, flags),
        Err(error) => {
            eprintln!("{error:#}\nusage: mullion guest iis|aspnet|redis|pause [--port N] [--root DIR] [--dns IP] [--search DOMAIN]");
            ExitCode::from(2)
        }
    }
}

fn parse(args: impl IntoIterator<Item = String>) -> anyhow::Result<(Options, Flags)> {
    use anyhow::Context as _;
    let mut args = args.into_iter();
    let program = args.next().context("which program?")?.parse().map_err(|error: String| anyhow::anyhow!(error))?;
    let mut options = Options { program, env: std::env::vars().collect(), dns: Dns::default() };
    let mut flags = Flags { port: None, root: "/".into() };
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--port" => flags.port = Some(value.parse().context("--port needs a port number")?),
            "--root" => flags.root = value.into(),
            "--dns" => options.dns.servers.push(value),
            "--search" => options.dns.searches.push(value),
            other => anyhow::bail!("unknown option {other}"),
        }
    }
    Ok((options, flags))
}

/// Listens on all addresses, IPv6 included where the pod has it.
async fn listen(port: u16) -> anyhow::Result<tokio::net::TcpListener> {
    use anyhow::Context as _;
    use std::net::{Ipv4Addr, Ipv6Addr};
    if let Ok(listener) = tokio::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        return Ok(listener);
    }
    tokio::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.with_context(|| format!("cannot listen on port {port}"))
}

/// Resolves when the program is asked to stop, with the name of the signal.
async fn stop_signal() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => Ok("SIGTERM"),
        _ = int.recv() => Ok("SIGINT"),
    }
}
