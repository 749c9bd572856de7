//! The cluster's DNS, fed by the controllers.

use std::net::SocketAddr;

use cluster::ApiServer;
use hickory_proto::{
    op::{Message, Query},
    rr::{Name, RecordType},
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Client,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use test_lab::until_async;
use tokio::net::{TcpListener, UdpSocket};

use crate::common::{Cluster, create, deployment, object};

async fn serve(cluster: &Cluster) -> SocketAddr {
    serve_as(cluster.admin(), &ApiServer::default()).await
}

/// Starts the DNS server with this client, on these watches.
pub async fn serve_as(client: Client, api: &ApiServer) -> SocketAddr {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let udp = UdpSocket::bind(address).await.unwrap();
    let config = ::dns::Config { api: api.clone(), udp: vec![udp], tcp: vec![tcp], domain: "cluster.local".into(), upstream: None };
    tokio::spawn(async move { ::dns::run(client, config).await.unwrap() });
    address
}

/// The answers to a question, sorted.
async fn ask(server: SocketAddr, name: &str, kind: RecordType) -> Vec<String> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut request = Message::query();
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    socket.send_to(&request.to_vec().unwrap(), server).await.unwrap();
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).await.unwrap();
    let mut answers: Vec<String> = Message::from_vec(&buffer[..length]).unwrap().answers.iter().map(|record| record.data.to_string()).collect();
    answers.sort();
    answers
}

#[tokio::test]
async fn services_have_names_as_long_as_they_live() {
    let mut cluster = Cluster::start().await;
    let server = serve(&cluster).await;
    cluster.add_node("win01", "windows").await;
    let port = json!([{"name": "http", "port": 80, "targetPort": "http"}]);
    let services = cluster.api::<Service>();
    let plain = create(&services, &object(json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": port}}))).await;
    let address = plain.spec.unwrap().cluster_ip.unwrap();
    let web = "web.default.svc.cluster.local.";
    let resolves = async |name: &str, expected: &[String]| ask(server, name, RecordType::A).await == expected;
    until_async("the Service's name", async || resolves(web, std::slice::from_ref(&address)).await).await;
    let headless = json!({"metadata": {"name": "pods"}, "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": port}});
    create(&services, &object(headless)).await;
    create(&cluster.api(), &deployment("web", 2, "microsoft/iis")).await;
    let mut addresses = until_async("two pods have addresses", async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        let addresses: Vec<String> = pods.into_iter().filter_map(|pod| pod.status?.pod_ip).collect();
        (addresses.len() == 2).then_some(addresses)
    })
    .await;
    addresses.sort();
    until_async("the headless Service's name", async || resolves("pods.default.svc.cluster.local.", &addresses).await).await;
    let ports = ask(server, "_http._tcp.pods.default.svc.cluster.local.", RecordType::SRV).await;
    let expected: Vec<String> = addresses.iter().map(|ip| format!("0 50 80 {}.pods.default.svc.cluster.local.", ip.replace('.', "-"))).collect();
    assert_eq!(ports, expected);
    services.delete("web", &DeleteParams::default()).await.unwrap();
    until_async("the name is gone with its Service", async || resolves(web, &[]).await).await;
    cluster.stop().await;
}
