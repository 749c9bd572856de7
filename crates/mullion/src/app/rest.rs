//! Free memory goes back to the kernel when a burst of work is over: a start, many definitions, a large list.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// How often the process looks at itself.
const EVERY: Duration = Duration::from_secs(2);
/// Less processor time in that period is rest.
const REST: Duration = Duration::from_millis(40);
/// Less processor time since the last time leaves too little to give back. A start is a burst however quick it was: the loader touched the
/// whole program.
const BURST: Duration = Duration::from_millis(100);

/// Processor time at which memory was last given back, if it was, and at the last look.
#[derive(Debug, Default)]
struct Bursts {
    given_back: Option<Duration>,
    seen: Duration,
}

impl Bursts {
    /// Whether the process, which has used so much processor time, rests after a burst.
    fn is_over(&mut self, used: Duration) -> bool {
        let rests = used.saturating_sub(std::mem::replace(&mut self.seen, used)) < REST;
        let over = rests && self.given_back.is_none_or(|given_back| used.saturating_sub(given_back) >= BURST);
        if over {
            self.given_back = Some(used);
        }
        over
    }
}

/// Gives memory back after each burst, for ever.
pub async fn run() {
    let mut bursts = Bursts::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return std::future::pending().await };
        let used = (usage.user_time() + usage.system_time()).num_microseconds();
        if bursts.is_over(Duration::from_micros(u64::try_from(used).unwrap_or_default())) {
            // It takes milliseconds, in which a worker would serve nobody.
            let _ = tokio::task::spawn_blocking(linux_sys::memory::give_back).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_after_each_burst() {
        let mut bursts = Bursts::default();
        let mut at = |milliseconds| bursts.is_over(Duration::from_millis(milliseconds));
        assert!(!at(50), "it starts");
        assert!(at(60) && !at(70), "a start is a burst");
        assert!(!at(900), "a burst");
        assert!(at(910) && !at(920) && !at(930), "it is over once");
        assert!(!at(5_000) && at(5_030), "the next one");
        assert!(!at(5_065) && !at(5_100) && at(5_135), "a long rest with a little work adds up to a burst");
    }
}
