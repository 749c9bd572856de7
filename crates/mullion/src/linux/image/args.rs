//! Command-line definitions of `mullion image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use images::registry::{Mirror, Registries};
use images::tarball::Limits;
use kube_rules::Quantity;

use super::super::cli::{DirArgs, Output};

/// `mullion image`.
#[derive(Clone, Debug, Args)]
pub struct ImageArgs {
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// What to do with images.
#[derive(Clone, Debug, Subcommand)]
pub enum ImageCommand {
    /// Load an OCI or docker archive on every node that it fits
    Load {
        /// The archive
        archive: PathBuf,
        /// Name for an archive that has none
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        take: Take,
        #[command(flatten)]
        at: ImageNodes,
    },
    /// Pull an image on every node that it fits, with this machine's network and docker's credentials
    Pull {
        /// Its name
        image: String,
        #[command(flatten)]
        registries: RegistryArgs,
        /// Ask the registry even where a stand-in would answer
        #[arg(long)]
        no_stand_ins: bool,
        #[command(flatten)]
        take: Take,
        #[command(flatten)]
        at: ImageNodes,
    },
    /// List images
    List {
        #[command(flatten)]
        output: OutputArg,
        #[command(flatten)]
        at: ImageNodes,
    },
    /// Give an image another name
    Tag {
        /// Name, digest or id
        image: String,
        /// The new name
        new: String,
        #[command(flatten)]
        at: ImageNodes,
    },
    /// Remove an image; of several names only that one
    Rm {
        /// Name, digest or id
        image: String,
        #[command(flatten)]
        at: ImageNodes,
    },
}

/// How registries are reached.
#[derive(Clone, Debug, Default, Args)]
pub struct RegistryArgs {
    /// Ask here before the registry itself, as docker.io=http://10.0.0.1:5000
    #[arg(long)]
    pub registry_mirror: Vec<Mirror>,
    /// HOST[:PORT] of a registry without TLS; localhost needs no mention
    #[arg(long)]
    pub insecure_registry: Vec<String>,
}

impl From<RegistryArgs> for Registries {
    fn from(args: RegistryArgs) -> Self {
        Self { mirrors: args.registry_mirror, insecure: args.insecure_registry }
    }
}

/// What is taken, and how progress is printed.
#[derive(Clone, Debug, Args)]
pub struct Take {
    /// Also take images for older Windows builds, which run with Hyper-V isolation
    #[arg(long)]
    pub hyperv: bool,
    /// Refuse an archive or layer that is larger, unpacked
    #[arg(long, default_value = "32Gi")]
    pub max_size: Quantity,
    /// Refuse a file that is larger
    #[arg(long, default_value = "16Gi")]
    pub max_file_size: Quantity,
    #[command(flatten)]
    pub output: OutputArg,
}

impl Take {
    pub fn limits(&self) -> Limits {
        let bytes = |quantity: &Quantity| u64::try_from(quantity.value()).unwrap_or(0);
        Limits { bytes: bytes(&self.max_size), file_bytes: bytes(&self.max_file_size), ..Limits::default() }
    }
}

/// How progress is printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArg {
    /// Output format
    #[arg(short, long)]
    pub output: Option<Output>,
}

/// Which nodes' images.
#[derive(Clone, Debug, Args)]
pub struct ImageNodes {
    #[command(flatten)]
    pub dir: DirArgs,
    /// Only this node
    #[arg(long)]
    pub node: Option<String>,
}
