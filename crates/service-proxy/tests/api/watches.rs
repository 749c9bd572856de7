//! Watches that break lose no Service and bring none back; events without changes cost nothing.

use serde_json::json;

use super::world::World;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const STREAMED: &str = "sendInitialEvents=true";
const ADDED: [&str; 2] = ["HcnCreateEndpoint", "HcnCreateLoadBalancer"];
const REMOVED: [&str; 2] = ["HcnDeleteLoadBalancer", "HcnDeleteEndpoint"];

impl World {
    /// How often both kinds were listed by streams.
    fn lists(&self) -> usize {
        self.link.asked(SERVICES, STREAMED).min(self.link.asked(SLICES, STREAMED))
    }

    /// Services 1 and 2 are served.
    async fn with_two() -> Self {
        let world = Self::new().await;
        world.create("a", 1).await;
        world.create("b", 2).await;
        world.proxy();
        world.until(&[1, 2]).await;
        assert_eq!(world.lists(), 1, "the server streams lists, and each was asked for once");
        world.writes();
        world
    }
}

#[tokio::test]
async fn cut_watch_resumes_where_it_ended() {
    let world = World::with_two().await;
    world.close();
    world.delete("a").await;
    world.create("c", 3).await;
    world.open();
    world.until(&[2, 3]).await;
    assert_eq!(world.lists(), 1, "the watch went on, nothing was listed again");
    let mut writes = world.writes();
    writes.sort();
    let mut expected = [ADDED, REMOVED].concat();
    expected.sort_unstable();
    assert_eq!(writes, expected);
}

#[tokio::test]
async fn bookmark_avoids_a_relist_after_compaction() {
    let mut world = World::with_two().await;
    world.outlive_history().await;
    let revision = world.revision().await;
    for (path, kind, version) in [(SERVICES, "Service", "v1"), (SLICES, "EndpointSlice", "discovery.k8s.io/v1")] {
        world
            .link
            .whisper(path, &json!({"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": revision}}}));
    }
    // The watches have it once they deliver what came after it.
    world.create("c", 3).await;
    world.until(&[1, 2, 3]).await;
    world.close();
    world.delete("a").await;
    world.open();
    world.until(&[2, 3]).await;
    assert_eq!(world.lists(), 1);
}

#[tokio::test]
async fn relist_after_410_writes_only_differences() {
    let mut world = World::with_two().await;
    // At the beginning of a watch: what happened meanwhile is found by the list.
    world.close();
    world.delete("a").await;
    world.create("c", 3).await;
    world.outlive_history().await;
    world.open();
    world.until(&[2, 3]).await;
    assert_eq!(world.lists(), 2);
    assert_eq!(world.writes().len(), 4);
    // In the middle of one that could not follow: it lost changes of its own. The list says nothing new, so that the next change is all that
    // is written.
    world.link.hold(true);
    world.touch("b").await;
    world.outlive_history().await;
    world.link.hold(false);
    world.until_true("the list", async || world.lists() == 3).await;
    world.create("d", 4).await;
    world.until(&[2, 3, 4]).await;
    assert_eq!(world.writes(), ADDED);
}

#[tokio::test]
async fn incomplete_list_removes_nothing() {
    let mut world = World::with_two().await;
    world.link.break_lists(true);
    world.close();
    world.outlive_history().await;
    world.delete("a").await;
    world.open();
    world.until_true("three broken lists", async || world.lists() >= 4).await;
    assert_eq!(world.writes(), Vec::<String>::new());
    world.link.break_lists(false);
    world.until(&[2]).await;
    assert_eq!(world.writes(), REMOVED);
}

#[tokio::test]
async fn restarted_or_reset_api_server_is_followed() {
    let mut world = World::with_two().await;
    world.delete("a").await;
    world.until(&[2]).await;
    world.writes();
    // Its store is there, its past is not.
    world.stop().await;
    world.start().await;
    world.create("c", 3).await;
    world.until(&[2, 3]).await;
    assert_eq!(world.writes(), ADDED);
    // Its store is not there either: its revisions begin below those that the proxy knows.
    world.stop().await;
    world.lose_store();
    world.start().await;
    world.create("c", 3).await;
    world.until(&[3]).await;
    let writes = world.writes();
    assert!(writes.iter().all(|call| call.contains("Delete")), "what is the same stays: {writes:?}");
}

#[tokio::test]
async fn server_without_streaming_lists_is_listed_in_pages() {
    let world = World::new().await;
    world.link.refuse_streams();
    let numbers: Vec<u8> = (1..=120).collect();
    for n in &numbers {
        world.create(&format!("s{n:03}"), *n).await;
    }
    world.proxy();
    world.until_true("all of them", async || world.seen().await.len() == numbers.len()).await;
    assert!(world.link.asked(SERVICES, "continue=") == 1 && world.link.asked(SERVICES, "limit=100") == 2);
    world.delete("s007").await;
    world.until_true("one less", async || world.seen().await.len() == numbers.len() - 1).await;
}
