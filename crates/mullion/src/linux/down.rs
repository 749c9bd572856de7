//! `mullion down`: ends the cluster of a directory, and deletes it where that is asked for.

use std::time::Instant;

use lab::dir::Dirs;
use lab::error::LabError;
use lab::supervisor;
use serde_json::json;

use super::cli::{DownArgs, Output};
use super::cluster_file::{self, Cluster};
use super::progress::print_document;
use super::{delete, image, keys};
use crate::exit::Failure;

/// `mullion down`.
pub fn down(args: &DownArgs) -> Result<(), Failure> {
    let dirs = cluster_file::dirs(&args.dir)?;
    let begin = Instant::now();
    // One that cannot be read has no nodes that end pods.
    let grace = Cluster::load(&dirs).ok().flatten().map(|cluster| cluster.shutdown_grace_period.0).unwrap_or_default();
    if !grace.is_zero() {
        eprintln!("pods end: at most {}", node_config::GoDuration(grace));
    }
    let ended = match supervisor::down(&dirs, grace) {
        Ok(()) => true,
        // To delete a stopped cluster is no mistake; only one that is not there.
        Err(LabError::NotRunning(_)) if args.if_running || (args.delete && dirs.dir.exists()) => false,
        Err(error) => return Err(error.into()),
    };
    let dir = dirs.dir.display();
    let took = begin.elapsed().as_secs_f64();
    let kept = if args.delete && dirs.dir.exists() { Some(delete_cluster(&dirs)?) } else { None };
    match (&kept, ended) {
        (None, true) => eprintln!("the cluster of {dir} ended in {took:.2} s; `{}` resumes it", dirs.command("up")),
        (None, false) => eprintln!("no cluster runs on {dir}"),
        (Some(kept), _) if kept.is_empty() => eprintln!("the cluster of {dir} is deleted"),
        (Some(kept), _) => eprintln!("the cluster of {dir} is deleted; the directory stays, for what is not the cluster's: {}", kept.join(", ")),
    }
    if args.output == Some(Output::Json) {
        print_document(&json!({"dir": dirs.dir, "ended": ended, "deleted": kept.is_some(), "kept": kept.unwrap_or_default()}));
    }
    Ok(())
}

/// Deletes the cluster of DIR, its access in the user's kubeconfig, and the layers of images that only it used.
fn delete_cluster(dirs: &Dirs) -> Result<Vec<String>, Failure> {
    // One that cannot be read may be deleted all the same.
    let cluster = Cluster::load(dirs).ok().flatten();
    let file = cluster.as_ref().and_then(|cluster| cluster.kubeconfig.as_deref());
    let kept = delete::delete(dirs, file)?;
    if let Some(cluster) = &cluster {
        keys::withdraw_from(cluster)?;
    }
    image::collect_garbage();
    Ok(kept)
}
