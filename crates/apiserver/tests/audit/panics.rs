//! A handler that panics: what the client gets, and what is logged.

use super::common::TestServer;
use super::{Audited, of, read};
use apiserver::kind::Kind;
use serde_json::{Value, json};

const TRAPS: &str = "/apis/example.com/v1/namespaces/default/traps";

/// A kind whose validation panics.
fn traps() -> Kind {
    Kind::open("example.com", "v1", "Trap", "traps").validate(|_, _, _| panic!("it snapped"))
}

#[tokio::test]
async fn a_panic_is_answered_and_logged_once() {
    let audited = Audited::start("- {level: Request, users: [jane], omitStages: [RequestReceived]}").await;
    audited.server.kinds().add(traps());
    let set = async || {
        let json = [("content-type", "application/json"), ("audit-id", "mine")];
        let trap = json!({"metadata": {"name": "a"}, "spec": {"bait": "cheese"}});
        let (parts, _) = audited.ask(("jane", &["system:masters"]), "POST", TRAPS, &json, &trap).await;
        (parts.status.as_u16(), parts.headers["audit-id"].to_str().unwrap().to_owned())
    };
    assert_eq!(set().await, (500, "mine".to_owned()));
    // A process that aborts at a panic runs its hook and nothing else.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        apiserver::write_panic(panic);
    }));
    assert_eq!(set().await, (500, "mine".to_owned()));
    assert_eq!(audited.admin("GET", TRAPS, Value::Null).await.0, 200, "the server goes on");
    let log = audited.dir.path().join("audit.log");
    assert_eq!(of(&read(&log), "jane", "Panic").len(), 2);
    let events = audited.events().await;
    for event in of(&events, "jane", "Panic") {
        let status = json!({"metadata": {}, "status": "Failure", "message": "APIServer panic'd: it snapped", "reason": "InternalError", "code": 500});
        assert_eq!((&event["responseStatus"], &event["verb"], &event["auditID"]), (&status, &json!("create"), &json!("mine")));
        assert_eq!((&event["objectRef"]["name"], &event["requestObject"]["spec"]["bait"]), (&json!("a"), &json!("cheese")));
    }
    let created = events.iter().filter(|event| event["verb"] == "create").count();
    assert_eq!(created, 2, "a request that panicked has no other event: {events:?}");
}

#[tokio::test]
async fn a_panic_without_an_audit_log_is_answered() {
    let server = TestServer::start().await;
    server.kinds().add(traps());
    let refused = server.post(TRAPS, &json!({"metadata": {"name": "a"}})).await.unwrap_err();
    assert!(refused.to_string().contains("This request caused apiserver to panic. Look in the logs for details."), "{refused}");
    server.post("/api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": "a"}})).await.unwrap();
    server.stop().await;
}
