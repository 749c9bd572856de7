//! `mullion image`: the images of a cluster's nodes. Works on the nodes' stores directly, whether the cluster runs or not; a note says
//! when it is stopped.

mod args;
mod docker;

use std::path::Path;

use anyhow::{Context as _, anyhow};
use images::platform::Platform;
use images::registry::{FetchOptions, Progress, Registries, RegistryError};
use images::{Image, ImageError, LoadOptions, PullOptions, Store};
use indicatif::{ProgressBar, ProgressStyle};
use kube_rules::Reference;
use lab::dir::Env;
use lab::error::LabError;
use lab::supervisor;
use node_config::node_spec::NodeSpec;
use serde_json::json;

pub use args::{ImageArgs, RegistryArgs};
use args::{ImageCommand, ImageNodes, Take};

use super::cli::Output;
use super::cluster_file::{Cluster, dirs};
use crate::exit::{Code, Failure};

/// Runs the subcommand, node by node.
pub fn main(args: ImageArgs) -> Result<(), Failure> {
    match args.command {
        ImageCommand::Load { archive, name, take, at } => changed(&at, load(&archive, name, &take, &at)),
        ImageCommand::Pull { image, registries, no_stand_ins, take, at } => changed(&at, pull(&image, &registries.into(), !no_stand_ins, &take, &at)),
        ImageCommand::List { output, at } => list(output.output, &at),
        ImageCommand::Tag { image, new, at } => {
            changed(&at, each(&image, &at, |store| Ok(store.tag(&image, &new)?.map(|_| format!("{image} is {new} too")))))
        }
        ImageCommand::Rm { image, at } => {
            let remove = |store: &Store| {
                let removed = store.untag(&image)? || store.remove(&image)?;
                Ok(removed.then(|| format!("removed {image}")))
            };
            changed(&at, each(&image, &at, remove))
        }
    }
}

/// Gives what root wrote to the users of the cluster's processes.
fn changed(at: &ImageNodes, result: Result<(), Failure>) -> Result<(), Failure> {
    let dirs = dirs(&at.dir)?;
    let nodes = Cluster::load(&dirs)?.map(|cluster| cluster.nodes).unwrap_or_default();
    let given = nodes.iter().map(|node| dirs.host(&node.name).join("images")).chain([cache_dir()]).try_for_each(|path| lab::owner::give(&path));
    result.and(Ok(given?))
}

/// The cache's directory for unpacked layers.
pub const CACHE: &str = "images";

/// Where the unpacked layers of all clusters are.
pub fn cache_dir() -> std::path::PathBuf {
    Env::of_process().cache_dir().join(CACHE)
}

/// Removes the layers that no node of any cluster uses any more.
pub fn collect_garbage() {
    if let Err(error) = Store::collect_garbage_of(&cache_dir()) {
        eprintln!("layers of images that are no longer used stay in {}: {error}", cache_dir().display());
    }
}

fn stores(at: &ImageNodes) -> Result<Vec<(String, Store)>, Failure> {
    let dirs = dirs(&at.dir)?;
    let Some(cluster) = Cluster::load(&dirs)? else {
        let error = anyhow!("{} holds no cluster: make one with `{}`", dirs.dir.display(), dirs.command("up"));
        return Err(Failure::new(Code::NotRunning, error));
    };
    if matches!(supervisor::status(&dirs), Err(LabError::NotRunning(_))) {
        eprintln!(
            "the cluster of {} is stopped: its nodes' images are there, but nothing runs; start it with `{}`",
            dirs.dir.display(),
            dirs.command("up")
        );
    }
    let chosen: Vec<_> = cluster.nodes.iter().filter(|node| at.node.as_ref().is_none_or(|name| *name == node.name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
        let error = anyhow!("there is no node {}: use one of {}", at.node.as_deref().unwrap_or_default(), names.join(", "));
        return Err(Failure::new(Code::Usage, error));
    }
    let open = |node: &&NodeSpec| {
        let state = dirs.host(&node.name).join("images");
        Ok((node.name.clone(), Store::open(&state, &cache_dir(), node.os).map_err(failure)?))
    };
    chosen.iter().map(open).collect()
}

/// What failed, with its exit code.
fn failure(error: ImageError) -> Failure {
    Failure::new(code_of(&error), error)
}

/// What is wrong with an archive, named once.
fn of_file(error: ImageError, archive: &Path) -> Failure {
    let is_named = matches!(error, ImageError::NotAnImage { .. } | ImageError::Damaged { .. });
    let Failure { code, error } = failure(error);
    let error = if is_named { error } else { error.context(format!("cannot load {archive:?}")) };
    Failure { code, error }
}

fn code_of(error: &ImageError) -> Code {
    match error {
        ImageError::Reference(_) => Code::Usage,
        ImageError::NotAnImage { .. } | ImageError::Tar(_) | ImageError::Layer { .. } | ImageError::Digest { .. } | ImageError::Damaged { .. } => {
            Code::Archive
        }
        ImageError::NoMatch(_) => Code::NoMatch,
        ImageError::Pull { .. } => Code::Registry,
        _ => Code::Failure,
    }
}

fn on_node(failure: Failure, what: &str, node: &str) -> Failure {
    Failure { error: failure.error.context(format!("{what} on node {node} failed")), ..failure }
}

/// What came of it on each node. An image for Linux fits no Windows node; only one that fits none is a mistake.
#[derive(Default)]
struct Taken {
    images: Vec<(String, Image)>,
    refused: Option<(String, ImageError)>,
}

impl Taken {
    fn add(&mut self, node: &str, what: &str, result: Result<Vec<Image>, ImageError>) -> Result<(), Failure> {
        match result {
            Ok(images) => self.images.extend(images.into_iter().map(|image| (node.to_owned(), image))),
            Err(error @ ImageError::NoMatch(_)) => self.refused = Some((node.to_owned(), error)),
            Err(error) => return Err(on_node(failure(error), what, node)),
        }
        Ok(())
    }

    fn report(self, what: &str, done: &str, output: Option<Output>) -> Result<(), Failure> {
        if let (true, Some((node, error))) = (self.images.is_empty(), self.refused) {
            return Err(on_node(failure(error), what, &node));
        }
        if output == Some(Output::Json) {
            return print_json(&self.images);
        }
        for (node, image) in self.images {
            let note = if image.stand_in_name().is_some() { ", a stand-in" } else { "" };
            println!("{node}: {done} {} ({}{note})", names(&image), image.platform);
        }
        Ok(())
    }
}

fn load(archive: &Path, name: Option<String>, take: &Take, at: &ImageNodes) -> Result<(), Failure> {
    let options = LoadOptions { name, limits: take.limits(), hypervisor: take.hyperv };
    let what = format!("loading {}", archive.display());
    let mut taken = Taken::default();
    for (node, store) in stores(at)? {
        let bar = bar(&node);
        let loaded = store.load_with(archive, &options, &|progress| show(&bar, progress));
        bar.finish_and_clear();
        // What is wrong with the file is no node's fault.
        let loaded = match loaded {
            Err(error) if code_of(&error) == Code::Archive => return Err(of_file(error, archive)),
            other => other,
        };
        taken.add(&node, &what, loaded)?;
    }
    taken.report(&what, "loaded", take.output.output)
}

fn pull(name: &str, registries: &Registries, stand_ins: bool, take: &Take, at: &ImageNodes) -> Result<(), Failure> {
    let reference: Reference = name.parse().map_err(|error| failure(ImageError::Reference(error)))?;
    let known = docker::credentials(reference.domain())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the event loop failed")?;
    let what = format!("pulling {name}");
    let mut taken = Taken::default();
    for (node, store) in stores(at)? {
        let bar = bar(&node);
        let os = store.os();
        let fit = |platform: &Platform| if take.hyperv { platform.fit_hypervisor(os) } else { platform.fit(os) };
        let progress = |progress| show(&bar, progress);
        let fetch = FetchOptions { registries, credentials: &known.credentials, fit: &fit, limits: take.limits(), progress: &progress };
        let pulled = runtime.block_on(store.pull(name, &PullOptions { stand_ins, fetch }));
        bar.finish_and_clear();
        let refused = matches!(&pulled, Err(ImageError::Pull { source: RegistryError::Denied(_) | RegistryError::Token { .. }, .. }));
        let added = taken.add(&node, &what, pulled.map(|image| vec![image]));
        added.map_err(|failure| match known.helper.as_ref().filter(|_| refused) {
            Some(helper) => {
                let hint = format!("credentials are with docker-credential-{helper}, which is not run: write them to `auths` of another config.json and set DOCKER_CONFIG");
                Failure { error: failure.error.context(hint), ..failure }
            }
            None => failure,
        })?;
    }
    taken.report(&what, "pulled", take.output.output)
}

/// How far a node is; not drawn where nobody looks.
fn bar(node: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar.with_prefix(node.to_owned())
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

fn names(image: &Image) -> String {
    if image.tags.is_empty() { image.id.clone() } else { image.tags.join(", ") }
}

fn print_json(rows: &[(String, Image)]) -> Result<(), Failure> {
    let rows: Vec<_> = rows.iter().map(|(node, image)| json!({"node": node, "image": image})).collect();
    println!("{}", serde_json::to_string_pretty(&rows)?);
    Ok(())
}

fn list(output: Option<Output>, at: &ImageNodes) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for (node, store) in stores(at)? {
        for image in store.list().map_err(failure)? {
            rows.push((node.clone(), image));
        }
    }
    if output == Some(Output::Json) {
        return print_json(&rows);
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

/// Does something to an image on each node that has it; an error if none has.
fn each(image: &str, at: &ImageNodes, change: impl Fn(&Store) -> Result<Option<String>, ImageError>) -> Result<(), Failure> {
    let mut done = false;
    for (node, store) in stores(at)? {
        if let Some(text) = change(&store).map_err(failure)? {
            done = true;
            println!("{node}: {text}");
        }
    }
    if done {
        return Ok(());
    }
    Err(Failure::new(Code::NoImage, anyhow!("no node has image {image}: `{}` shows what there is", dirs(&at.dir)?.command("image list"))))
}
