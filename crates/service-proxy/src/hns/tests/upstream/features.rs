//! Features that only the documents which HNS gets can show.

use hcn::document::DistributionType;

use super::*;

/// Sent as it is; whether Windows balances SCTP, no document says.
#[tokio::test]
async fn sctp_is_sent_to_hns() {
    let mut case = Case::bridge(OLD).await;
    let sctp = json!({"ports": [{"name": "p80", "port": 80, "protocol": "SCTP", "nodePort": 3001}]});
    let pods = slice(80, &["192.168.2.3"]).merged(json!({"ports": [{"name": "p80", "port": 8080, "protocol": "SCTP"}]}));
    case.proxy.say("svc1", service(sctp), &[pods]).await;
    let sent: Vec<(u32, u16)> =
        case.host.balancers().await.values().map(|b| (b.port_mappings[0].protocol.0, b.port_mappings[0].external_port)).collect();
    assert_eq!(sent, [(132, 80), (132, 3001)]);
    parity::proved(parity::Hns, &["SCTP"]);
}

#[tokio::test]
async fn session_affinity_is_set_where_hns_supports_it_and_reported_otherwise() {
    for (version, distribution, reported) in
        [(HnsVersion::new(11, 0), DistributionType::PER_CONNECTION, &["NoSessionAffinity"][..]), (OLD, DistributionType::SOURCE_IP, &[])]
    {
        let mut case = Case::bridge(version).await;
        case.proxy.say("svc1", service(json!({"sessionAffinity": "ClientIP"})), &[slice(80, &["192.168.2.3", "192.168.2.4"])]).await;
        let balancers = case.host.balancers().await;
        assert_eq!(balancers.len(), 2);
        for (key, balancer) in balancers {
            assert_eq!(balancer.port_mappings[0].distribution_type, distribution, "HNS {version}, {key}");
            let gaps = case.proxy.hns.engine().gaps().get(&key);
            assert_eq!(gaps.map(|gaps| gaps.iter().map(Gap::name).collect()).unwrap_or(Vec::new()), reported, "HNS {version}, {key}");
        }
    }
    parity::proved(parity::Hns, &["Session affinity"]);
}

/// The annotation reaches load-balancer addresses and node ports: direct server return, `PreserveDIP`, `UseMux`, `VipExternalIP`.
#[tokio::test]
async fn preserve_destination_annotation_reaches_the_load_balancer() {
    let mut case = Case::dual(OLD).await;
    case.host.dual_endpoint("pod", "192.168.4.4", "fd00:4::4").await;
    for (value, flags) in [("false", "11.21.31.41:80/tcp 1 16 1"), ("true", "11.21.31.41:80/tcp 1 28 1")] {
        let annotated = service(load_balancer("Local")).merged(json!({"metadata": {"annotations": {"preserve-destination": value}}}));
        case.proxy.say("svc1", annotated, &[slice(80, &["192.168.4.4"])]).await;
        assert_eq!(case.flags().await[1], flags);
    }
    parity::proved(parity::Hns, &["Annotation preserve-destination"]);
}

/// website#17930: each load balancer without DSR takes 64 ports of the 16,384 that the host has for connections of its own.
#[tokio::test]
async fn port_exhaustion_without_dsr_is_reported_and_recovers() {
    let many = |proxy: &mut Proxy, numbers: std::ops::Range<u16>, serve: bool| {
        for n in numbers {
            let (address, pods) = (format!("10.97.{}.{}", n / 250, n % 250), [("192.168.2.3", 80, false)]);
            let vips = serve.then(|| (key(Some(&address), 80), vip(Kind::ClusterIp, &pods)));
            proxy.set(&address, vips.into_iter().collect());
        }
    };
    for dsr in [true, false] {
        let switches = Switches { hns_preallocate_port_range: false, ..Switches::of(OLD) };
        let host = Host::with(switches, NetworkType::L2Bridge).await;
        let mut proxy = host.proxy_with(Settings { dsr, ..host.settings() });
        many(&mut proxy, 0..260, true);
        proxy.once().await;
        if !dsr {
            let behind = proxy.failing();
            assert_eq!((host.balancers().await.len(), behind.len()), (256, 4));
            assert!(behind.iter().all(|reason| reason.contains("64 of the host's ephemeral ports") && reason.contains("--enable-dsr")), "{behind:?}");
            // Whatever else changes goes on, and those that wait follow when others go.
            many(&mut proxy, 0..4, false);
        }
        proxy.rest().await;
        assert_eq!((host.balancers().await.len(), proxy.failing()), (if dsr { 260 } else { 256 }, Vec::new()));
    }
    parity::proved(parity::Hns, &["website#17930"]);
}
