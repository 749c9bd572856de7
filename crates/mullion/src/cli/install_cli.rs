//! Command-line definitions of `mullion install` and `uninstall`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// A part that runs as a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartArg {
    /// Node agent, service proxy and pod network in one process; its service is kubelet
    Node,
    /// The node agent alone
    Kubelet,
    /// The service proxy alone
    KubeProxy,
}

impl From<PartArg> for install::Part {
    fn from(part: PartArg) -> Self {
        match part {
            PartArg::Node => Self::Node,
            PartArg::Kubelet => Self::Kubelet,
            PartArg::KubeProxy => Self::KubeProxy,
        }
    }
}

/// `mullion install`.
#[derive(Clone, Debug, Args)]
pub struct InstallArgs {
    /// What the service runs
    #[arg(value_enum)]
    pub part: PartArg,
    /// Start the service, or start it again where it has changed
    #[arg(long)]
    pub now: bool,
    /// The program [default: this one, where it is now]
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// Put units of others aside; mullion uninstall gives them back
    #[arg(long)]
    pub replace: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Prepare the file system of another Linux machine in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "now")]
    pub rootfs: Option<PathBuf>,
    /// Flags of the part, behind those that every service has
    #[arg(last = true)]
    pub flags: Vec<String>,
}

/// `mullion uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// What the service runs
    #[arg(value_enum)]
    pub part: PartArg,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The file system of another Linux machine
    #[arg(long, value_name = "DIR")]
    pub rootfs: Option<PathBuf>,
}
