//! Every SQL constant is a statement that the migrated schema understands.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Lit, LitStr, Token, Type};

use super::database::{Database, describe};
use super::{Context, Verdict, length};

/// What a statement starts with. Utility statements cannot be prepared.
const VERBS: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES"];

/// Sends each one to the server for parsing and planning; parameters get the types it infers.
pub(crate) fn check(context: &Context) -> Verdict {
    let mut database = Database::migrated(context, "statements")?;
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in length::sources(&context.workspace.join("outbox-diesel/src"))? {
        for statement in statements(&file)? {
            seen += 1;
            if let Err(error) = database.client.prepare(&statement.sql) {
                let file = file.strip_prefix(&context.workspace).unwrap_or(&file);
                wrong.push(format!("{}: {}: {}", file.display(), statement.name, describe(&error)));
            }
        }
    }
    if wrong.is_empty() {
        eprintln!("{seen} statements");
        return Ok(());
    }
    Err(format!(
        "{} of {seen} statements:\n{}\n\
         (a parameter's type is inferred; where that goes wrong, write it: $1::interval)",
        wrong.len(),
        wrong.join("\n")
    )
    .into())
}

/// A constant whose text is SQL.
#[derive(Debug)]
struct Statement {
    name: String,
    sql: String,
}

fn statements(file: &Path) -> Result<Vec<Statement>, Box<dyn Error>> {
    let syntax = syn::parse_file(&fs::read_to_string(file)?)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let mut finder = Finder { file: file.to_owned(), found: Vec::new() };
    finder.visit_file(&syntax);
    Ok(finder.found)
}

struct Finder {
    file: PathBuf,
    found: Vec<Statement>,
}

impl Finder {
    fn constant(&mut self, name: &syn::Ident, ty: &Type, value: &Expr) {
        let Type::Reference(reference) = ty else { return };
        if !matches!(&*reference.elem, Type::Path(path) if path.path.is_ident("str")) {
            return;
        }
        let Some(sql) = text(value, &self.file) else { return };
        let first = sql.split(|c: char| !c.is_ascii_alphabetic()).find(|word| !word.is_empty());
        if first.is_some_and(|first| VERBS.contains(&first.to_ascii_uppercase().as_str())) {
            self.found.push(Statement { name: name.to_string(), sql });
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.ident, &item.ty, &item.expr);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.ident, &item.ty, &item.expr);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(&item.ident, &item.ty, &item.expr);
        visit::visit_item_static(self, item);
    }
}

/// The value of a string literal, of `concat!` of literals, or of `include_str!`.
fn text(value: &Expr, file: &Path) -> Option<String> {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        Expr::Paren(inner) => text(&inner.expr, file),
        Expr::Group(inner) => text(&inner.expr, file),
        Expr::Macro(call) if call.mac.path.is_ident("concat") => {
            let parts =
                call.mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated).ok()?;
            parts.iter().map(|part| text(part, file)).collect()
        }
        Expr::Macro(call) if call.mac.path.is_ident("include_str") => {
            let path: LitStr = call.mac.parse_body().ok()?;
            fs::read_to_string(file.parent()?.join(path.value())).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use syn::visit::Visit;

    use super::Finder;

    fn names(source: &str) -> Vec<String> {
        let mut finder = Finder { file: Path::new("x.rs").to_owned(), found: Vec::new() };
        finder.visit_file(&syn::parse_str(source).unwrap());
        finder.found.into_iter().map(|statement| statement.name).collect()
    }

    #[test]
    fn sql_is_found_wherever_a_constant_can_be() {
        let source = r##"
            const PLAIN: &str = "SELECT 1";
            pub(crate) static STATIC: &'static str = "delete from t";
            mod inner { const RAW: &str = r#"
                WITH a AS (SELECT 1) SELECT * FROM a"#; }
            impl T { const IN_IMPL: &str = concat!("INSERT INTO t ", "VALUES (", 1, ")"); }
            fn f() { const IN_FN: &str = "UPDATE t SET a = 1"; }
        "##;
        // `1` in a `concat!` is no string: the call is left alone instead of being half read.
        assert_eq!(names(source), ["PLAIN", "STATIC", "RAW", "IN_FN"]);
    }

    #[test]
    fn what_is_no_statement_is_left_alone() {
        let source = r#"
            const WORD: &str = "selection";
            const UTILITY: &str = "SAVEPOINT s";
            const BYTES: &[u8] = b"SELECT 1";
        "#;
        assert!(names(source).is_empty());
    }
}
