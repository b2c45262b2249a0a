//! What a Markdown file links to, and what can be linked to in it.

use std::collections::{BTreeSet, HashMap};

use pulldown_cmark::{BrokenLink, CowStr, Event, LinkType, Options, Parser, Tag, TagEnd};

/// A Markdown file.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// The names of its headings, as GitHub and mdBook make them.
    pub(super) anchors: BTreeSet<String>,
    /// Where its links and pictures lead.
    pub(super) links: Vec<Place>,
    /// Code that looks like the path of a file.
    pub(super) files: Vec<Place>,
    /// What can't be checked, and why.
    pub(super) faults: Vec<Place>,
}

/// Something that stands in a line.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) to: String,
}

impl Page {
    pub(super) fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut undefined = Vec::new();
        let callback = |broken: BrokenLink<'_>| {
            // `[x]` alone is mostly not meant as a link.
            if broken.link_type != LinkType::Shortcut {
                undefined.push((broken.span.start, broken.reference.into_string()));
            }
            None::<(CowStr<'_>, CowStr<'_>)>
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_TASKLISTS;
        let events = Parser::new_with_broken_link_callback(text, options, Some(callback));
        let line = |offset: usize| 1 + text[..offset].matches('\n').count();
        let mut heading: Option<String> = None;
        let mut seen = HashMap::new();
        for (event, span) in events.into_offset_iter() {
            let place = |to: String| Place { line: line(span.start), to };
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = slug(&heading.take().unwrap_or_default());
                    let before = seen.entry(name.clone()).or_insert(0);
                    let unique = if *before == 0 { name } else { format!("{name}-{before}") };
                    *before += 1;
                    page.anchors.insert(unique);
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(place(dest_url.into_string()));
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    } else if is_path(&code) {
                        page.files.push(place(code.into_string()));
                    }
                }
                Event::Text(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Html(html) | Event::InlineHtml(html)
                    if html.contains("href=") || html.contains("src=") =>
                {
                    let why = "write links and pictures as Markdown: HTML is not checked";
                    page.faults.push(place(why.to_owned()));
                }
                _ => {}
            }
        }
        for (offset, reference) in undefined {
            let to = format!("nothing says where [{reference}] leads");
            page.faults.push(Place { line: line(offset), to });
        }
        page
    }
}

/// The name of a heading: letters, digits, `-` and `_` in lower case, `-` for spaces.
fn slug(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            c if c.is_whitespace() => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c),
            _ => None,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

/// A file's name with directories before it: no pattern, no command, no type of media.
fn is_path(code: &str) -> bool {
    let (Some((_, name)), is_plain) = (
        code.rsplit_once('/'),
        code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)),
    ) else {
        return false;
    };
    is_plain && name.contains('.')
}
