//! A client whose credentials are replaced while it is in use.
//!
//! Guarantees: requests wait until there are credentials; requests after a replacement have the new ones; watches under the old ones end as
//! if the server had ended them, so that their readers resume with the new ones; all other answers are read to their end. Connections of
//! the old credentials are closed when the last of their answers is.

use std::future::pending;

use futures::StreamExt as _;
use http::{Request, Uri};
use http_body_util::{BodyStream, StreamBody};
use kube::client::Body;
use tokio::sync::watch;

use crate::Client;

#[derive(Clone)]
struct Generation {
    number: u64,
    client: Option<Client>,
}

/// Replaces the credentials of a client.
pub struct Renewal(watch::Sender<Generation>);

impl Renewal {
    /// Requests go through `client` from now on.
    pub fn replace(&self, client: Client) {
        self.0.send_modify(|generation| *generation = Generation { number: generation.number + 1, client: Some(client) });
    }
}

/// Whoever would give the client credentials is gone.
#[derive(Debug, thiserror::Error)]
#[error("there are no credentials for the API server")]
struct Gone;

/// A client that uses `first` until it is replaced; without it, requests wait for the first replacement.
///
/// Panics outside a tokio runtime.
pub fn renewable(first: Option<Client>) -> (Client, Renewal) {
    let (sender, generations) = watch::channel(Generation { number: 0, client: first });
    let send = tower::service_fn(move |request: Request<Body>| {
        let mut generations = generations.clone();
        async move {
            let Generation { number, client } = generations.wait_for(|generation| generation.client.is_some()).await.map_err(|_| Gone)?.clone();
            let is_watch = is_watch(request.uri());
            let answer = client.ok_or(Gone)?.send(request).await?;
            let replaced = async move {
                if !is_watch || generations.wait_for(|generation| generation.number != number).await.is_err() {
                    pending::<()>().await;
                }
            };
            let body = |body| StreamBody::new(BodyStream::new(body).take_until(Box::pin(replaced)));
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer.map(body))
        }
    });
    (Client::new(send, "default"), Renewal(sender))
}

/// Whether an answer goes on until somebody ends it.
fn is_watch(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::TryStreamExt as _;
    use http::Response;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, ListParams, WatchEvent, WatchParams};
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    /// A server that gives every object its name. Its answers end when the test ends them.
    fn server(name: &'static str) -> (Client, mpsc::UnboundedSender<()>) {
        let (end, ends) = mpsc::unbounded_channel::<()>();
        let ends = std::sync::Arc::new(tokio::sync::Mutex::new(ends));
        let answer = tower::service_fn(move |request: Request<Body>| {
            let ends = ends.clone();
            async move {
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": "1"}});
                let text = match is_watch(request.uri()) {
                    true => format!("{}\n", json!({"type": "ADDED", "object": object})),
                    false => json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": [object]}).to_string(),
                };
                let (begin, rest) = text.split_at(10);
                let parts = [begin.to_owned(), rest.to_owned()].map(|part| Ok::<_, std::io::Error>(http_body::Frame::data(part.into_bytes().into())));
                let [begin, rest] = parts;
                // A watch stays open behind its event; a list's second part comes when the test says so.
                let is_watch = is_watch(request.uri());
                let rest = futures::stream::once(async move {
                    if !is_watch {
                        ends.lock().await.recv().await;
                    }
                    rest
                });
                let open = futures::stream::once(async move { if is_watch { Some(pending().await) } else { None } }).filter_map(std::future::ready);
                Ok::<_, std::io::Error>(Response::new(StreamBody::new(Box::pin(futures::stream::once(async { begin }).chain(rest).chain(open)))))
            }
        });
        (Client::new(answer, "default"), end)
    }

    fn name(map: &ConfigMap) -> String {
        map.metadata.name.clone().unwrap_or_default()
    }

    async fn in_time<T>(work: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("in time")
    }

    #[tokio::test]
    async fn watches_end_with_their_credentials_and_other_answers_do_not() {
        let ((old, end_old), (new, end_new)) = (server("old"), server("new"));
        let (client, renewal) = renewable(Some(old));
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let mut watch = Box::pin(maps.watch(&WatchParams::default(), "0").await.unwrap());
        assert!(matches!(in_time(watch.try_next()).await.unwrap(), Some(WatchEvent::Added(map)) if name(&map) == "old"));
        let listing = maps.clone();
        let list = tokio::spawn(async move { listing.list(&ListParams::default()).await });
        // The list is under way when the credentials are replaced.
        tokio::time::sleep(Duration::from_millis(50)).await;
        renewal.replace(new);
        assert!(in_time(watch.try_next()).await.unwrap().is_none(), "the watch ended without an error");
        end_old.send(()).unwrap();
        assert_eq!(name(&in_time(list).await.unwrap().unwrap().items[0]), "old", "read to its end");
        end_new.send(()).unwrap();
        assert_eq!(name(&in_time(maps.list(&ListParams::default())).await.unwrap().items[0]), "new");
        let mut watch = Box::pin(maps.watch(&WatchParams::default(), "0").await.unwrap());
        assert!(matches!(in_time(watch.try_next()).await.unwrap(), Some(WatchEvent::Added(map)) if name(&map) == "new"));
    }

    #[tokio::test]
    async fn requests_wait_for_the_first_credentials() {
        let (client, renewal) = renewable(None);
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let all = ListParams::default();
        let mut list = Box::pin(maps.list(&all));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut list).await.is_err(), "it waits");
        let (server, end) = server("first");
        end.send(()).unwrap();
        renewal.replace(server);
        assert_eq!(name(&in_time(list).await.unwrap().items[0]), "first");
        drop(renewal);
        let (client, renewal) = renewable(None);
        drop(renewal);
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        assert!(in_time(maps.list(&ListParams::default())).await.is_err(), "nobody will give any");
    }

    #[test]
    fn watches_are_known_by_their_query() {
        for (uri, expected) in [
            ("/api/v1/pods?watch=true&resourceVersion=1", true),
            ("/api/v1/pods?limit=5&watch=1", true),
            ("/api/v1/pods?watch=false", false),
            ("/api/v1/pods?labelSelector=watch%3Dtrue", false),
            ("/api/v1/watch", false),
        ] {
            assert_eq!(is_watch(&uri.parse().unwrap()), expected, "{uri}");
        }
    }
}
