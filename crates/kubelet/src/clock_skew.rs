//! Says when the node's clock and the API server's are apart: certificates and tokens are then refused as expired or not yet valid, and times
//! in logs and events mislead. What decides is [`cluster::Requests::clock`], from the header `Date` of answers.

use cluster::EventType;
use jiff::SignedDuration;
use tokio::sync::watch;

use crate::agent::Agent;

/// What is said of a node's clock: type, reason and message of the event.
fn news(node: &str, apart: Option<SignedDuration>) -> (EventType, &'static str, String) {
    let Some(by) = apart else {
        let message = format!("Node {node}: its clock agrees with the API server's again");
        return (EventType::Normal, "ClockInSync", message);
    };
    let direction = if by.is_positive() { "behind" } else { "ahead of" };
    let seconds = by.abs().as_secs();
    let message = format!(
        "Node {node}: its clock is {seconds} s {direction} the API server's, so that certificates and tokens may be refused as expired or not yet \
         valid; set both clocks by the same time server (NTP)"
    );
    (EventType::Warning, "ClockSkew", message)
}

/// Logs it and writes an event about the Node, when it begins and when it ends.
pub(crate) async fn follow(agent: &Agent, mut clock: watch::Receiver<Option<SignedDuration>>) {
    while clock.changed().await.is_ok() {
        let (type_, reason, message) = news(&agent.side.node_name, *clock.borrow_and_update());
        match type_ {
            EventType::Warning => tracing::warn!(reason, "{message}"),
            EventType::Normal => tracing::info!(reason, "{message}"),
        }
        agent.node_event(type_, reason, message);
    }
    // The requests live as long as the agent.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_which_clock_is_behind() {
        let text = |seconds: i64| news("win01", Some(SignedDuration::from_secs(seconds))).2;
        assert!(text(42).starts_with("Node win01: its clock is 42 s behind the API server's, so that"), "{}", text(42));
        assert!(text(-7).starts_with("Node win01: its clock is 7 s ahead of the API server's, so that"), "{}", text(-7));
        assert_eq!(news("win01", None).1, "ClockInSync");
    }
}
