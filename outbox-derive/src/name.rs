//! Names on the wire: what is valid, and what the default event type is.

/// The most bytes `outbox.events` takes for a name.
const MAX_BYTES: usize = 255;

/// What is wrong with a name, as the end of a sentence.
pub(crate) fn fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is empty; a name has 1 to 255 bytes".to_owned());
    }
    if name.len() > MAX_BYTES {
        return Some(format!("has {} bytes; a name has 1 to 255 bytes", name.len()));
    }
    let control = name.chars().find(|character| character.is_control())?;
    Some(format!("holds the control character {control:?}; leave it out"))
}

/// The event type of a struct or variant that names none; the derive's docs state the rule.
pub(crate) fn default_event_type(aggregate: &str, name: &str) -> String {
    let name = snake_case(name);
    let happened = name
        .strip_prefix(prefix(aggregate).as_str())
        .and_then(|rest| rest.strip_prefix('_'))
        .filter(|rest| !rest.is_empty())
        .unwrap_or(&name);
    format!("{aggregate}.{happened}")
}

/// Serde's `snake_case` of a variant, to the letter: only ASCII is lowercased.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for (index, character) in name.char_indices() {
        if index > 0 && character.is_uppercase() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

/// An aggregate as it would stand in a `snake_case` type name: `purchase-order`, `purchase.order`
/// and `PurchaseOrder` are all `purchase_order`.
fn prefix(aggregate: &str) -> String {
    let mut prefix = String::with_capacity(aggregate.len() + 4);
    for character in aggregate.chars() {
        let starts_word = !character.is_alphanumeric() || character.is_uppercase();
        if starts_word && !prefix.is_empty() && !prefix.ends_with('_') {
            prefix.push('_');
        }
        if character.is_alphanumeric() {
            prefix.push(character.to_ascii_lowercase());
        }
    }
    prefix
}

/// The candidate that `word` is most likely a misspelling of.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let folded = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    candidates
        .into_iter()
        .map(|candidate| (distance(&folded(word), &folded(candidate)), candidate))
        .filter(|&(distance, candidate)| distance <= candidate.len().div_ceil(4))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.chars().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{closest, default_event_type, fault};

    #[test]
    fn every_row_of_the_documented_golden_table_holds() {
        let rows: Vec<Vec<&str>> = include_str!("lib.rs")
            .lines()
            .skip_while(|line| !line.contains("| Type or variant | Aggregate |"))
            .skip(2)
            .map_while(|line| line.strip_prefix("/// |"))
            .map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
            .collect();
        assert!(rows.len() >= 15, "the golden table is gone from the docs of the derive");
        for row in rows {
            let [name, aggregate, event_type, ..] = row[..] else { panic!("odd row {row:?}") };
            let name = name.trim_start_matches("r#");
            assert_eq!(default_event_type(aggregate, name), event_type, "{row:?}");
        }
    }

    #[test]
    fn names_are_one_to_255_bytes_without_control_characters() {
        assert_eq!(fault("order"), None);
        assert_eq!(fault(&"a".repeat(255)), None);
        assert!(fault("").is_some());
        assert!(fault(&"é".repeat(128)).is_some_and(|fault| fault.contains("256 bytes")));
        assert!(fault("or\0der").is_some());
        assert!(fault("order\n").is_some());
    }

    #[test]
    fn a_near_miss_is_recognised_and_a_far_one_is_not() {
        let options = ["aggregate", "aggregate_id", "topic", "version"];
        assert_eq!(closest("agregate_id", options), Some("aggregate_id"));
        assert_eq!(closest("aggregateId", options), Some("aggregate_id"));
        assert_eq!(closest("topics", options), Some("topic"));
        assert_eq!(closest("rename_all", options), None);
    }
}
