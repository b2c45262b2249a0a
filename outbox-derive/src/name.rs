//! Names on the wire: what is valid, and what the default event type is.

use crate::style::{self, Style};

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
pub(crate) fn default_event_type(aggregate: &str, name: &str, style: Style) -> String {
    let happened = style.apply(style::without_aggregate(name, aggregate));
    format!("{aggregate}.{happened}")
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
    use crate::style::{self, Style};

    #[test]
    fn every_row_of_the_documented_golden_table_holds() {
        let rows = golden_table("| Type or variant | Aggregate |");
        assert!(rows.len() >= 15, "the golden table is gone from the docs of the derive");
        for row in rows {
            let [name, aggregate, event_type, ..] = &row[..] else { panic!("odd row {row:?}") };
            let name = name.trim_start_matches("r#");
            assert_eq!(&default_event_type(aggregate, name, Style::Snake), event_type, "{row:?}");
        }
    }

    #[test]
    fn every_row_of_the_documented_table_of_styles_holds() {
        let rows = golden_table("| `rename_all` | `OrderV2Created` |");
        let names = ["OrderV2Created", "HTTPFailed", "Ipv4Seen", "A1B2", "Über"];
        let words: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(words, style::WORDS.map(|(word, _)| word));
        for row in rows {
            let style = Style::of_word(&row[0]).expect("the row names a style");
            for (name, event_type) in names.iter().zip(&row[1..]) {
                assert_eq!(&default_event_type("order", name, style), event_type, "{row:?}");
            }
        }
    }

    fn golden_table(head: &str) -> Vec<Vec<String>> {
        include_str!("lib.rs")
            .lines()
            .skip_while(|line| !line.contains(head))
            .skip(2)
            .map_while(|line| line.strip_prefix("/// |"))
            .map(|row| {
                row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
            })
            .collect()
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
        assert_eq!(closest("payload", options), None);
    }
}
