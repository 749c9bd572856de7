use std::sync::RwLock;

use hickory_proto::{
    op::{Query, ResponseCode},
    rr::{Name, RecordType},
};

use test_lab::LIMIT;

use super::*;
use crate::{
    names::Names,
    rows::{ServiceRow, Target},
};

fn question(name: &str) -> Vec<u8> {
    let mut request = Message::query();
    request.metadata.id = 7;
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    request.to_vec().unwrap()
}

async fn serve(domain: &str, upstream: Option<SocketAddr>) -> SocketAddr {
    let mut names = Names::new(domain).unwrap();
    names.set_namespace("shop", true);
    let outside = ServiceRow { target: Target::Alias("1-2-3-4.shop.pod.other.test".into()), ports: vec![] };
    names.set_service(&cluster::Key::new("shop", "old"), Some(&outside), &[]);
    let patience = Patience { client: LIMIT, upstream: LIMIT };
    let resolver = Arc::new(Resolver { patience, ..Resolver::new(Arc::new(RwLock::new(names)), upstream) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).await.unwrap();
    tokio::spawn(udp(socket, resolver.clone()));
    tokio::spawn(tcp(listener, resolver));
    address
}

async fn over_udp(server: SocketAddr, name: &str) -> Message {
    Message::from_vec(&forward::udp(server, &question(name), LIMIT).await.unwrap()).unwrap()
}

#[tokio::test]
async fn both_transports_answer() {
    let server = serve("cluster.local", None).await;
    let reply = over_udp(server, "10-1-2-3.shop.pod.cluster.local.").await;
    assert_eq!(reply.answers[0].data.to_string(), "10.1.2.3");
    let mut stream = TcpStream::connect(server).await.unwrap();
    for name in ["10-1-2-3.shop.pod.cluster.local.", "10-1-2-4.shop.pod.cluster.local."] {
        write(&mut stream, &question(name)).await.unwrap();
        let reply = Message::from_vec(&read(&mut stream).await.unwrap().unwrap()).unwrap();
        assert_eq!(reply.answers.len(), 1, "two questions on one connection");
    }
}

#[tokio::test]
async fn foreign_names_are_refused_or_passed_on() {
    let alone = serve("cluster.local", None).await;
    assert_eq!(over_udp(alone, "1-2-3-4.shop.pod.other.test.").await.metadata.response_code, ResponseCode::Refused);
    let other = serve("other.test", None).await;
    let linked = serve("cluster.local", Some(other)).await;
    let reply = over_udp(linked, "1-2-3-4.shop.pod.other.test.").await;
    assert_eq!(reply.answers[0].data.to_string(), "1.2.3.4");
    let over_tcp = forward::tcp(linked, &question("1-2-3-4.shop.pod.other.test."), LIMIT).await.unwrap();
    assert_eq!(Message::from_vec(&over_tcp).unwrap().answers.len(), 1);
}

#[tokio::test]
async fn an_alias_is_followed_out_of_the_cluster() {
    let alone = serve("cluster.local", None).await;
    let reply = over_udp(alone, "old.shop.svc.cluster.local.").await;
    assert_eq!((reply.answers.len(), reply.metadata.response_code), (1, ResponseCode::NoError), "nobody to ask");
    let other = serve("other.test", None).await;
    let linked = serve("cluster.local", Some(other)).await;
    for reply in [
        over_udp(linked, "old.shop.svc.cluster.local.").await,
        Message::from_vec(&forward::tcp(linked, &question("old.shop.svc.cluster.local."), LIMIT).await.unwrap()).unwrap(),
    ] {
        let records: Vec<String> = reply.answers.iter().map(|record| format!("{} {}", record.name, record.data)).collect();
        assert_eq!(records, ["old.shop.svc.cluster.local. 1-2-3-4.shop.pod.other.test.", "1-2-3-4.shop.pod.other.test. 1.2.3.4"]);
        assert_eq!((reply.metadata.id, reply.queries[0].name.to_string()), (7, "old.shop.svc.cluster.local.".to_owned()));
    }
}

#[tokio::test]
async fn missing_upstream_is_answered_with_servfail() {
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = serve("cluster.local", Some(gone)).await;
    assert_eq!(over_udp(server, "example.com.").await.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn idle_connections_do_not_block_others() {
    let server = serve("cluster.local", None).await;
    let mut held = Vec::new();
    for _ in 0..2 * LIMITS.connections {
        held.push(TcpStream::connect(server).await.unwrap());
    }
    let asked = forward::tcp(server, &question("10-1-2-3.shop.pod.cluster.local."), LIMIT).await;
    assert_eq!(Message::from_vec(&asked.unwrap()).unwrap().answers.len(), 1);
}
