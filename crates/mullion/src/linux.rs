//! Linux-only commands: the one-machine cluster and its simulated hosts.

pub mod audit;
pub mod cli;
pub mod cluster_file;
pub mod delete;
pub mod detach;
pub mod disks;
pub mod down;
mod hollow_nodes;
pub mod image;
pub mod keys;
mod limitations;
mod logs;
pub mod node_ports;
pub mod nodes;
pub mod processes;
pub mod progress;
pub mod ready;
mod simulated_host;
pub mod status;
pub mod support;
pub mod template;

use crate::app::{control_plane, up};
use crate::exit::Failure;
use cli::Command;

/// Runs the subcommand.
pub fn main(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(args) => up::up(&args),
        Command::Down(args) => down::down(&args),
        Command::Status(args) => status::main(&args),
        Command::SupportBundle(args) => support::main(&args),
        Command::Logs(args) => logs::main(&args),
        Command::Image(args) => image::main(args),
        Command::Template(args) => template::main(&args),
        Command::ControlPlane(args) => control_plane::main(*args),
        Command::HollowNodes(args) => hollow_nodes::main(args),
        Command::ContainerSim(args) => simulated_host::container_sim(*args),
        Command::HnsSim(args) => simulated_host::hns_sim(args),
    }
}
