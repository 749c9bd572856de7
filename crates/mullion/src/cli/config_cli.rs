//! Command-line definitions of `mullion config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `mullion config`.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommands of `mullion config`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print a configuration with every member at its default
    Default,
    /// Check a configuration, and say what of it has no effect
    Check {
        /// File of mullion node --config
        file: PathBuf,
        /// Its directory of drop-in files
        #[arg(long)]
        config_dir: Option<PathBuf>,
    },
    /// Print the configuration that means the same as the flags of a kubelet, a kube-proxy or a node
    Migrate {
        /// The flags are kube-proxy's
        #[arg(long)]
        kube_proxy: bool,
        /// The flags
        #[arg(last = true)]
        flags: Vec<String>,
    },
}
