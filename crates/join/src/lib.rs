//! A machine becomes a node of a cluster, as with `kubeadm join`, and leaves it again.
//!
//! Flow: [`config`] reads a JoinConfiguration, [`settings`] merges it with flags and checks it; [`observe`] gathers facts about the machine,
//! which [`preflight`] judges (pure); [`discovery`] finds the cluster and proves that it is the right one ([`jws`], [`pins`],
//! [`cluster_info`]: pure); [`plan`] lists the steps (pure), and [`apply`] carries them out, with a [`journal`] of what it replaces.
//! [`run`] does all of this in order. [`removal`] undoes what was done, [`drain`] moves pods away, [`tokens`] makes bootstrap tokens.
//! Inputs: flags, the file of `--config`, the ConfigMaps `cluster-info`, `kubeadm-config` and `kubelet-config`. Outputs: files in kubeadm's
//! places, a certificate signing request, the service `kubelet` (crate `install`), its starts and stops.
//! Mirrors `cmd/kubeadm/app` (`discovery`, `preflight`, `phases/kubelet`, `cmd/phases/join`).
//! Guarantees: credentials are sent to no server that has not proved who it is; a failed run leaves the files as they were; a run that was
//! killed is finished by the next one; tokens and keys are in no log and in no printed plan.
//! What it does not do: control planes (`--control-plane`), pods on a machine that leaves.

pub mod apply;
pub mod cluster_info;
pub mod config;
pub mod discovery;
pub mod drain;
mod files;
pub mod health;
pub mod journal;
pub mod jws;
pub mod lock;
pub mod observe;
pub mod pins;
pub mod places;
pub mod plan;
pub mod pods;
pub mod preflight;
pub mod removal;
pub mod run;
pub mod settings;
pub mod token;
pub mod tokens;
pub mod version;

pub use places::Places;
pub use settings::Settings;
pub use token::BootstrapToken;
