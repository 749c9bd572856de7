//! A service with the fault `hang` behind its socket: one hung call stalls nobody, clients end their calls, places come back.
#![cfg(unix)]

use std::time::Duration;

use hcn::client::Limits;
use hcn::document::*;
use hcn::remote::RemoteHcn;
use hcn::{Guid, HcnClient, HcnError, HnsVersion};
use hns_sim::admin::AdminClient;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use hns_sim::{Config, Simulator, server};
use test_lab::{LIMIT, until_async};

/// A deadline that a test waits for.
const SHORT: Duration = Duration::from_secs(2);

fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
}

/// A service with the network of id 1, a client of it with so many places, and its admin socket.
fn service(places: usize) -> (tempfile::TempDir, HcnClient, AdminClient) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = Config {
        node: "win01".into(),
        netns_dir: path.join("ns"),
        state_dir: path.join("hns"),
        socket: path.join("win01.hcn"),
        admin_socket: path.join("win01.hcn-admin"),
        hns_version: HnsVersion::new(15, 5),
        uplink: "eth0".into(),
        switches: Vec::new(),
        options: hns_sim::Options::default(),
    };
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(config.hns_version), None).unwrap();
    server::serve(&simulator, &config).unwrap();
    let port = RemoteHcn::connect(&format!("unix:{}", config.socket.display())).unwrap();
    let client = HcnClient::with_limits(std::sync::Arc::new(port), Limits { places, deadline: LIMIT });
    let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), [192, 168, 1, 1].into());
    client.blocking().create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).unwrap();
    (directory, client, AdminClient::new(config.admin_socket))
}

#[tokio::test]
async fn hung_call_delays_no_other_call_of_its_connection() {
    let (_directory, client, admin) = service(4);
    admin.add_fault(&"ep-delete-hang".parse().unwrap()).unwrap();
    let hung = tokio::spawn({
        let client = client.clone();
        async move { client.delete_endpoint(&id(9)).await }
    });
    until_async("the delete hangs", async || admin.faults().unwrap()[0].hits == 1).await;
    for number in 10..20 {
        client.create_namespace(id(number), &HostComputeNamespace::default()).await.unwrap();
    }
    assert_eq!(client.namespaces().await.unwrap().len(), 10);
    assert!(!hung.is_finished());
    let snapshot = client.snapshot();
    assert_eq!((snapshot.running, snapshot.hung.len()), (1, 0), "its deadline is far");
    admin.clear_faults().unwrap();
    assert!(hung.await.unwrap().is_err(), "the fault ends its calls with an error");
}

#[tokio::test]
async fn client_whose_every_place_hangs_is_refused_until_the_service_lets_go() {
    let (_directory, client, admin) = service(2);
    admin.add_fault(&"ep-delete-hang".parse().unwrap()).unwrap();
    let hasty = client.clone().with_deadline(SHORT);
    for number in [8, 9] {
        let error = hasty.delete_endpoint(&id(number)).await.unwrap_err();
        assert!(matches!(&error, HcnError::Deadline { .. }) && error.to_string().contains("deleting endpoint"), "{error}");
    }
    let error = client.networks().await.unwrap_err();
    assert!(error.is_service_down() && error.to_string().contains("HcnDeleteEndpoint hangs"), "{error}");
    let other = HcnClient::with_limits(client.blocking().port().clone(), Limits::default());
    assert!(other.networks().await.unwrap_err().to_string().contains("Restart-Service"), "the limit is the process's");
    admin.clear_faults().unwrap();
    until_async("the places come back", async || client.snapshot().running == 0).await;
    assert_eq!(client.networks().await.unwrap().len(), 1);
    let snapshot = client.snapshot();
    assert_eq!((snapshot.timed_out, snapshot.hung.len(), snapshot.total().hung), (2, 0, 2));
}
