//! `mullion image`: the images of a cluster's nodes. Works on the nodes' stores directly, whether the cluster runs or not.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use container_sim::images::{Image, LoadOptions, Store};
use lab::dir::{Cluster, Env};
use serde_json::json;

use super::cli::{ImageArgs, ImageCommand, ImageNodes, Output};
use super::up::{dirs, node_os};
use crate::exit::Failure;

/// Does what was asked, node by node.
pub fn main(args: ImageArgs) -> Result<(), Failure> {
    match args.command {
        ImageCommand::Load { archive, name, at } => load(&archive, name, &at),
        ImageCommand::List { output, at } => list(output, &at),
        ImageCommand::Rm { image, at } => remove(&image, &at),
    }
    .map_err(Failure::from)
}

/// Where the unpacked layers of all clusters are.
pub fn cache_dir() -> std::path::PathBuf {
    Env::of_process().cache_dir().join("images")
}

fn stores(at: &ImageNodes) -> Result<Vec<(String, Store)>> {
    let dirs = dirs(&at.dir)?;
    let cluster = Cluster::load(&dirs)?.ok_or_else(|| anyhow!("{} holds no cluster: start one with `mullion up`", dirs.dir.display()))?;
    let chosen: Vec<_> = cluster.nodes.iter().filter(|node| at.node.as_ref().is_none_or(|name| *name == node.name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
        return Err(anyhow!("there is no node {}: use one of {}", at.node.as_deref().unwrap_or_default(), names.join(", ")));
    }
    let open = |node: &&lab::spec::NodeSpec| {
        let state = dirs.host(&node.name).join("images");
        Ok((node.name.clone(), Store::open(&state, &cache_dir(), node_os(node.os))?))
    };
    chosen.iter().map(open).collect()
}

fn load(archive: &Path, name: Option<String>, at: &ImageNodes) -> Result<()> {
    let options = LoadOptions { name, ..LoadOptions::default() };
    let mut fits = false;
    let mut refusal = None;
    for (node, store) in stores(at)? {
        match store.load(archive, &options) {
            Ok(images) => {
                fits = true;
                for image in images {
                    println!("{node}: loaded {} ({})", names(&image), image.platform);
                }
            }
            // An archive for Linux nodes fits no Windows node; only one that fits none is a mistake.
            Err(error @ container_sim::images::ImageError::NoMatch(_)) => refusal = Some((node, error)),
            Err(error) => return Err(error).with_context(|| format!("loading {} on node {node} failed", archive.display())),
        }
    }
    match refusal {
        Some((node, error)) if !fits => Err(error).with_context(|| format!("loading {} on node {node} failed", archive.display())),
        _ => Ok(()),
    }
}

fn names(image: &Image) -> String {
    if image.tags.is_empty() { image.id.clone() } else { image.tags.join(", ") }
}

fn list(output: Option<Output>, at: &ImageNodes) -> Result<()> {
    let mut rows = Vec::new();
    for (node, store) in stores(at)? {
        for image in store.list()? {
            rows.push((node.clone(), image));
        }
    }
    if output == Some(Output::Json) {
        let rows: Vec<_> = rows.iter().map(|(node, image)| json!({"node": node, "image": image})).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let width = |f: fn(&(String, Image)) -> usize, least: usize| rows.iter().map(f).max().unwrap_or(0).max(least);
    let (node_width, name_width) = (width(|row| row.0.len(), 4), width(|row| names(&row.1).len(), 5));
    println!("{:node_width$}  {:name_width$}  {:>9}  PLATFORM", "NODE", "IMAGE", "SIZE");
    for (node, image) in &rows {
        let note = if image.stand_in_name().is_some() { "  (stand-in)" } else { "" };
        println!("{node:node_width$}  {:name_width$}  {:>5} KiB  {}{note}", names(image), image.size >> 10, image.platform);
    }
    Ok(())
}

fn remove(image: &str, at: &ImageNodes) -> Result<()> {
    let mut removed = false;
    for (node, store) in stores(at)? {
        if store.remove(image)? {
            removed = true;
            println!("{node}: removed {image}");
        }
    }
    if removed { Ok(()) } else { Err(anyhow!("no node has image {image}: `mullion image list` shows what there is")) }
}
