//! What publishers say of a failure, as it can be stored, logged and shown.

/// Longest error text that is stored, in characters.
const LIMIT: usize = 4000;

/// The text as PostgreSQL can store it and people may see it: without passwords, cut at 4,000
/// characters, without NUL.
pub(crate) fn storable(error: &str) -> String {
    // A publisher may quote a whole message: what lies far behind the cut is not looked at.
    let cut = error.char_indices().nth(LIMIT * 2).map_or(error.len(), |(at, _)| at);
    let error = &error[..cut];
    let shown = redact_userinfo(error);
    let shown = redact_parameter(&shown);
    shown.chars().take(LIMIT).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}

/// `scheme://user:secret@host` without the secret.
fn redact_userinfo(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c));
        let (authority, behind) = after.split_at(end.unwrap_or(after.len()));
        match authority.rsplit_once('@') {
            Some((userinfo, host)) => {
                let user = userinfo.split_once(':').map_or(userinfo, |(user, _)| user);
                let secret = if user.len() < userinfo.len() { ":***" } else { "" };
                shown.extend([user, secret, "@", host]);
            }
            None => shown.push_str(authority),
        }
        rest = behind;
    }
    shown.push_str(rest);
    shown
}

/// `password=secret`, as in a libpq connection string, without the secret.
fn redact_parameter(text: &str) -> String {
    const NAME: &str = "password=";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    // ASCII only changes case here, so the indices are those of the text.
    while let Some(at) = rest.to_ascii_lowercase().find(NAME) {
        let (before, after) = rest.split_at(at + NAME.len());
        shown.push_str(before);
        shown.push_str("***");
        let end = match after.strip_prefix('\'') {
            Some(quoted) => quoted.find('\'').map(|end| end + 2),
            None => after.find(|c: char| c.is_whitespace() || "&;,\"')".contains(c)),
        };
        rest = &after[end.unwrap_or(after.len())..];
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_text_can_be_stored() {
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
        assert_eq!(storable(&"é".repeat(5_000_000)).chars().count(), 4000);
        assert_eq!(storable(&String::from_utf8_lossy(b"\xff\xfe")), "\u{fffd}\u{fffd}");
        assert_eq!(storable(""), "");
    }

    #[test]
    fn no_password_is_shown() {
        for (text, shown) in [
            ("redis://:hunter2@host:6379/1 refused", "redis://:***@host:6379/1 refused"),
            ("amqp://me:hun:ter@2@host", "amqp://me:***@host"),
            (
                "at http://me@host and https://host/a:b@c",
                "at http://me@host and https://host/a:b@c",
            ),
            ("host=db Password=hunter2 user=me", "host=db Password=*** user=me"),
            ("password='hunter 2' user=me", "password=*** user=me"),
            ("?password=hunter2&user=me", "?password=***&user=me"),
            ("no secret: a://b, c@d", "no secret: a://b, c@d"),
        ] {
            assert_eq!(storable(text), shown);
        }
    }
}
