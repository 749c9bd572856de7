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
