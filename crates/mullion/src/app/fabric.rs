//! Wiring of `mullion fabric`: routes of the pod network as text, and the routes of the router between the nodes.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use fabric::mode::{self, HostState, Inputs};
use fabric::render::{Format, Line, render};
use fabric::{Bgp, NodeRow, Role, Settings, Vxlan};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::cli::fabric_cli::{FabricArgs, FabricCommand, NextHop, RouterArgs, RoutesArgs, Target};
use crate::exit::Failure;

/// The router's name in its own settings: it is no Node.
const ROUTER: &str = "";

/// Runs the subcommand.
pub fn main(args: FabricArgs) -> Result<(), Failure> {
    match args.command {
        FabricCommand::Routes(args) => crate::agent_runtime()?.block_on(routes(&args)).map_err(Failure::from),
        FabricCommand::Router(args) => {
            crate::init_logs();
            crate::agent_runtime()?.block_on(router(args)).map_err(Failure::from)
        }
    }
}

type Nodes = BTreeMap<String, NodeRow>;

async fn routes(args: &RoutesArgs) -> Result<()> {
    let nodes = match (&args.file, &args.kubeconfig) {
        (Some(file), _) => nodes_of(&read(file)?)?,
        (None, Some(kubeconfig)) => list(&client(kubeconfig).await?).await?,
        (None, None) => bail!("the nodes are not known: give --kubeconfig or --file"),
    };
    let (text, problems) = print(args, &nodes)?;
    print!("{text}");
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    if problems.is_empty() { Ok(()) } else { Err(anyhow!("{} pod CIDRs have no route", problems.len())) }
}

/// The text, and why pod CIDRs are left out.
fn print(args: &RoutesArgs, nodes: &Nodes) -> Result<(String, Vec<String>)> {
    let name = args.node.as_deref().unwrap_or(ROUTER);
    let windows = match (&args.node, nodes.get(name)) {
        (Some(name), None) => bail!("there is no node {name}: name one of {}", nodes.keys().cloned().collect::<Vec<_>>().join(", ")),
        (_, row) => row.is_some_and(|row| row.windows),
    };
    let format = args.output.unwrap_or(if windows { Format::Windows } else { Format::Iproute });
    let anywhere = ["0.0.0.0/0", "::/0"].map(|net| net.parse()).into_iter().collect::<Result<Vec<_>, _>>()?;
    let clusters = if args.cluster_cidr.is_empty() { &anywhere } else { &args.cluster_cidr };
    let (peers, problems) = mode::peers(name, nodes, clusters);
    let line = if args.next_hop == NextHop::PodGateway && format == Format::Windows { Line::to_pod_gateway } else { Line::to_node };
    let text = render(format, &peers.iter().map(line).collect::<Vec<_>>(), args.interface.as_deref());
    Ok((text, problems.into_iter().map(|problem| problem.text).collect()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("reading standard input failed")?;
        return Ok(bytes);
    }
    std::fs::read(file).with_context(|| format!("reading {} failed", file.display()))
}

/// The rows of a list of Nodes, or of one Node.
fn nodes_of(json: &[u8]) -> Result<Nodes> {
    let way_out = "the nodes are no JSON of Kubernetes: write them with kubectl get nodes -o json";
    let document: Value = serde_json::from_slice(json).context(way_out)?;
    let items = match document.get("items") {
        Some(Value::Array(items)) => items.clone(),
        _ => vec![document],
    };
    let rows = items.into_iter().map(|item| {
        let node: Node = serde_json::from_value(item).context(way_out)?;
        let name = node.metadata.name.clone().context(way_out)?;
        Ok((name, NodeRow::of(&node).unwrap_or_default()))
    });
    rows.collect()
}

async fn client(kubeconfig: &str) -> Result<kube::Client> {
    cluster::install_crypto_provider();
    Ok(cluster::client_from_kubeconfig(kubeconfig.as_ref()).await?)
}

async fn list(client: &kube::Client) -> Result<Nodes> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.context("listing the nodes failed")?;
    Ok(nodes.iter().filter_map(|node| Some((node.metadata.name.clone()?, NodeRow::of(node)?))).collect())
}

/// The table of the router that the arguments name.
fn table(args: &RouterArgs) -> Result<Arc<dyn host::Routes>> {
    match args.target {
        Target::Kernel => super::node::routes(),
        #[cfg(unix)]
        Target::Bird => Ok(Arc::new(fabric::router::bird::BirdRoutes::open(&args.bird_socket, &args.bird_file)?)),
        #[cfg(unix)]
        Target::Frr => Ok(Arc::new(fabric::router::frr::FrrRoutes::open(&args.frr_sockets)?)),
        #[cfg(not(unix))]
        Target::Bird | Target::Frr => bail!("--target {:?} needs a Unix: run this command on the router", args.target),
    }
}

async fn router(args: RouterArgs) -> Result<()> {
    let table = table(&args)?;
    let client = client(&args.kubeconfig).await?;
    let vxlan = Vxlan::default();
    let settings = Settings {
        mode: args.network,
        vxlan,
        bgp: Bgp::default(),
        node_name: ROUTER.to_owned(),
        cluster_cidrs: args.cluster_cidr,
        role: Role::Router,
    };
    if args.dry_run {
        let (nodes, observed) = (list(&client).await?, table.list()?);
        let state = HostState::default();
        let desired = mode::desired(&Inputs { settings: &settings, nodes: &nodes, routes: &observed, state: &state });
        let mut plan = fabric::apply::routes::plan(&desired.routes, &observed, None);
        plan.problems.splice(0..0, desired.problems);
        print!("{plan}");
        return Ok(());
    }
    let config = fabric::Config {
        client,
        api: cluster::ApiServer::default(),
        settings,
        routes: table,
        hcn: None,
        full_pass: super::node::FULL_PASS,
        changes: None,
        status: None,
        facts: None,
    };
    fabric::run(config, crate::end_requested()).await;
    Ok(())
}

#[cfg(test)]
mod tests;
