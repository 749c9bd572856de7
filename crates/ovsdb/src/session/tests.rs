use serde_json::{Value, json};

use super::*;
use crate::operation::Operation;

const USES: &[TableUse] = &[TableUse { name: "T", required: true, columns: &[ColumnUse::required("name", AtomType::String)] }];
const A: &str = "00000000-0000-0000-0000-00000000000a";
const B: &str = "00000000-0000-0000-0000-00000000000b";
const TXN: &str = "11111111-0000-0000-0000-000000000000";

fn wants() -> Wants {
    Wants { database: "DB".into(), uses: USES, lock: None, leader_only: false }
}

fn schema() -> Value {
    json!({"name": "DB", "version": "1", "tables": {"T": {"columns": {"name": {"type": "string"}}}}})
}

/// Requests among the outputs: method and parameters; by the method their id.
fn sent(outputs: &[Output]) -> Vec<(String, Value, Value)> {
    let request = |output: &Output| match output {
        Output::Send(Message::Request { method, params, id }) => Some((method.clone(), params.clone(), id.clone())),
        _ => None,
    };
    outputs.iter().filter_map(request).collect()
}

fn id_of(outputs: &[Output], method: &str) -> Value {
    sent(outputs).into_iter().find(|(found, _, _)| found == method).unwrap_or_else(|| panic!("no {method} in {outputs:?}")).2
}

fn answer(session: &mut Session, id: Value, result: Result<Value, Value>) -> Vec<Output> {
    session.receive(Message::Reply { id, result })
}

fn notify(session: &mut Session, method: &str, params: Value) -> Vec<Output> {
    session.receive(Message::Notification { method: method.into(), params })
}

fn names(session: &Session) -> Vec<String> {
    session.replica().table("T").rows().map(|(_, row)| row.text("name").to_owned()).collect()
}

fn row(uuid: &str, name: &str) -> Value {
    json!({"T": {uuid: {"initial": {"name": name}}}})
}

/// A session up to the answer to its monitor.
fn begun(wants: Wants, memory: Memory) -> (Session, Vec<Output>) {
    let mut session = Session::new(wants, memory);
    let first = session.start();
    let outputs = answer(&mut session, id_of(&first, "get_schema"), Ok(schema()));
    (session, outputs)
}

fn ready(wants: Wants, result: Value) -> (Session, Vec<Output>) {
    let (mut session, outputs) = begun(wants, Memory::default());
    let outputs = answer(&mut session, id_of(&outputs, "monitor_cond_since"), Ok(result));
    assert!(session.is_ready());
    (session, outputs)
}

#[test]
fn a_session_checks_the_schema_and_asks_for_what_is_used() {
    let (mut session, outputs) = begun(wants(), Memory::default());
    let monitor = sent(&outputs).into_iter().find(|(method, ..)| method == "monitor_cond_since").unwrap();
    assert_eq!(monitor.1, json!(["DB", "replica", {"T": [{"columns": ["name"]}]}, NO_TRANSACTION]));
    assert!(!session.is_ready());
    let outputs = answer(&mut session, monitor.2, Ok(json!([false, NO_TRANSACTION, row(A, "a")])));
    assert!(session.is_ready() && matches!(outputs[..], [Output::Changed]));
    assert_eq!(names(&session), ["a"]);
    assert_eq!(session.into_memory().last_transaction, None, "a server without a cluster has no history");
}

#[test]
fn a_schema_without_what_is_used_closes_the_connection() {
    let mut session = Session::new(wants(), Memory::default());
    let first = session.start();
    let outputs = answer(&mut session, id_of(&first, "get_schema"), Ok(json!({"name": "DB", "tables": {}})));
    assert!(matches!(&outputs[..], [Output::Close(problem)] if problem.to_string().contains("has no table T")), "{outputs:?}");
    let mut session = Session::new(wants(), Memory::default());
    let first = session.start();
    let outputs = answer(&mut session, id_of(&first, "get_schema"), Err(json!({"error": "unknown database"})));
    assert!(matches!(&outputs[..], [Output::Close(problem)] if problem.to_string().contains("unknown database")), "{outputs:?}");
}

#[test]
fn older_servers_are_monitored_with_older_methods() {
    let (mut session, outputs) = begun(wants(), Memory::default());
    let unknown = || Err(json!({"error": "unknown method"}));
    let outputs = answer(&mut session, id_of(&outputs, "monitor_cond_since"), unknown());
    let conditional = answer(&mut session, id_of(&outputs, "monitor_cond"), unknown());
    answer(&mut session, id_of(&conditional, "monitor"), Ok(json!({"T": {A: {"new": {"name": "a"}}}})));
    assert_eq!(names(&session), ["a"]);
    notify(&mut session, "update", json!(["replica", {"T": {A: {"old": {"name": "a"}, "new": {"name": "b"}}}}]));
    assert_eq!(names(&session), ["b"]);
    // The middle one.
    let (mut session, outputs) = begun(wants(), Memory::default());
    let outputs = answer(&mut session, id_of(&outputs, "monitor_cond_since"), unknown());
    answer(&mut session, id_of(&outputs, "monitor_cond"), Ok(row(A, "a")));
    notify(&mut session, "update2", json!(["replica", {"T": {B: {"insert": {"name": "b"}}}}]));
    assert_eq!(names(&session), ["a", "b"]);
    // None of them.
    let (mut session, mut outputs) = begun(wants(), Memory::default());
    for method in ["monitor_cond_since", "monitor_cond", "monitor"] {
        outputs = answer(&mut session, id_of(&outputs, method), unknown());
    }
    assert!(matches!(&outputs[..], [Output::Close(Problem::Refused { method: "monitor", .. })]), "{outputs:?}");
}

#[test]
fn the_next_connection_goes_on_from_the_last_transaction() {
    let (mut session, _) = ready(wants(), json!([false, TXN, row(A, "a")]));
    let later = "22222222-0000-0000-0000-000000000000";
    notify(&mut session, "update3", json!(["replica", later, {"T": {B: {"insert": {"name": "b"}}}}]));
    let memory = session.into_memory();
    // The server knows the transaction: it tells what came after.
    let (mut session, outputs) = begun(wants(), memory.clone());
    assert_eq!(names(&session), ["a", "b"], "rows stay while the connection is made again");
    assert_eq!(sent(&outputs).last().unwrap().1[3], json!(later));
    answer(&mut session, id_of(&outputs, "monitor_cond_since"), Ok(json!([true, TXN, {"T": {A: {"delete": null}}}])));
    assert_eq!(names(&session), ["b"]);
    // It does not: it tells all, and nothing is doubled or left.
    let (mut session, outputs) = begun(wants(), memory);
    answer(&mut session, id_of(&outputs, "monitor_cond_since"), Ok(json!([false, TXN, row(B, "b2")])));
    assert_eq!(names(&session), ["b2"]);
}

#[test]
fn another_schema_makes_the_server_tell_all() {
    let (session, _) = ready(wants(), json!([false, TXN, row(A, "a")]));
    let memory = Memory { support: Arc::default(), ..session.into_memory() };
    let (_, outputs) = begun(wants(), memory);
    assert_eq!(sent(&outputs).last().unwrap().1[3], json!(NO_TRANSACTION));
}

#[test]
fn an_update_that_does_not_fit_closes_and_forgets_the_history() {
    let (mut session, _) = ready(wants(), json!([false, TXN, row(A, "a")]));
    let outputs = notify(&mut session, "update3", json!(["replica", TXN, {"T": {B: {"modify": {"name": "b"}}}}]));
    assert!(matches!(&outputs[..], [Output::Close(Problem::Inconsistent(_))]), "{outputs:?}");
    assert_eq!(session.into_memory().last_transaction, None);
    let (mut session, _) = ready(wants(), json!([false, TXN, row(A, "a")]));
    assert!(matches!(&notify(&mut session, "update3", json!(["replica"]))[..], [Output::Close(_)]));
    // Monitors of others are no business of ours.
    let (mut session, _) = ready(wants(), json!([false, TXN, row(A, "a")]));
    assert!(notify(&mut session, "update3", json!(["other", TXN, {"U": {}}])).is_empty());
}

#[test]
fn locks_are_asked_for_told_and_stolen() {
    let wanted = Wants { lock: Some("writer".into()), ..wants() };
    let (mut session, outputs) = ready(wanted, json!([false, TXN, {}]));
    assert_eq!((session.lock(), &sent(&outputs)[0].1), (Lock::None, &json!(["writer"])));
    answer(&mut session, id_of(&outputs, "lock"), Ok(json!({"locked": false})));
    assert_eq!(session.lock(), Lock::Waiting);
    assert!(notify(&mut session, "locked", json!(["other"])).is_empty());
    notify(&mut session, "locked", json!(["writer"]));
    assert_eq!(session.lock(), Lock::Held);
    assert!(session.steal().is_empty(), "it is held");
    // Who has lost it asks again, after giving it up, as the server wants it.
    let outputs = notify(&mut session, "stolen", json!(["writer"]));
    assert_eq!(sent(&outputs).iter().map(|(method, ..)| &**method).collect::<Vec<_>>(), ["unlock", "lock"]);
    assert_eq!(session.lock(), Lock::Waiting);
    let stolen = session.steal();
    assert_eq!(sent(&stolen).iter().map(|(method, ..)| &**method).collect::<Vec<_>>(), ["unlock", "steal"]);
    answer(&mut session, id_of(&stolen, "steal"), Ok(json!({"locked": true})));
    assert_eq!(session.lock(), Lock::Held);
    let unlocked = session.unlock().unwrap();
    assert_eq!((session.lock(), &sent(&[unlocked])[0].1), (Lock::None, &json!(["writer"])));
    assert!(session.steal().is_empty() && session.unlock().is_none());
}

#[test]
fn answers_are_matched_by_id_whatever_comes_between() {
    let (mut session, _) = ready(wants(), json!([false, TXN, {}]));
    let transaction = |text: &str| Transaction { operations: vec![Operation::Comment(text.into())] };
    let first = session.transact(1, transaction("first"));
    let second = session.transact(2, transaction("second"));
    assert_eq!(sent(std::slice::from_ref(&first))[0].1, json!(["DB", {"op": "comment", "comment": "first"}]));
    notify(&mut session, "update3", json!(["replica", TXN, row(A, "a")]));
    let outputs = answer(&mut session, id_of(&[second], "transact"), Ok(json!([{}])));
    assert!(matches!(&outputs[..], [Output::Answer(2, Ok(done))] if done[..] == [Outcome::Done]), "{outputs:?}");
    let outputs = answer(&mut session, id_of(&[first], "transact"), Err(json!("canceled")));
    assert!(matches!(&outputs[..], [Output::Answer(1, Err(refused))] if refused.error == "canceled"), "{outputs:?}");
    assert!(answer(&mut session, json!(99), Ok(json!(null))).is_empty(), "an answer to nothing");
}

#[test]
fn the_servers_echo_is_answered_and_other_requests_are_refused() {
    let (mut session, _) = ready(wants(), json!([false, TXN, {}]));
    let echo = session.receive(Message::Request { method: "echo".into(), params: json!(["x"]), id: json!("echo") });
    assert!(matches!(&echo[..], [Output::Send(Message::Reply { id, result: Ok(params) })] if id == "echo" && params == &json!(["x"])));
    let other = session.receive(Message::Request { method: "reboot".into(), params: json!([]), id: json!(5) });
    assert!(matches!(&other[..], [Output::Send(Message::Reply { result: Err(_), .. })]));
    let probe = session.probe();
    assert!(answer(&mut session, id_of(&[probe], "echo"), Ok(json!([]))).is_empty());
}

fn server_schema() -> Value {
    let boolean = json!({"type": "boolean"});
    let string = json!({"type": "string"});
    json!({"name": "_Server", "tables": {"Database": {"columns": {"name": string, "model": string, "connected": boolean, "leader": boolean}}}})
}

fn database(model: &str, leader: bool) -> Value {
    json!({"Database": {A: {"initial": {"name": "DB", "model": model, "connected": true, "leader": leader}}}})
}

#[test]
fn only_the_leader_of_a_cluster_is_used() {
    let begin = |answer_to_monitor: Value| {
        let mut session = Session::new(Wants { leader_only: true, ..wants() }, Memory::default());
        let first = session.start();
        let outputs = answer(&mut session, id_of(&first, "get_schema"), Ok(server_schema()));
        let outputs = answer(&mut session, id_of(&outputs, "monitor_cond"), Ok(answer_to_monitor));
        (session, outputs)
    };
    let (_, outputs) = begin(database("clustered", false));
    assert!(matches!(&outputs[..], [Output::Close(Problem::NotLeader)]), "{outputs:?}");
    let (_, outputs) = begin(database("standalone", false));
    assert_eq!(sent(&outputs)[0].1, json!(["DB"]));
    let (mut session, outputs) = begin(database("clustered", true));
    assert_eq!(sent(&outputs)[0].1, json!(["DB"]));
    let moved = notify(&mut session, "update2", json!(["server", {"Database": {A: {"modify": {"leader": false}}}}]));
    assert!(matches!(&moved[..], [Output::Close(Problem::NotLeader)]), "{moved:?}");
    // A server that does not describe itself is none of a cluster.
    let mut session = Session::new(Wants { leader_only: true, ..wants() }, Memory::default());
    let first = session.start();
    let outputs = answer(&mut session, id_of(&first, "get_schema"), Err(json!({"error": "unknown database"})));
    assert_eq!(sent(&outputs)[0].1, json!(["DB"]));
}

#[test]
fn a_database_that_grows_too_large_is_given_up_with_the_numbers() {
    let limit = Size { rows: 1, bytes: 1 << 20 };
    let told = |first: Value, then: Value| {
        let mut session = Session::new(wants(), Memory::default()).limited(limit);
        let outputs = session.start();
        let outputs = answer(&mut session, id_of(&outputs, "get_schema"), Ok(schema()));
        let outputs = answer(&mut session, id_of(&outputs, "monitor_cond_since"), Ok(json!([true, TXN, first])));
        if !session.is_ready() {
            return (outputs, session);
        }
        (notify(&mut session, "update3", json!(["replica", TXN, then])), session)
    };
    let many = json!({"T": {A: {"initial": {"name": "a"}}, B: {"initial": {"name": "b"}}}});
    let more = json!({"T": {B: {"insert": {"name": "b"}}}});
    let longer = json!({"T": {A: {"modify": {"name": "a".repeat(1 << 20)}}}});
    for (first, then, numbers) in
        [(many, json!({}), "2 rows of 0 MiB"), (row(A, "a"), more, "2 rows of 0 MiB"), (row(A, "a"), longer, "1 rows of 1 MiB")]
    {
        let (outputs, session) = told(first, then);
        let [Output::Close(problem)] = &outputs[..] else { panic!("{outputs:?}") };
        let text = problem.to_string();
        assert!(text.contains(numbers) && text.contains("more than the 1 rows or 1 MiB"), "{text}");
        let memory = session.into_memory();
        assert_eq!((memory.replica.size().rows, memory.last_transaction), (0, None));
    }
    let (outputs, _) = told(row(A, "a"), json!({"T": {A: {"modify": {"name": "b"}}}}));
    assert!(matches!(outputs[..], [Output::Changed]), "{outputs:?}");
}
