//! `rename_all`: serde's styles, to the letter.

/// How a name is written on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

/// The words of `#[serde(rename_all = "...")]`, in serde's order.
pub(crate) const WORDS: [(&str, Style); 8] = [
    ("lowercase", Style::Lower),
    ("UPPERCASE", Style::Upper),
    ("PascalCase", Style::Pascal),
    ("camelCase", Style::Camel),
    ("snake_case", Style::Snake),
    ("SCREAMING_SNAKE_CASE", Style::ScreamingSnake),
    ("kebab-case", Style::Kebab),
    ("SCREAMING-KEBAB-CASE", Style::ScreamingKebab),
];

impl Style {
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        WORDS.iter().find(|(known, _)| *known == word).map(|&(_, style)| style)
    }

    /// What serde makes of a variant of this name: only ASCII changes case.
    pub(crate) fn apply(self, name: &str) -> String {
        match self {
            Style::Lower => name.to_ascii_lowercase(),
            Style::Upper => name.to_ascii_uppercase(),
            Style::Pascal => name.to_owned(),
            Style::Camel => {
                let first = name.chars().next().map_or(0, char::len_utf8);
                name[..first].to_ascii_lowercase() + &name[first..]
            }
            Style::Snake => snake_case(name),
            Style::ScreamingSnake => snake_case(name).to_ascii_uppercase(),
            Style::Kebab => snake_case(name).replace('_', "-"),
            Style::ScreamingKebab => snake_case(name).to_ascii_uppercase().replace('_', "-"),
        }
    }
}

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

/// A name less the aggregate that it starts with, if something is left: `OrderCreated` is
/// `Created` for the aggregate `order`.
pub(crate) fn without_aggregate<'a>(name: &'a str, aggregate: &str) -> &'a str {
    let prefix = in_snake_case(aggregate);
    let starts_word = |at: usize| {
        let rest = &name[at..];
        let rest = rest
            .strip_prefix('_')
            .or_else(|| rest.starts_with(char::is_uppercase).then_some(rest))?;
        Some(rest).filter(|rest| !rest.is_empty())
    };
    let ends = name.char_indices().map(|(at, _)| at).skip(1);
    ends.filter(|&at| snake_case(&name[..at]) == prefix).find_map(starts_word).unwrap_or(name)
}

/// An aggregate as it would stand in a `snake_case` type name: `purchase-order`, `purchase.order`
/// and `PurchaseOrder` are all `purchase_order`.
fn in_snake_case(aggregate: &str) -> String {
    let mut snake = String::with_capacity(aggregate.len() + 4);
    for character in aggregate.chars() {
        let starts_word = !character.is_alphanumeric() || character.is_uppercase();
        if starts_word && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        if character.is_alphanumeric() {
            snake.push(character.to_ascii_lowercase());
        }
    }
    snake
}
