//! Benchmarks in namespaces of their own: how the program starts itself again there.

use anyhow::{Context as _, Result, ensure};
use linux_sys::spawn::{Namespaces, Spawn, Step};

/// Runs this program again with `args`, to its end, in new namespaces: an ordinary user may. What it reports has been printed by then.
pub fn again(args: impl IntoIterator<Item = String>) -> Result<()> {
    let spawn = Spawn::new(std::env::current_exe()?).args(args).new_namespaces(own() | Namespaces::USER).map_users();
    to_its_end(spawn, "namespaces cannot be had; see `unshare --user --map-root-user true`")
}

/// The same as the machine's root, which alone may give containers their control groups.
pub fn again_as_root(args: impl IntoIterator<Item = String>) -> Result<()> {
    to_its_end(Spawn::new(std::env::current_exe()?).args(args).new_namespaces(own()), "namespaces cannot be had")
}

fn own() -> Namespaces {
    Namespaces::MOUNT | Namespaces::NET | Namespaces::PID
}

fn to_its_end(spawn: Spawn, otherwise: &'static str) -> Result<()> {
    let child = spawn.steps([Step::MakePrivate, Step::Proc("/proc".into())]).spawn().context(otherwise)?;
    ensure!(child.wait()?.success(), "limits were passed or something failed in the benchmark's namespaces");
    Ok(())
}
