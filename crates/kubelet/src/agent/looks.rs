//! When the runtime's objects are listed, and what a list shows.
//!
//! containerd's own events (see [`cri::Notice::Task`]) come before CRI shows what they tell. An announced change is looked for at growing
//! intervals, no longer than until a list shows it: on a busy node lists would take the runtime's time from the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cri::labels::POD_UID;
use cri::{TaskChange, v1};

/// What the runtime has of each pod, by its UID: containers and sandboxes with their states.
pub(super) type Seen = BTreeMap<String, BTreeSet<(String, Phase)>>;

/// Where a container or a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Made,
    Runs,
    Over,
    Unknown,
}

/// Lists all sandboxes and containers of pods.
pub(super) async fn list(cri: &cri::Client) -> Result<Seen, cri::Error> {
    let mut seen = Seen::new();
    for s in cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await? {
        if let Some(uid) = s.labels.get(POD_UID) {
            let ready = s.state == v1::PodSandboxState::SandboxReady as i32;
            seen.entry(uid.clone()).or_default().insert((s.id, if ready { Phase::Runs } else { Phase::Over }));
        }
    }
    for c in cri.list_containers(v1::ListContainersRequest::default()).await? {
        if let Some(uid) = c.labels.get(POD_UID) {
            let phase = match v1::ContainerState::try_from(c.state) {
                Ok(v1::ContainerState::ContainerCreated) => Phase::Made,
                Ok(v1::ContainerState::ContainerRunning) => Phase::Runs,
                Ok(v1::ContainerState::ContainerExited) => Phase::Over,
                _ => Phase::Unknown,
            };
            seen.entry(uid.clone()).or_default().insert((c.id, phase));
        }
    }
    Ok(seen)
}

/// Pods whose objects differ between two looks.
pub(super) fn changed<'a>(before: &'a Seen, now: &'a Seen) -> BTreeSet<&'a String> {
    let uids = before.keys().chain(now.keys());
    uids.filter(|uid| before.get(*uid) != now.get(*uid)).collect()
}

/// When the runtime's objects are listed.
#[derive(Default)]
pub(super) struct Looks {
    last: Option<Instant>,
    /// Nothing says that they changed.
    pub without_events: bool,
    /// Nothing ever will.
    pub are_all_there_is: bool,
    /// Changes that no list has shown yet, by the id of their container or sandbox.
    announced: BTreeMap<String, Announced>,
    /// The next look for them, and the pause before it.
    next: Option<(Instant, Duration)>,
}

struct Announced {
    /// It ended; else it began.
    over: bool,
    /// When to look no more.
    until: Instant,
}

impl Looks {
    /// How long containerd may take to show over CRI what its events said: its disk may stand still for a while.
    const SHOWN: Duration = Duration::from_secs(60);
    /// After a list that failed; it doubles, up to the longest.
    const FAILED: Duration = Duration::from_millis(50);
    const LONGEST_FAILED: Duration = Duration::from_secs(5);

    /// How long the first look for a change waits; each further one waits twice as long. Who starts a container hears of it by the call's
    /// answer, and containerd deletes the task of one that ended before it shows the end.
    fn first(change: TaskChange) -> Duration {
        match change {
            TaskChange::Started => Duration::from_millis(200),
            TaskChange::Ended => Duration::from_millis(100),
            TaskChange::Deleted => Duration::from_millis(2),
        }
    }

    pub(super) fn announce(&mut self, id: String, change: TaskChange, now: Instant) {
        let pause = Self::first(change);
        let over = change != TaskChange::Started;
        // An end stays announced when the start before it is told late.
        let over = over || self.announced.get(&id).is_some_and(|before| before.over);
        self.announced.insert(id, Announced { over, until: now + Self::SHOWN });
        if self.next.is_none_or(|(next, _)| now + pause < next) {
            self.next = Some((now + pause, pause));
        }
    }

    /// A list was made; None when it failed, which shows nothing and is tried again.
    pub(super) fn looked(&mut self, seen: Option<&Seen>, now: Instant) {
        self.last = Some(now);
        let before = self.next.map_or(Duration::ZERO, |(_, pause)| pause);
        let Some(seen) = seen else {
            let pause = before.saturating_mul(2).clamp(Self::FAILED, Self::LONGEST_FAILED);
            self.next = Some((now + pause, pause));
            return;
        };
        if self.announced.is_empty() {
            self.next = None;
            return;
        }
        let phases: BTreeMap<&str, Phase> = seen.values().flatten().map(|(id, phase)| (id.as_str(), *phase)).collect();
        // One that is not in the list is gone, or just being made by who asked for it.
        let is_shown = |id: &str, over: bool| phases.get(id).is_none_or(|phase| if over { *phase >= Phase::Over } else { *phase >= Phase::Runs });
        self.announced.retain(|id, announced| now < announced.until && !is_shown(id, announced.over));
        let pause = before.saturating_mul(2);
        self.next = (!self.announced.is_empty()).then_some((now + pause, pause));
    }

    /// When the next list is due; `poll` is the interval without events.
    pub(super) fn due(&self, poll: Duration) -> Option<Instant> {
        let polled = self.without_events.then(|| self.last.map_or_else(Instant::now, |last| last + poll));
        let soon = self.next.map(|(next, _)| next);
        [polled, soon].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &[(&str, Phase)]) -> BTreeSet<(String, Phase)> {
        list.iter().map(|(id, phase)| ((*id).to_owned(), *phase)).collect()
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    const POLL: Duration = Duration::from_secs(1);

    /// Milliseconds after `begin` of each look, as long as lists show `phase` of container `c`.
    fn at(looks: &mut Looks, begin: Instant, phase: Phase) -> Vec<u128> {
        let seen = Seen::from([("pod".to_owned(), set(&[("c", phase), ("other", Phase::Made)]))]);
        let mut at = Vec::new();
        while let Some(due) = looks.due(POLL) {
            at.push(due.duration_since(begin).as_millis());
            looks.looked(Some(&seen), due);
        }
        at
    }

    #[test]
    fn an_announced_change_is_looked_for_at_growing_intervals_until_it_is_shown() {
        let begin = Instant::now();
        let after = |change: TaskChange, phase: Phase| {
            let mut looks = Looks::default();
            assert_eq!(looks.due(POLL), None, "events say when");
            looks.announce("c".to_owned(), change, begin);
            at(&mut looks, begin, phase)
        };
        let late = after(TaskChange::Deleted, Phase::Runs);
        assert_eq!(late[..9], [2, 6, 14, 30, 62, 126, 254, 510, 1022]);
        assert_eq!(late[9..], [2046, 4094, 8190, 16382, 32766, 65534], "containerd's disk stood still; then only a worker's own looks are left");
        assert_eq!(after(TaskChange::Deleted, Phase::Over), [2]);
        assert_eq!(after(TaskChange::Deleted, Phase::Unknown), [2]);
        assert_eq!(after(TaskChange::Ended, Phase::Runs)[..4], [100, 300, 700, 1500]);
        assert_eq!(after(TaskChange::Started, Phase::Made)[..3], [200, 600, 1400]);
        assert_eq!(after(TaskChange::Started, Phase::Runs), [200]);
        assert_eq!(after(TaskChange::Started, Phase::Over), [200], "it ended meanwhile");
    }

    #[test]
    fn an_end_is_looked_for_sooner_when_its_task_is_deleted() {
        let begin = Instant::now();
        let mut looks = Looks::default();
        looks.announce("c".to_owned(), TaskChange::Started, begin);
        looks.announce("c".to_owned(), TaskChange::Ended, begin + ms(5));
        assert_eq!(looks.due(POLL), Some(begin + ms(105)));
        looks.announce("c".to_owned(), TaskChange::Deleted, begin + ms(50));
        assert_eq!(looks.due(POLL), Some(begin + ms(52)));
        // Neither a further announcement nor one that comes late puts it off, or takes it for shown.
        looks.announce("other".to_owned(), TaskChange::Started, begin + ms(51));
        looks.announce("c".to_owned(), TaskChange::Started, begin + ms(51));
        assert_eq!(at(&mut looks, begin, Phase::Runs)[..3], [52, 56, 64]);
    }

    #[test]
    fn what_is_not_listed_is_not_waited_for() {
        let begin = Instant::now();
        let mut looks = Looks::default();
        looks.announce("gone".to_owned(), TaskChange::Deleted, begin);
        assert_eq!(at(&mut looks, begin, Phase::Runs), [2]);
        looks.without_events = true;
        assert_eq!(looks.due(POLL), Some(begin + ms(1002)), "a poll");
    }

    #[test]
    fn a_list_that_fails_shows_nothing_and_is_tried_again() {
        let begin = Instant::now();
        let mut looks = Looks::default();
        looks.announce("c".to_owned(), TaskChange::Deleted, begin);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let due = looks.due(POLL).unwrap();
            looks.looked(None, due);
            pauses.push(looks.due(POLL).unwrap().duration_since(due).as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(at(&mut looks, begin, Phase::Over).len(), 1, "the end was still waited for");
        // Also the list that the beginning of events asks for.
        let mut looks = Looks::default();
        looks.looked(None, begin);
        assert_eq!(looks.due(POLL), Some(begin + ms(50)));
        looks.looked(Some(&Seen::new()), begin + ms(50));
        assert_eq!(looks.due(POLL), None);
    }

    #[test]
    fn a_relist_names_the_pods_that_changed() {
        let before = Seen::from([("a".into(), set(&[("s", Phase::Runs)])), ("b".into(), set(&[("t", Phase::Runs)])), ("c".into(), set(&[]))]);
        let now = Seen::from([
            ("a".into(), set(&[("s", Phase::Over)])),
            ("b".into(), set(&[("t", Phase::Runs)])),
            ("d".into(), set(&[("x", Phase::Made)])),
        ]);
        let names: Vec<_> = changed(&before, &now).into_iter().cloned().collect();
        assert_eq!(names, ["a", "c", "d"]);
    }
}
