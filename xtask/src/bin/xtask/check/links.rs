//! Links of the Markdown files lead somewhere: files are there, and headings too. Addresses on the
//! web are not asked, but for those of this repository, which are files as well.

mod page;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use self::page::Page;
use super::{Context, Verdict};

/// Addresses below are files of the workspace.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The guide's pages. Only what lies in here is part of the book.
const GUIDE: &str = "docs/src";
/// The guide's table of contents.
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Follows every link of every `*.md`.
pub(crate) fn check(context: &Context) -> Verdict {
    let pages = pages(&context.workspace)?;
    let mut problems: Vec<String> = pages
        .iter()
        .flat_map(|(path, page)| problems(&context.workspace, &pages, path, page))
        .collect();
    problems.extend(unlisted(&pages));
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("links that lead nowhere:\n{}", problems.join("\n")).into())
}

type Pages = BTreeMap<PathBuf, Page>;

/// Every Markdown file of the workspace, by its path from there.
fn pages(workspace: &Path) -> io::Result<Pages> {
    files(workspace)?
        .into_iter()
        .map(|file| {
            let page = Page::read(&fs::read_to_string(&file)?);
            let path = file.strip_prefix(workspace).unwrap_or(&file).to_owned();
            Ok((path, page))
        })
        .collect()
}

/// But for build output, hidden directories and links to files that are somewhere else too.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind, name) = (entry.path(), entry.file_type()?, entry.file_name());
        let skipped = name == "target" || name.to_string_lossy().starts_with('.');
        if kind.is_dir() && !skipped {
            found.extend(files(&path)?);
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

/// What is wrong with a page, a line for each.
fn problems(workspace: &Path, pages: &Pages, path: &Path, page: &Page) -> Vec<String> {
    let links = page.links.iter().map(|link| {
        let fault = follow(workspace, pages, path, &link.to).err()?;
        Some(format!("{}:{}: {}: {fault}", path.display(), link.line, link.to))
    });
    let names = page.files.iter().map(|file| {
        let exists = !is_of(workspace, &file.to) || workspace.join(&file.to).exists();
        (!exists).then(|| format!("{}:{}: there is no {}", path.display(), file.line, file.to))
    });
    let faults = page
        .faults
        .iter()
        .map(|fault| Some(format!("{}:{}: {}", path.display(), fault.line, fault.to)));
    links.chain(names).chain(faults).flatten().collect()
}

/// Whether a name is that of a file of the workspace: its first part lies there.
fn is_of(workspace: &Path, name: &str) -> bool {
    let first = Path::new(name).components().next();
    matches!(first, Some(Component::Normal(first)) if workspace.join(first).is_dir())
}

/// Where a link leads, or why it leads nowhere.
fn follow(workspace: &Path, pages: &Pages, from: &Path, to: &str) -> Result<(), String> {
    let own = |kind: &str| to.strip_prefix(&format!("{REPOSITORY}/{kind}/main/"));
    let (target, is_address) = match own("blob").or_else(|| own("tree")) {
        Some(path) => (path, true),
        None if has_scheme(to) => return Ok(()),
        None => (to, false),
    };
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let path = match path {
        "" => from.to_owned(),
        _ if path.starts_with('/') => {
            return Err("a path from the root is one on no server".to_owned());
        }
        _ if is_address => PathBuf::from(path),
        _ => normal(&from.with_file_name(path)).ok_or("it leads out of the repository")?,
    };
    if from.starts_with(GUIDE) && !path.starts_with(GUIDE) && !is_address {
        return Err(format!("the book holds {GUIDE} alone; give the address: {REPOSITORY}/…"));
    }
    if !workspace.join(&path).exists() {
        return Err("there is no such file".to_owned());
    }
    match (anchor, pages.get(&path)) {
        (Some(anchor), Some(page)) if !page.anchors.contains(anchor) => {
            Err("there is no such heading".to_owned())
        }
        (Some(_), None) => Err("only Markdown files have headings".to_owned()),
        _ => Ok(()),
    }
}

/// `https:`, `mailto:`, …
fn has_scheme(to: &str) -> bool {
    let scheme = to.split_once(':').map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphabetic())
}

/// The path without `.` and `..`; none if it leads out.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => normal.push(part),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            _ => return None,
        }
    }
    Some(normal)
}

/// Pages that the book would leave out.
fn unlisted(pages: &Pages) -> Vec<String> {
    let summary = Path::new(SUMMARY);
    let Some(contents) = pages.get(summary) else { return Vec::new() };
    let listed = |page: &Path| {
        contents
            .links
            .iter()
            .any(|link| normal(&summary.with_file_name(&link.to)).as_deref() == Some(page))
    };
    pages
        .keys()
        .filter(|page| page.starts_with(GUIDE) && *page != summary && !listed(page))
        .map(|page| format!("{SUMMARY} does not list {}", page.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links of a page of this workspace, which has these pages besides.
    fn faults(path: &str, text: &str, others: &[(&str, &str)]) -> Vec<String> {
        let workspace = super::super::workspace();
        let page = Page::read(text);
        let mut pages: Pages =
            others.iter().map(|(path, text)| (PathBuf::from(path), Page::read(text))).collect();
        pages.insert(PathBuf::from(path), Page::read(text));
        let mut found = problems(&workspace, &pages, Path::new(path), &page);
        found.extend(unlisted(&pages));
        found
    }

    #[test]
    fn links_to_files_and_headings_that_are_there_pass() {
        let text = "# One: `two`\n[a](Cargo.toml) [b](#one-two) [c](xtask/../LICENSE-MIT) [d][e]\n\n[e]: ARCHITECTURE.md#data\n";
        let data = ("ARCHITECTURE.md", "## Data\n");
        assert_eq!(faults("README.md", text, &[data]), [] as [&str; 0]);
        let address = format!(
            "[a]({REPOSITORY}/blob/main/ARCHITECTURE.md#data) <https://example.com/#x> `ops/roles.sql`"
        );
        assert_eq!(faults("docs/src/a.md", &address, &[data]), [] as [&str; 0]);
    }

    #[test]
    fn each_link_that_leads_nowhere_is_told_with_its_line() {
        for (link, why) in [
            ("[a](Kargo.toml)", "README.md:3: Kargo.toml: there is no such file"),
            ("![a](xtask/none.svg)", "README.md:3: xtask/none.svg: there is no such file"),
            ("[a](#none)", "README.md:3: #none: there is no such heading"),
            ("[a](Cargo.toml#x)", "README.md:3: Cargo.toml#x: only Markdown files have headings"),
            (
                "[a](/README.md)",
                "README.md:3: /README.md: a path from the root is one on no server",
            ),
            ("[a](../x)", "README.md:3: ../x: it leads out of the repository"),
            ("[a][none]", "README.md:3: nothing says where [none] leads"),
            ("`xtask/src/none.rs`", "README.md:3: there is no xtask/src/none.rs"),
            (
                "<a href=\"x\">a</a>",
                "README.md:3: write links and pictures as Markdown: HTML is not checked",
            ),
        ] {
            assert_eq!(faults("README.md", &format!("# A\n\n{link}\n"), &[]), [why]);
        }
        let address = format!("{REPOSITORY}/tree/main/none");
        let told = format!("README.md:1: {address}: there is no such file");
        assert_eq!(faults("README.md", &format!("[a]({address})"), &[]), [told]);
    }

    #[test]
    fn the_book_is_whole_and_links_only_within_itself() {
        let summary = ("docs/src/SUMMARY.md", "- [A](a.md)\n");
        assert_eq!(
            faults("docs/src/b.md", "text", &[summary]),
            ["docs/src/SUMMARY.md does not list docs/src/b.md"]
        );
        let out = faults("docs/src/a.md", "[a](../../README.md)", &[summary]);
        assert!(out[0].contains("the book holds docs/src alone"), "{out:?}");
    }
}
