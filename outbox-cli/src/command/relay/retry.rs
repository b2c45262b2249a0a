//! Retries of one event type, as an argument.

use std::time::Duration;

use outbox_diesel::{Order, RetryOptions};

use crate::times::parse_duration;

/// What `--retry-for` says: `order.viewed:attempts=3,order=unordered`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetryFor {
    pub(super) event_type: String,
    base: Option<Duration>,
    cap: Option<Duration>,
    attempts: Option<u16>,
    order: Option<Order>,
}

impl RetryFor {
    /// What is not said is as for all other types.
    pub(super) fn over(&self, mut retry: RetryOptions) -> RetryOptions {
        if let Some(base) = self.base {
            retry = retry.base(base);
        }
        if let Some(cap) = self.cap {
            retry = retry.cap(cap);
        }
        if let Some(attempts) = self.attempts {
            retry = retry.attempts(attempts);
        }
        if let Some(order) = self.order {
            retry = retry.order(order);
        }
        retry
    }
}

pub(super) fn parse_order(text: &str) -> Result<Order, String> {
    match text {
        "hold" => Ok(Order::Hold),
        "skip" => Ok(Order::Skip),
        "unordered" => Ok(Order::Unordered),
        _ => Err("write hold, skip or unordered".to_owned()),
    }
}

pub(super) fn parse_retry_for(text: &str) -> Result<RetryFor, String> {
    let (event_type, settings) = text
        .split_once(':')
        .filter(|(event_type, _)| !event_type.is_empty())
        .ok_or("write TYPE:attempts=3,base=1s,cap=1m,order=unordered")?;
    let mut retry = RetryFor {
        event_type: event_type.to_owned(),
        base: None,
        cap: None,
        attempts: None,
        order: None,
    };
    for setting in settings.split(',') {
        match setting.split_once('=') {
            Some(("base", base)) => retry.base = Some(parse_duration(base)?),
            Some(("cap", cap)) => retry.cap = Some(parse_duration(cap)?),
            Some(("order", order)) => retry.order = Some(parse_order(order)?),
            Some(("attempts", attempts)) => {
                retry.attempts = Some(attempts.parse().map_err(|_| "attempts is a number")?);
            }
            _ => return Err(format!("{setting:?} is none of base=, cap=, attempts= and order=")),
        }
    }
    Ok(retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_of_a_type_is_as_for_the_others() {
        let retry = parse_retry_for("order.viewed:attempts=3,order=unordered").unwrap();
        assert_eq!(retry.event_type, "order.viewed");
        let others = RetryOptions::default().base(Duration::from_secs(9));
        let expected = others.clone().attempts(3).order(Order::Unordered);
        assert_eq!(retry.over(others), expected);
        for wrong in
            ["order.viewed", ":attempts=1", "t:attempts=x", "t:order=any", "t:tries=1", "t:"]
        {
            assert!(parse_retry_for(wrong).is_err(), "{wrong}");
        }
    }
}
