//! Benchmarks in namespaces of their own: how the program starts itself again there.

use anyhow::{Context as _, Result, ensure};
use linux_sys::spawn::{Namespaces, Spawn, Step};

/// Runs this program again with `args`, to its end, in new namespaces: an ordinary user may. What it reports has been printed by then.
pub fn again(args: impl IntoIterator<Item = String>) -> Result<()> {
    let child = Spawn::new(std::env::current_exe()?)
        .args(args)
        .new_namespaces(Namespaces::USER | Namespaces::MOUNT | Namespaces::NET | Namespaces::PID)
        .map_users()
        .steps([Step::MakePrivate, Step::Proc("/proc".into())])
        .spawn()
        .context("namespaces cannot be had; see `unshare --user --map-root-user true`")?;
    ensure!(child.wait()?.success(), "limits were passed or something failed in the benchmark's namespaces");
    Ok(())
}
