use super::*;
use serde_json::Value;

/// A receiver that refuses as many lists as it is told, and keeps the others with the time since its start.
#[derive(Debug)]
struct Receiving {
    started: Instant,
    refusals: Mutex<u32>,
    lists: Mutex<Vec<(Duration, Value)>>,
    tries: Mutex<u32>,
}

impl Post for Receiving {
    fn post(&self, list: Bytes) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async move {
            *self.tries.lock().unwrap() += 1;
            let mut refusals = self.refusals.lock().unwrap();
            if *refusals > 0 {
                *refusals -= 1;
                return Err("503 Service Unavailable".into());
            }
            self.lists.lock().unwrap().push((self.started.elapsed(), serde_json::from_slice(&list).unwrap()));
            Ok(())
        })
    }
}

fn receiving(refusals: u32) -> Arc<Receiving> {
    Arc::new(Receiving { started: Instant::now(), refusals: Mutex::new(refusals), lists: Mutex::default(), tries: Mutex::default() })
}

impl Receiving {
    /// Seconds and sizes of the lists.
    fn got(&self) -> Vec<(u64, usize)> {
        self.lists.lock().unwrap().iter().map(|(at, list)| (at.as_secs(), list["items"].as_array().unwrap().len())).collect()
    }
}

fn line(index: usize) -> Vec<u8> {
    format!("{{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"Metadata\",\"auditID\":\"{index}\"}}\n").into_bytes()
}

fn batches(max_size: usize, max_wait: u64, throttle: Option<Throttle>) -> WebhookConfig {
    let batch = Batch { max_size, max_wait: Duration::from_secs(max_wait), throttle, ..Batch::default() };
    WebhookConfig { batch, ..WebhookConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn lists_are_full_or_wait_no_longer_than_they_may() {
    let receiver = receiving(0);
    let webhook = Webhook::start(&batches(3, 30, None), Arc::clone(&receiver) as Arc<dyn Post>);
    for index in 0..4 {
        webhook.write(line(index)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!(receiver.got(), [(0, 3)]);
    webhook.write(line(4)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.got(), [(0, 3), (30, 2)]);
    webhook.write(line(5)).await.unwrap();
    webhook.close().await;
    assert_eq!(receiver.got(), [(0, 3), (30, 2), (31, 1)], "closing waits for nothing more");
    assert_eq!(webhook.write(line(6)).await, Err(NotWritten), "a closed back-end takes nothing");
    let list = &receiver.lists.lock().unwrap()[0].1;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"EventList".into(), &"audit.k8s.io/v1".into()));
    let first = &list["items"][0];
    assert_eq!(first, &serde_json::json!({"level": "Metadata", "auditID": "0"}), "items of a list have no type, as upstream's");
}

#[tokio::test(start_paused = true)]
async fn lists_have_a_size_and_a_rate() {
    let receiver = receiving(0);
    let config = WebhookConfig { max_list: 2 * line(0).len(), ..batches(100, 1, Some(Throttle { qps: 0.5, burst: 2 })) };
    let webhook = Webhook::start(&config, Arc::clone(&receiver) as Arc<dyn Post>);
    for index in 0..9 {
        webhook.write(line(index)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(receiver.got(), [(0, 2), (0, 2), (2, 2), (4, 2), (6, 1)], "two at once, then one in two seconds");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_sent_again_with_growing_pauses_and_given_up() {
    let receiver = receiving(2);
    let webhook = Webhook::start(&batches(1, 30, None), Arc::clone(&receiver) as Arc<dyn Post>);
    webhook.write(line(0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let at = receiver.got()[0].0;
    assert!((25..=30).contains(&at), "after 10 and 15 seconds with up to a fifth more, not {at}");
    *receiver.refusals.lock().unwrap() = TRIES;
    webhook.write(line(1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((receiver.got().len(), *receiver.tries.lock().unwrap(), webhook.lost()), (1, 3 + TRIES, 1));
}

#[tokio::test(start_paused = true)]
async fn what_has_no_room_is_dropped_and_counted() {
    let receiver = receiving(u32::MAX);
    let mut config = batches(1, 30, None);
    config.batch.buffer_size = 2;
    let webhook = Webhook::start(&config, Arc::clone(&receiver) as Arc<dyn Post>);
    for index in 0..3 {
        assert_eq!(webhook.write(line(index)).await.is_ok(), index < 2, "{index}");
    }
    assert_eq!(webhook.lost(), 1, "the queue has two places");
    // Being sent, and tried again: their bytes count as well.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(webhook.write(vec![b'x'; ROOM as usize]).await, Err(NotWritten));
    assert_eq!(webhook.lost(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_away_does_not_hold_up_the_end() {
    let receiver = receiving(u32::MAX);
    let webhook = Webhook::start(&batches(1, 30, None), Arc::clone(&receiver) as Arc<dyn Post>);
    webhook.write(line(0)).await.unwrap();
    let began = Instant::now();
    webhook.close().await;
    assert_eq!(began.elapsed(), LAST);
}

#[tokio::test(start_paused = true)]
async fn blocking_requests_wait_for_their_event() {
    let receiver = receiving(1);
    let webhook = Webhook::start(&WebhookConfig { mode: Mode::Blocking, ..WebhookConfig::default() }, Arc::clone(&receiver) as Arc<dyn Post>);
    assert_eq!(webhook.write(line(0)).await, Ok(()));
    assert!(receiver.got()[0].0 >= 10, "the first try failed");
    *receiver.refusals.lock().unwrap() = u32::MAX;
    assert_eq!(webhook.write(line(1)).await, Err(NotWritten));
    assert!(!webhook.is_strict());
    *receiver.refusals.lock().unwrap() = 0;
    webhook.write_later(line(2));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(receiver.got().len(), 2);
}
