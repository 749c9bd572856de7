//! Sets of indexes as text: `1,3-5`.

/// One part: a single index, or the first and the last of several.
fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = text.split('-').collect();
    let index = |text: &str| {
        let number = text.parse::<i64>().ok().filter(|_| !text.starts_with('+') || text.len() > 1);
        match number {
            None => Err(format!("cannot convert string to integer for index: {text:?}")),
            Some(number) if number >= completions => Err(format!("too large index: {text:?}")),
            Some(number) => Ok(number),
        }
    };
    match limits.as_slice() {
        [single] => index(single).map(|single| (single, single)),
        [first, last] => {
            let (first, last) = (index(first)?, index(last)?);
            if first >= last { Err(format!("non-increasing order, previous: {first}, current: {last}")) } else { Ok((first, last)) }
        }
        _ => Err(format!("the fragment {text:?} violates the requirement that an index interval can have at most two parts separated by '-'")),
    }
}

/// How many indexes the text names, when it is well formed and all of them are below `completions`.
pub(super) fn count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut previous) = (0, None);
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = interval(part, completions)?;
        if let Some(previous) = previous.filter(|previous| *previous >= first) {
            return Err(format!("non-increasing order, previous: {previous}, current: {first}"));
        }
        total += last - first + 1;
        previous = Some(last);
    }
    Ok(total)
}

/// The first index that is in both sets; parts that cannot be read are left out.
pub(super) fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let parts = |text: &str| text.split(',').filter_map(|part| interval(part, completions).ok()).collect::<Vec<_>>();
    let (completed, failed) = (parts(completed), parts(failed));
    let (mut done, mut lost) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some(one), Some(other)) = (done.peek(), lost.peek()) {
        if one.0 <= other.1 && other.0 <= one.1 {
            return Some(one.0.max(other.0));
        }
        if one.0 <= other.0 {
            done.next();
        } else {
            lost.next();
        }
    }
    None
}
