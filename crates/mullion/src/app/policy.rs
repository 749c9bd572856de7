//! Wiring of `mullion policy`: the deciding rule of a connection, the rules of a node, and the policies of one node alone.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use cluster::{ApiServer, Key};
use hcn::HcnClient;
use hcn::watch::{Timing, Watch};
use host::NodeOs;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use network_policy::rows::{NodeRow, PodRow, namespace_row};
use network_policy::{Backend, Decision, Packet, Policy, PolicyId, Protocol, World};
use serde::de::DeserializeOwned;
use serde_json::json;
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use crate::cli::policy_cli::{ExplainArgs, PolicyArgs, PolicyCommand, RulesArgs, RunArgs};
use crate::exit::Failure;

/// Runs the subcommand.
pub fn main(args: PolicyArgs) -> Result<(), Failure> {
    let runtime = crate::agent_runtime()?;
    match args.command {
        PolicyCommand::Explain(args) => runtime.block_on(explain(&args)).map_err(Failure::from),
        PolicyCommand::Rules(args) => runtime.block_on(rules(&args)).map_err(Failure::from),
        PolicyCommand::Run(args) => {
            crate::init_logs();
            runtime.block_on(run(args)).map_err(Failure::from)
        }
    }
}

async fn client(kubeconfig: &str) -> Result<Client> {
    cluster::install_crypto_provider();
    Ok(cluster::client_from_kubeconfig(kubeconfig.as_ref()).await?)
}

/// The same configuration, whose status is served; policies hold also where the address cannot be listened on.
pub async fn served(config: network_policy::Config, at: SocketAddr) -> network_policy::Config {
    let (status, seen) = watch::channel(network_policy::Status::default());
    if let Err(error) = network_policy::status_server::serve(at, seen, config.metrics.clone()).await {
        tracing::warn!(error = %error.as_report(), "the status of network policies is not served");
    }
    network_policy::Config { status: Some(status), ..config }
}

/// nftables in this process's network namespace.
#[cfg(target_os = "linux")]
pub fn nftables() -> Result<Backend> {
    Ok(Backend::Nftables(network_policy::nftables::Nftables::new()))
}

#[cfg(windows)]
pub fn nftables() -> Result<Backend> {
    bail!("--os linux needs a Linux machine")
}

async fn run(args: RunArgs) -> Result<()> {
    let client = client(&args.kubeconfig).await?;
    let backend = match args.os.unwrap_or_else(node_config::node::default_os) {
        NodeOs::Linux => nftables()?,
        NodeOs::Windows { .. } => {
            let hcn = args.hcn.as_deref().map_or_else(HcnClient::from_env, HcnClient::connect)?;
            let changes = Some(Watch::start(hcn.clone(), Timing::default()).listen());
            Backend::Hns { hns: network_policy::hns::Hns::new(hcn), changes }
        }
    };
    let config = network_policy::Config {
        client,
        api: ApiServer::default(),
        node_name: args.hostname_override,
        backend,
        full_pass: super::node::FULL_PASS,
        status: None,
        metrics: network_policy::metrics::Metrics::default(),
        gate: None,
    };
    network_policy::run(served(config, args.metrics_bind_address).await, crate::end_requested()).await;
    Ok(())
}

async fn list<K>(api: Api<K>, what: &str) -> Result<Vec<(Key, K)>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let all = api.list(&ListParams::default()).await.with_context(|| format!("cannot list {what}: check the rights of the kubeconfig's user"))?;
    Ok(all.items.into_iter().map(|object| (Key::new(object.namespace().unwrap_or_default(), object.name_any()), object)).collect())
}

/// The cluster as it is now, with the pods of one node as endpoints, or with all.
async fn read(client: &Client, node: Option<&str>) -> Result<World> {
    let mut world = World::new(node);
    for (key, namespace) in list(Api::<Namespace>::all(client.clone()), "namespaces").await? {
        world.set_namespace(&key.name, namespace_row(&namespace));
    }
    for (key, node) in list(Api::<Node>::all(client.clone()), "nodes").await? {
        world.set_node(&key.name, NodeRow::of(&node));
    }
    for (key, policy) in list(Api::<NetworkPolicy>::all(client.clone()), "NetworkPolicies").await? {
        world.set_policy(&PolicyId::Namespaced(key), Some(Policy::namespaced(&policy)));
    }
    if let Some(resource) = network_policy::find_cluster_policies(client).await? {
        for (key, policy) in list(Api::<DynamicObject>::all_with(client.clone(), &resource), "ClusterNetworkPolicies").await? {
            match Policy::cluster(policy.data.get("spec").unwrap_or(&json!(null))) {
                Ok(policy) => drop(world.set_policy(&PolicyId::Cluster(key.name.as_str().into()), Some(policy))),
                Err(error) => eprintln!("ClusterNetworkPolicy {} has no effect: {}", key.name, error.as_report()),
            }
        }
    }
    for (key, pod) in list(Api::<Pod>::all(client.clone()), "pods").await? {
        world.set_pod(&key, PodRow::of(&pod));
    }
    Ok(world)
}

/// The addresses that a text names.
fn addresses(world: &World, text: &str) -> Result<Vec<IpAddr>> {
    if let Ok(ip) = text.parse() {
        return Ok(vec![ip]);
    }
    let Some((ns, name)) = text.split_once('/') else { bail!("{text:?} is neither an address nor NAMESPACE/POD") };
    match world.pod(&Key::new(ns, name)) {
        Some(row) if !row.ips.is_empty() => Ok(row.ips.to_vec()),
        Some(_) => bail!("pod {text} has no address yet"),
        None => bail!("there is no running pod {text} with a network of its own: name one as kubectl get pods -A lists it, or an address"),
    }
}

/// Protocol and port of the destination.
fn port(world: &World, args: &ExplainArgs) -> Result<Option<(Protocol, u16)>> {
    let protocol =
        Protocol::read(Some(&args.protocol.to_uppercase())).with_context(|| format!("{:?} is none of TCP, UDP and SCTP", args.protocol))?;
    let Some(text) = &args.port else { return Ok(None) };
    if let Ok(number) = text.parse() {
        return Ok(Some((protocol, number)));
    }
    let row = args.to.split_once('/').and_then(|(ns, name)| world.pod(&Key::new(ns, name)));
    let named = row.and_then(|row| row.ports.iter().find(|port| *port.name == **text && port.protocol == protocol));
    let named = named.with_context(|| format!("no container of {} has a {protocol} port {text:?}: give a number", args.to))?;
    Ok(Some((protocol, named.port)))
}

async fn explain(args: &ExplainArgs) -> Result<()> {
    let world = read(&client(&args.kubeconfig).await?, None).await?;
    let port = port(&world, args)?;
    let (sources, destinations) = (addresses(&world, &args.from)?, addresses(&world, &args.to)?);
    let pair = sources.iter().find_map(|source| Some((*source, *destinations.iter().find(|ip| ip.is_ipv4() == source.is_ipv4())?)));
    let (source, destination) = pair.with_context(|| format!("{} and {} have no addresses of one IP version", args.from, args.to))?;
    let packet = Packet { source, destination, port };
    let decision = world.decide(&packet);
    print!("{}", if args.output.is_some() { document(&packet, &decision) } else { text(&decision) });
    Ok(())
}

fn text(decision: &Decision) -> String {
    let word = if decision.is_allowed() { "allowed" } else { "denied" };
    format!("{word} by {}\n{}\n{}\n", decision.deciding().origin, decision.egress, decision.ingress)
}

fn document(packet: &Packet, decision: &Decision) -> String {
    let verdict = |verdict: &network_policy::Verdict| json!({"pod": verdict.pod.as_ref().map(ToString::to_string), "action": verdict.action.to_string(), "rule": verdict.origin.to_string()});
    let document = json!({
        "allowed": decision.is_allowed(),
        "rule": decision.deciding().origin.to_string(),
        "source": packet.source,
        "destination": packet.destination,
        "protocol": packet.port.map(|(protocol, _)| protocol.to_string()),
        "port": packet.port.map(|(_, port)| port),
        "egress": verdict(&decision.egress),
        "ingress": verdict(&decision.ingress),
    });
    format!("{document:#}\n")
}

async fn rules(args: &RulesArgs) -> Result<()> {
    let world = read(&client(&args.kubeconfig).await?, Some(&args.node)).await?;
    for (key, endpoint) in world.endpoints() {
        let ips: Vec<String> = endpoint.ips.iter().map(ToString::to_string).collect();
        println!("pod {key} {}", ips.join(" "));
        endpoint.all().for_each(|profile| profile.to_string().lines().for_each(|line| println!("  {line}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use network_policy::rows::{Labels, NamedPort};

    use super::*;

    fn pod(ip: &str) -> PodRow {
        let ports = [NamedPort { name: "web".into(), protocol: Protocol::Tcp, port: 8080 }];
        PodRow { labels: Labels::new(&[("app", "web")]), ips: [ip.parse().unwrap()].into(), ports: ports.into(), node: "lin01".into() }
    }

    fn args(to: &str, port: Option<&str>) -> ExplainArgs {
        let port = port.map(str::to_owned);
        ExplainArgs { kubeconfig: "k".into(), from: "10.9.0.1".into(), to: to.into(), port, protocol: "tcp".into(), output: None }
    }

    #[test]
    fn explanations_name_the_deciding_rule() {
        let mut world = World::new(None);
        world.set_pod(&Key::new("default", "web"), Some(pod("10.1.0.2")));
        let policy = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"podSelector": {},
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.9.0.0/24"}}], "ports": [{"port": 8080}]}]}});
        let policy: NetworkPolicy = serde_json::from_value(policy).unwrap();
        world.set_policy(&PolicyId::Namespaced(Key::new("default", "web")), Some(Policy::namespaced(&policy)));
        let decide = |name: &str| {
            let port = port(&world, &args("default/web", Some(name))).unwrap();
            let packet = Packet { source: "10.9.0.1".parse().unwrap(), destination: addresses(&world, "default/web").unwrap()[0], port };
            (packet, world.decide(&packet))
        };
        let (packet, decision) = decide("web");
        let expected = "allowed by NetworkPolicy default/web ingress[0]\negress of outside the cluster's pods: allow: no policy denies it\n\
                        ingress of pod default/web: allow: NetworkPolicy default/web ingress[0]\n";
        assert_eq!(text(&decision), expected);
        let document: serde_json::Value = serde_json::from_str(&document(&packet, &decision)).unwrap();
        assert_eq!((&document["allowed"], &document["port"]), (&json!(true), &json!(8080)));
        let (_, decision) = decide("81");
        assert!(text(&decision).starts_with("denied by isolated by NetworkPolicy default/web; no rule allows it\n"), "{}", text(&decision));
        for (to, wrong) in [("default/none", "there is no running pod"), ("web", "neither an address nor")] {
            assert!(addresses(&world, to).unwrap_err().to_string().contains(wrong), "{to}");
        }
        assert!(port(&world, &args("default/web", Some("dns"))).unwrap_err().to_string().contains("no container of default/web has a TCP port"));
    }
}
