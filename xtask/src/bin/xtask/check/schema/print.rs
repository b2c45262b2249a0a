//! The catalog in the words of diesel's `table!`.

#![expect(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "a page of text is printed once, and reads better as it looks"
)]

use super::catalog::{Catalog, Column, Table};

/// What diesel's command line writes first: the file is the same whichever of the two wrote it.
const HEADER: &str = "// @generated automatically by Diesel CLI.\n\n";

/// PostgreSQL's name, diesel's name.
const KNOWN: &[(&str, &str)] = &[
    ("bool", "Bool"),
    ("bytea", "Bytea"),
    ("float8", "Float8"),
    ("int2", "Int2"),
    ("int4", "Int4"),
    ("int8", "Int8"),
    ("interval", "Interval"),
    ("json", "Json"),
    ("jsonb", "Jsonb"),
    ("numeric", "Numeric"),
    ("oid", "Oid"),
    ("text", "Text"),
    ("timestamp", "Timestamp"),
    ("timestamptz", "Timestamptz"),
    ("uuid", "Uuid"),
    ("varchar", "Varchar"),
];

/// Types that diesel lacks and `snapshot.rs` defines: PostgreSQL's name, ours.
const CUSTOM: &[(&str, &str)] = &[("pg_snapshot", "PgSnapshot"), ("xid8", "Xid8")];

/// The `import_types` of diesel.toml, which diesel writes into every table.
const IMPORTS: &str = "
    use diesel::sql_types::*;
    use crate::snapshot::sql_types::*;
";

/// Names of columns that Rust does not take as they are, or that `table!` uses itself.
const RESERVED: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "columns", "const", "continue",
    "crate", "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub",
    "ref", "return", "self", "static", "struct", "super", "table", "trait", "true", "try", "type",
    "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// The whole file, before rustfmt.
pub(crate) fn file(catalog: &Catalog) -> Result<String, String> {
    let mut items = catalog.tables.iter().map(table).collect::<Result<Vec<_>, _>>()?;
    let joins = catalog.joins.iter().map(|join| {
        let (child, parent, column) = (&join.child, &join.parent, identifier(&join.column));
        format!("diesel::joinable!({child} -> {parent} ({column}));\n")
    });
    items.push(joins.collect());
    if catalog.tables.len() > 1 {
        let names: Vec<_> = catalog.tables.iter().map(|table| table.name.as_str()).collect();
        let names = names.join(", ");
        items.push(format!("diesel::allow_tables_to_appear_in_same_query!({names},);\n"));
    }
    items.retain(|item| !item.is_empty());
    // rustfmt leaves the insides of `table!` as they are.
    let indented: String = items
        .join("\n")
        .lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") })
        .collect();
    Ok(format!("{HEADER}pub mod outbox {{\n{indented}}}\n"))
}

fn table(table: &Table) -> Result<String, String> {
    let name = &table.name;
    if table.primary_key.is_empty() {
        return Err(format!("outbox.{name} has no primary key, and diesel needs one"));
    }
    let mut text = format!("diesel::table! {{{IMPORTS}\n");
    text += &comment(table.comment.as_deref(), "    ");
    let key: Vec<_> = table.primary_key.iter().map(|column| identifier(column)).collect();
    text += &format!("    outbox.{name} ({}) {{\n", key.join(", "));
    for column in &table.columns {
        text += &comment(column.comment.as_deref(), "        ");
        let rust_name = identifier(&column.name);
        if rust_name != column.name {
            text += &format!("        #[sql_name = {:?}]\n", column.name);
        }
        text += &format!("        {rust_name} -> {},\n", sql_type(name, column)?);
    }
    Ok(text + "    }\n}\n")
}

fn comment(text: Option<&str>, indent: &str) -> String {
    let lines = text.unwrap_or_default().lines();
    lines.map(|line| format!("{indent}/// {line}\n")).collect()
}

fn identifier(name: &str) -> String {
    if RESERVED.contains(&name) { format!("{name}_") } else { name.to_owned() }
}

fn sql_type(table: &str, column: &Column) -> Result<String, String> {
    let known = KNOWN.iter().find(|(sql, _)| *sql == column.type_name).map(|(_, name)| *name);
    let name = known.or_else(|| custom(column)).ok_or_else(|| {
        format!(
            "outbox.{table}.{} is of type {}, which cargo xtask check cannot print yet",
            column.name, column.type_name
        )
    })?;
    // PostgreSQL does not know arrays without NULLs, hence neither does diesel.
    let name = if column.is_array { format!("Array<Nullable<{name}>>") } else { name.to_owned() };
    Ok(if column.is_nullable { format!("Nullable<{name}>") } else { name })
}

fn custom(column: &Column) -> Option<&'static str> {
    CUSTOM.iter().find(|(sql, ..)| *sql == column.type_name).map(|(_, name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::{Catalog, Column, Table, file};

    fn column(name: &str, type_name: &str) -> Column {
        Column {
            name: name.into(),
            comment: None,
            type_name: type_name.into(),
            is_array: false,
            is_nullable: false,
        }
    }

    fn print(columns: Vec<Column>) -> Result<String, String> {
        let table =
            Table { name: "t".into(), comment: None, primary_key: vec!["id".into()], columns };
        file(&Catalog { tables: vec![table], joins: Vec::new() })
    }

    #[test]
    fn columns_keep_their_type_their_nulls_and_their_comment() {
        let text = print(vec![
            Column { comment: Some("Why".into()), ..column("id", "int8") },
            Column { is_nullable: true, is_array: true, ..column("type", "text") },
            column("xid", "xid8"),
        ])
        .unwrap();
        for part in [
            "use crate::snapshot::sql_types::*;",
            "outbox.t (id) {",
            "/// Why\n            id -> Int8,",
            "#[sql_name = \"type\"]\n            type_ -> Nullable<Array<Nullable<Text>>>,",
            "xid -> Xid8,",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_type_nobody_has_mapped_is_an_error_that_names_the_column() {
        assert!(print(vec![column("id", "tsvector")]).unwrap_err().contains("outbox.t.id"));
    }
}
