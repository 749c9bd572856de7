//! What runs on Linux only: the one-machine cluster and its simulated hosts.

pub mod cli;
mod control_plane;
mod detach;
mod disks;
mod hosts;
mod image;
mod keys;
mod lacks;
mod logs;
mod node_ports;
mod nodes;
mod processes;
mod progress;
mod status;
pub mod support;
pub mod template;
pub mod up;

use crate::exit::Failure;
use cli::Command;

/// Does what was asked.
pub fn main(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(args) => up::up(&args),
        Command::Down(args) => up::down(&args),
        Command::Status(args) => status::main(&args),
        Command::SupportBundle(args) => support::main(&args),
        Command::Logs(args) => logs::main(&args),
        Command::Image(args) => image::main(args),
        Command::Template(args) => template::main(&args),
        Command::ControlPlane(args) => control_plane::main(*args),
        Command::ContainerSim(args) => hosts::container_sim(*args),
        Command::HnsSim(args) => hosts::hns_sim(args),
    }
}
