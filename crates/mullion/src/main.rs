//! The command line of Mullion, and the only place where its parts are chosen and wired together.
//!
//! One binary answers to several names: called as a CNI plug-in (`win-bridge`, `bridge`, `host-local`, …) it is that
//! plug-in; otherwise the first argument chooses what it is.

#[macro_use]
mod output;

mod app;
mod cli;
mod exit;
mod explain;
mod hns;
mod log_file;

#[cfg(target_os = "linux")]
mod linux;

use std::process::ExitCode;

use node_config::node::flags::Program;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    if cni::is_own_plugin(name) {
        return cni::plugin_main(name);
    }
    if app::kube_proxy::is_own_name(name) {
        return exit::report(app::kube_proxy::main(args), false);
    }
    if app::ovn::is_own_name(name) {
        return app::ovn::main_by_name(name);
    }
    if app::kubelet::is_own_name(name) {
        return exit::report(app::kubelet::main(args), false);
    }
    // Before any thread exists: these make namespaces. And they run in every pod, so nothing else is paid for.
    #[cfg(target_os = "linux")]
    match args.next().as_deref() {
        Some("shim") => return container_sim::shim_main(args),
        Some("guest") => return guest::main(args),
        Some("lab-outside") => return lab::outside::keeper(args),
        Some("lab-probe") => return linux::support::probe(args),
        Some("lab-init") => return lab::init::main(args.next().unwrap_or_default().as_ref()),
        _ => {}
    }
    let as_json = exit::wants_json(&std::env::args_os().skip(1).collect::<Vec<_>>());
    match cli::parse() {
        Ok(cli) => exit::report(run(cli.command), as_json),
        Err(error) => exit::report_usage(&error, as_json),
    }
}

fn run(command: cli::Command) -> Result<(), exit::Failure> {
    match command {
        cli::Command::Node(mut args) => match args.command.take() {
            Some(cli::NodeCommand::Explain(args)) => explain::main(&args),
            None => app::node::main(Program::Node, args.flags),
        },
        cli::Command::Config(args) => app::config::main(&args),
        cli::Command::Hns(args) => hns::main(&args),
        cli::Command::Fabric(args) => app::fabric::main(args),
        cli::Command::Ovn(args) => app::ovn::main(args),
        cli::Command::Policy(args) => app::policy::main(args),
        cli::Command::Join(args) => app::join::join(*args),
        cli::Command::Leave(args) => app::join::leave(&args),
        cli::Command::Reset(args) => app::join::reset(&args),
        cli::Command::Token(args) => app::join::token(args),
        cli::Command::Install(args) => app::install::install(&args),
        cli::Command::Uninstall(args) => app::install::uninstall(&args),
        cli::Command::Kubelet(args) => app::kubelet::main(args.flags),
        cli::Command::KubeProxy(args) => app::kube_proxy::main(args.flags),
        #[cfg(target_os = "linux")]
        cli::Command::Linux(command) => linux::main(command),
    }
}

/// Logs go to standard error; `MULLION_LOG` chooses how much (`info`, `debug`, `kubelet=debug`, …).
fn init_logs() {
    init_logs_with("info", None);
}

/// The same, with what is logged where `MULLION_LOG` says nothing, and a file in the place of standard error.
fn init_logs_with(default: &str, file: Option<log_file::LogFile>) {
    use std::io::IsTerminal as _;
    let filter = tracing_subscriber::EnvFilter::try_from_env("MULLION_LOG").unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter);
    match file {
        Some(file) => logs.with_writer(std::sync::Mutex::new(file)).with_ansi(false).init(),
        None => logs.with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init(),
    }
}

/// A runtime for an agent: one thread and an allocator that keeps little, so that a node's processes stay small.
fn agent_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use anyhow::Context as _;
    #[cfg(target_os = "linux")]
    linux_sys::memory::keep_little();
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the event loop failed")
}

/// Runs an agent in such a runtime until it ends. What a burst of work needed of memory goes back to the kernel beside it.
fn run_agent<T>(agent: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    agent_runtime()?.block_on(async {
        tokio::select! {
            done = agent => done,
            never = app::at_rest() => match never {},
        }
    })
}

/// Resolves when the process is asked to end.
async fn end_requested() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    #[cfg(not(unix))]
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
