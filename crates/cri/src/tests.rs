//! Tests of the client against a socket without listener, a runtime without some calls, and one that is slow.

use std::path::Path;
use std::time::Duration;

use k8s_cri::v1;
use k8s_cri::v1::image_service_server::{ImageService, ImageServiceServer};
use tonic::{Request, Response, Status};

use crate::{Client, Deadlines, Error, Kind, Notice};

/// A runtime with images only. An image called `slow` takes its time.
struct Images;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        Ok(Response::new(v1::ListImagesResponse { images: vec![v1::Image { id: "one".into(), ..Default::default() }] }))
    }

    async fn image_status(&self, _: Request<v1::ImageStatusRequest>) -> Answer<v1::ImageStatusResponse> {
        Ok(Response::new(v1::ImageStatusResponse::default()))
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        match request.into_inner().image.unwrap_or_default().image.as_str() {
            "slow" => std::future::pending().await,
            name => Err(Status::not_found(format!("failed to resolve reference {name:?}: not found"))),
        }
    }

    async fn remove_image(&self, _: Request<v1::RemoveImageRequest>) -> Answer<v1::RemoveImageResponse> {
        Err(Status::failed_precondition("in use"))
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        Ok(Response::new(v1::ImageFsInfoResponse::default()))
    }
}

fn serve(socket: &Path) -> tokio::task::JoinHandle<()> {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        tonic::transport::Server::builder().add_service(ImageServiceServer::new(Images)).serve_with_incoming(incoming).await.unwrap();
    })
}

fn client(socket: &Path) -> Client {
    let deadlines = Deadlines { call: Duration::from_secs(240), pull: Duration::from_millis(50) };
    Client::with_deadlines(&format!("unix://{}", socket.display()), deadlines).unwrap()
}

fn pull(name: &str) -> v1::PullImageRequest {
    v1::PullImageRequest { image: Some(v1::ImageSpec { image: name.into(), ..Default::default() }), ..Default::default() }
}

#[tokio::test]
async fn errors_name_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri");
    let client = client(&socket);
    let error = client.version(Default::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("Version") && text.contains("is it running?") && text.contains("No such file"), "{text}");
    // The same client works as soon as somebody listens.
    let _server = serve(&socket);
    assert_eq!(client.list_images(Default::default()).await.unwrap()[0].id, "one");
    let error = client.pull_image(pull("x")).await.unwrap_err();
    assert!(error.is_not_found() && error.message() == "failed to resolve reference \"x\": not found", "{error}");
    assert!(matches!(client.pull_image(pull("slow")).await, Err(Error::Deadline { call: "PullImage", .. })));
    assert_eq!(client.remove_image(Default::default()).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(client.version(Default::default()).await.unwrap_err().kind(), Kind::Unimplemented);
}

#[tokio::test]
async fn images_may_be_cared_for_by_another_program() {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, images) = (dir.path().join("runtime"), dir.path().join("images"));
    let client = client(&runtime).with_images(&format!("unix://{}", images.display())).unwrap();
    let error = client.remove_image(Default::default()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("unix://{}", images.display())), "{error}");
    let _server = serve(&images);
    assert_eq!(client.list_images(Default::default()).await.unwrap()[0].id, "one");
    let error = client.version(Default::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "nobody listens there");
    assert!(error.to_string().contains(&format!("unix://{}", runtime.display())), "{error}");
    assert!(self::client(&runtime).with_images("nowhere").is_err());
}

#[tokio::test]
async fn missing_events_are_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri");
    let mut events = client(&socket).events();
    assert!(matches!(events.next().await, Some(Notice::Lost { .. })), "nobody listens yet");
    let _server = serve(&socket);
    loop {
        match events.next().await {
            Some(Notice::Lost { .. }) => {}
            Some(Notice::Unsupported { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn calls_without_an_answer_are_counted_until_they_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri");
    let _server = serve(&socket);
    let client = client(&socket);
    let other = client.clone();
    let slow = tokio::spawn(async move { other.pull_image(pull("slow")).await });
    while client.waiting().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.waiting().iter().map(|waiting| waiting.call).collect::<Vec<_>>(), ["PullImage"]);
    assert!(matches!(slow.await.unwrap(), Err(Error::Deadline { .. })));
    client.list_images(Default::default()).await.unwrap();
    assert_eq!(client.waiting(), [], "answered or given up");
}

#[tokio::test]
async fn a_program_without_a_timeout_runs_for_as_long_as_its_caller_waits() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri");
    // It takes connections, and answers nothing.
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let deadlines = Deadlines { call: Duration::from_millis(20), pull: Duration::from_millis(20) };
    let client = Client::with_deadlines(&format!("unix://{}", socket.display()), deadlines).unwrap();
    let limited = client.exec_sync("c", &[], Duration::from_millis(10)).await;
    assert!(matches!(limited, Err(Error::Deadline { call: "ExecSync", .. })), "{limited:?}");
    let unlimited = tokio::time::timeout(Duration::from_millis(300), client.exec_sync("c", &[], Duration::ZERO)).await;
    assert!(unlimited.is_err(), "{unlimited:?}");
}
