//! Writes what was measured into `docs/performance.md`, between the marks of its section.

use std::fs;
use std::path::Path;

use crate::Outcome;

/// Replaces the section's lines in the file.
pub(crate) fn write(file: &Path, section: &str, lines: &[String]) -> Outcome {
    let text = fs::read_to_string(file)?;
    let text = replaced(&text, section, lines)
        .ok_or_else(|| format!("{} has no section `{section}`", file.display()))?;
    Ok(fs::write(file, text)?)
}

fn replaced(text: &str, section: &str, lines: &[String]) -> Option<String> {
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->"));
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n\n{end}{after}", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_section_is_replaced_and_it_can_be_again() {
        let text = "a\n<!-- s -->\nold\n<!-- end of s -->\nb\n";
        let lines = ["new".to_owned()];
        let once = replaced(text, "s", &lines).expect("it is there");
        assert_eq!(once, "a\n<!-- s -->\n\nnew\n\n<!-- end of s -->\nb\n");
        assert_eq!(replaced(&once, "s", &lines), Some(once.clone()));
        assert_eq!(replaced(text, "t", &lines), None);
    }
}
