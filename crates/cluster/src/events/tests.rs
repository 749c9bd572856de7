use std::sync::{Arc, Mutex};

use test_lab::api::{Reply, fake_client};

use super::*;

fn pod() -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some("shop".into()),
        name: Some("web-1".into()),
        uid: Some("u1".into()),
        ..Default::default()
    }
}

#[tokio::test]
async fn repeats_become_one_event_with_a_count() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (done, mut finished) = mpsc::unbounded_channel();
    let log = seen.clone();
    let client = fake_client(move |request| {
        log.lock().unwrap().push((request.method.clone(), request.path.clone(), request.body.clone()));
        let _ = done.send(());
        Reply::json(201, request.body.clone())
    });
    let recorder = EventRecorder::new(client, "kubelet", "win01");
    for _ in 0..3 {
        recorder.event(&pod(), EventType::Warning, "BackOff", None, "Back-off restarting");
    }
    for _ in 0..3 {
        finished.recv().await.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].0, "POST");
    assert_eq!(seen[0].1, "/api/v1/namespaces/shop/events");
    assert_eq!(seen[0].2["source"]["host"], "win01");
    let name = seen[0].2["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-1."), "{name}");
    for (index, count) in [(1, 2), (2, 3)] {
        assert_eq!(seen[index].0, "PATCH");
        assert_eq!(seen[index].1, format!("/api/v1/namespaces/shop/events/{name}"));
        assert_eq!(seen[index].2["count"], count);
    }
}

#[tokio::test]
async fn an_unavailable_server_is_tried_again_and_a_refusal_is_not() {
    let posts = Arc::new(Mutex::new(Vec::new()));
    let (done, mut finished) = mpsc::unbounded_channel();
    let log = posts.clone();
    let client = fake_client(move |request| {
        let reason = request.body["reason"].as_str().unwrap_or_default().to_owned();
        let mut posts = log.lock().unwrap();
        posts.push(reason.clone());
        let _ = done.send(());
        let earlier = posts.iter().filter(|seen| **seen == reason).count();
        match reason.as_str() {
            "Busy" if earlier < 3 => Reply::status(503, "try later"),
            "Refused" => Reply::status(403, "no"),
            _ => Reply::json(201, request.body.clone()),
        }
    });
    let recorder = EventRecorder::new(client, "kubelet", "win01");
    for reason in ["Busy", "Refused", "Fine"] {
        recorder.event(&pod(), EventType::Normal, reason, None, "m");
    }
    for _ in 0..5 {
        finished.recv().await.unwrap();
    }
    assert_eq!(*posts.lock().unwrap(), ["Busy", "Busy", "Busy", "Refused", "Fine"]);
}

#[test]
fn events_make_room_on_a_server_that_has_too_much_to_do() {
    let millis = Duration::from_millis;
    for (what, took, waiting, ends, pauses) in [
        ("a quick server", 149, 9, false, 0),
        ("a slow one", 200, 9, false, 800),
        ("one that hangs", 9_000, 9, false, 3_000),
        ("a queue that fills", 200, CROWDED, false, 0),
        ("the last notes", 200, 9, true, 0),
    ] {
        assert_eq!(pause(millis(took), waiting, ends), millis(pauses), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_has_a_fifth_of_the_requests_and_gets_all_events() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let (done, mut finished) = mpsc::unbounded_channel();
    let log = times.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (log, done) = (log.clone(), done.clone());
        async move {
            log.lock().unwrap().push(Instant::now());
            tokio::time::sleep(Duration::from_millis(200)).await;
            let _ = done.send(());
            Ok::<_, tower::BoxError>(http::Response::new(request.into_body()))
        }
    });
    let recorder = EventRecorder::new(Client::new(service, "default"), "kubelet", "win01");
    for reason in ["Pulled", "Created", "Started"] {
        recorder.event(&pod(), EventType::Normal, reason, None, "m");
    }
    for _ in 0..3 {
        finished.recv().await.unwrap();
    }
    let times = times.lock().unwrap();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == Duration::from_secs(1)), "{times:?}");
}
